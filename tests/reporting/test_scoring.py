"""Rows to the parts of a record, on rows made by hand."""

from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from support.typed import not_none
from wmr_cli import measures
from wmr_cli.config import EvaluateConfig
from wmr_cli.reporting import scoring
from wmr_cli.reporting.scoring import Scores
from wmr_cli.storage.records import Rows

ALPHAS = [0.0, 1.0, 2.0]
EVERYTHING = EvaluateConfig(metrics=("nat", "rob", "sa", "tr", "dro"), per_class=True)


def rows(size: int = 300, classes: int = 4, seed: int = 0) -> Rows:
    """Rows of a network that is right where its margin is positive; classes differ in how hard they are."""
    rng = np.random.default_rng(seed)
    label = rng.integers(classes, size=size)
    made: Rows = {"index": np.arange(size), "label": label}
    for prefix, shift in (
        ("clean", 0.6),
        ("uniform", 0.1),
        *((f"weighted@{alpha}", 0.0) for alpha in ALPHAS),
    ):
        margin = np.tanh(rng.normal(shift + 0.4 * label, 0.8))
        made |= {
            f"{prefix}/prediction": np.where(margin > 0, label, (label + 1) % classes),
            f"{prefix}/margin": margin,
            f"{prefix}/logit_margin": (3 * margin).astype(np.float32),
            f"{prefix}/loss": np.exp(-margin).astype(np.float32),
            f"{prefix}/logits": np.zeros((size, classes), dtype=np.float32),
        }
    return made


def scored(
    config: EvaluateConfig = EVERYTHING,
    some: Rows | None = None,
    **changes: Any,
) -> Scores:
    return scoring.scores(
        some or rows(), msgspec.structs.replace(config, **changes), ALPHAS, {1: "one"}
    )


def test_the_four_accuracies_are_those_of_the_measures() -> None:
    made = scored()
    assert made.a_nat == measures.accuracy(rows(), "clean")
    assert made.a_rob == measures.accuracy(rows(), "uniform")
    assert [row.alpha_test for row in made.by_alpha] == ALPHAS
    assert [row.a_sa for row in made.by_alpha] == [
        measures.sampled_accuracy(rows(), "exp", alpha) for alpha in ALPHAS
    ]
    assert [row.a_tr for row in made.by_alpha] == [
        measures.crafted_accuracy(rows(), "exp", alpha) for alpha in ALPHAS
    ]
    assert not_none(made.by_alpha[0].a_sa).value == not_none(made.a_rob).value


def test_nothing_is_told_that_was_not_asked_for() -> None:
    made = scored(metrics=("nat",), per_class=False)
    assert made[1:] == (None, [], [], [])
    sampled = scored(metrics=("sa",), per_class=False)
    assert sampled.a_rob is None
    assert all(row.a_sa is not None and row.a_tr is None for row in sampled.by_alpha)


def test_the_bootstrap_changes_intervals_and_nothing_else() -> None:
    formulas, resampled = scored(), scored(ci="bootstrap")
    pairs = [(formulas.a_nat, resampled.a_nat), (formulas.a_rob, resampled.a_rob)]
    for row, other in zip(formulas.by_alpha, resampled.by_alpha, strict=True):
        pairs += [(row.a_sa, other.a_sa), (row.a_tr, other.a_tr)]
    for estimates in pairs:
        first, second = map(not_none, estimates)
        assert (first.value, first.ess) == (second.value, second.ess)
        assert (first.low, first.high) != (second.low, second.high)
        assert (first.low, first.high) == pytest.approx((second.low, second.high), abs=0.02)
    assert resampled.per_class == formulas.per_class
    assert scored(ci="bootstrap") == resampled
    assert scored(ci="bootstrap", seed=1) != resampled


@pytest.mark.parametrize(
    ("name", "losses"),
    [
        ("ce", rows()["uniform/loss"]),
        ("margin", -rows()["uniform/logit_margin"]),
        ("zero-one", rows()["uniform/prediction"] != rows()["label"]),
    ],
)
def test_the_worst_case_in_a_ball_is_that_of_the_loss_asked_for(
    name: str, losses: NDArray[np.generic]
) -> None:
    made = scored(dro_loss=name).dro
    assert [row.rho for row in made] == list(measures.RHOS)
    for row in made:
        worst = measures.worst_case(np.asarray(losses, dtype=np.float64), row.rho)
        assert row.attack_loss == name
        assert (row.loss, row.ess, row.zero_weights, row.unique) == (
            worst.value,
            worst.ess,
            worst.zero_weights,
            worst.is_unique,
        )
        assert row.worst_accuracy <= row.accuracy + 1e-12
    if name == "zero-one":
        assert [row.accuracy for row in made] == pytest.approx([row.worst_accuracy for row in made])
        assert [row.accuracy for row in made] == pytest.approx([1 - row.loss for row in made])


def test_radii_may_be_chosen_and_zero_is_the_plain_mean() -> None:
    (row,) = scored(rho=(0.0,)).dro
    assert row.loss == pytest.approx(rows()["uniform/loss"].mean(dtype=np.float64))
    assert row.accuracy == pytest.approx(not_none(scored().a_rob).value)
    assert row.worst_accuracy == not_none(scored().a_rob).value
    assert row.ess == 300


def test_without_losses_there_is_no_worst_case() -> None:
    bare = {
        name: values
        for name, values in rows().items()
        if name in ("label", "clean/prediction", "uniform/prediction")
    }
    assert scored(some=bare, per_class=False).dro == []
    assert (
        scored(some=bare, per_class=False, dro_loss="zero-one").dro
        == scored(dro_loss="zero-one").dro
    )


def test_classes_add_up_to_the_whole() -> None:
    made, some = scored(), rows()
    assert [row.label for row in made.per_class] == [0, 1, 2, 3]
    assert [row.name for row in made.per_class] == [None, "one", None, None]
    assert [row.n for row in made.per_class] == np.bincount(some["label"]).tolist()
    assert np.average(
        [not_none(row.a_rob).value for row in made.per_class],
        weights=[row.n for row in made.per_class],
    ) == pytest.approx(not_none(made.a_rob).value)
    for position, whole in enumerate(made.by_alpha):
        parts = [row.by_alpha[position] for row in made.per_class]
        assert {part.alpha_test for part in parts} == {whole.alpha_test}
        assert sum(not_none(part.share) for part in parts) == pytest.approx(1)
        assert sum(
            not_none(part.share) * not_none(part.a_sa).value for part in parts
        ) == pytest.approx(not_none(whole.a_sa).value)
    hardest = [not_none(row.by_alpha[-1].share) / row.n for row in made.per_class]
    assert hardest == sorted(hardest, reverse=True)  # class 0 was made the hardest


def test_a_class_has_the_interval_of_its_own_images_and_a_wider_one_for_all() -> None:
    for row in scored().per_class:
        hits = round(not_none(row.a_rob).value * row.n)
        assert row.a_rob == measures.wilson(hits, row.n)
        assert row.joint == measures.wilson(hits, row.n, looks=4)
        assert row.joint.low < row.a_rob.low
        assert row.joint.high > row.a_rob.high


def test_classes_without_an_attack_are_those_of_clean_images() -> None:
    made = scored(metrics=("nat",)).per_class
    assert all(
        row.a_rob is None and row.by_alpha == [] and row.joint.value == row.a_nat.value
        for row in made
    )


def test_a_class_without_images_is_left_out() -> None:
    some = rows()
    some = {name: values[some["label"] != 2] for name, values in some.items()}
    assert [row.label for row in scored(some=some).per_class] == [0, 1, 3]


@pytest.mark.parametrize("kernel", ["exp", "other"])
def test_a_repetition_needs_little_of_its_rows(kernel: str) -> None:
    some, config = rows(), msgspec.structs.replace(EVERYTHING, kernel=kernel)
    if kernel == "other":
        rng = np.random.default_rng(1)
        some |= {f"uniform/log_weight@{alpha}": rng.normal(size=300) for alpha in ALPHAS}
        some |= {f"weighted@{alpha}/log_weight": rng.normal(size=300) for alpha in ALPHAS}
    kept = scoring.keep_scoring_rows(some)
    assert not [name for name in kept if "logits" in name or name.startswith("clean/")]
    made = scoring.score_repeat(kept, config, ALPHAS, seed=7)
    assert made == scoring.score_repeat(some, config, ALPHAS, seed=7)
    whole = scoring.scores(some, config, ALPHAS, {})
    assert (made.seed, made.a_rob) == (7, not_none(whole.a_rob).value)
    assert [(row.a_sa, row.a_tr) for row in made.by_alpha] == [
        (not_none(row.a_sa).value, not_none(row.a_tr).value) for row in whole.by_alpha
    ]
