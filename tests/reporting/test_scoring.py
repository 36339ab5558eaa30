"""Scores and caveats of a record, from synthetic rows."""

from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from support import synthetic
from support.typed import not_none
from wmr_cli import measures
from wmr_cli.config import EvaluateConfig
from wmr_cli.measures import Estimate
from wmr_cli.reporting import scoring
from wmr_cli.reporting.scoring import Scores, list_caveats
from wmr_cli.storage.records import AlphaRow, Record, Rows

ALPHAS = [0.0, 1.0, 2.0]
EVERYTHING = EvaluateConfig(metrics=("nat", "rob", "sa", "tr", "dro"), per_class=True)


def rows(size: int = 300, classes: int = 4, seed: int = 0) -> Rows:
    """Return rows of a model whose accuracy increases with the label."""
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


def score(
    config: EvaluateConfig = EVERYTHING,
    given: Rows | None = None,
    **changes: Any,
) -> Scores:
    return scoring.compute_scores(
        given or rows(), msgspec.structs.replace(config, **changes), ALPHAS, {1: "one"}
    )


def test_accuracies_are_those_of_the_measures() -> None:
    scores = score()
    assert scores.a_nat == measures.accuracy(rows(), "clean")
    assert scores.a_rob == measures.accuracy(rows(), "uniform")
    assert [row.alpha_test for row in scores.by_alpha] == ALPHAS
    assert [row.a_sa for row in scores.by_alpha] == [
        measures.sampled_accuracy(rows(), "exp", alpha) for alpha in ALPHAS
    ]
    assert [row.a_tr for row in scores.by_alpha] == [
        measures.crafted_accuracy(rows(), "exp", alpha) for alpha in ALPHAS
    ]
    assert not_none(scores.by_alpha[0].a_sa).value == not_none(scores.a_rob).value


def test_only_requested_metrics_are_scored() -> None:
    natural = score(metrics=("nat",), per_class=False)
    assert natural[1:] == (None, [], [], [])
    sampled = score(metrics=("sa",), per_class=False)
    assert sampled.a_rob is None
    assert all(row.a_sa is not None and row.a_tr is None for row in sampled.by_alpha)


def test_bootstrap_changes_only_the_intervals() -> None:
    formulas = score()
    resampled = score(ci="bootstrap")
    pairs = [(formulas.a_nat, resampled.a_nat), (formulas.a_rob, resampled.a_rob)]
    for row, other in zip(formulas.by_alpha, resampled.by_alpha, strict=True):
        pairs += [(row.a_sa, other.a_sa), (row.a_tr, other.a_tr)]
    for estimates in pairs:
        first, second = map(not_none, estimates)
        assert (first.value, first.ess) == (second.value, second.ess)
        assert (first.low, first.high) != (second.low, second.high)
        assert (first.low, first.high) == pytest.approx((second.low, second.high), abs=0.02)
    assert resampled.per_class == formulas.per_class
    assert score(ci="bootstrap") == resampled
    assert score(ci="bootstrap", seed=1) != resampled


@pytest.mark.parametrize(
    ("name", "losses"),
    [
        ("ce", rows()["uniform/loss"]),
        ("margin", -rows()["uniform/logit_margin"]),
        ("zero-one", rows()["uniform/prediction"] != rows()["label"]),
    ],
)
def test_worst_case_maximises_the_requested_loss(name: str, losses: NDArray[np.generic]) -> None:
    cases = score(dro_loss=name).dro
    assert [row.rho for row in cases] == list(measures.RHOS)
    for row in cases:
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
        assert [row.accuracy for row in cases] == pytest.approx(
            [row.worst_accuracy for row in cases]
        )
        assert [row.accuracy for row in cases] == pytest.approx([1 - row.loss for row in cases])


def test_worst_case_at_radius_zero_is_the_plain_mean() -> None:
    (row,) = score(rho=(0.0,)).dro
    assert row.loss == pytest.approx(rows()["uniform/loss"].mean(dtype=np.float64))
    assert row.accuracy == pytest.approx(not_none(score().a_rob).value)
    assert row.worst_accuracy == not_none(score().a_rob).value
    assert row.ess == 300


def test_worst_case_needs_losses() -> None:
    bare = {
        name: values
        for name, values in rows().items()
        if name in ("label", "clean/prediction", "uniform/prediction")
    }
    assert score(given=bare, per_class=False).dro == []
    assert (
        score(given=bare, per_class=False, dro_loss="zero-one").dro
        == score(dro_loss="zero-one").dro
    )


def test_weighted_mean_of_classes_is_the_total() -> None:
    scores = score()
    assert [row.label for row in scores.per_class] == [0, 1, 2, 3]
    assert [row.name for row in scores.per_class] == [None, "one", None, None]
    assert [row.n for row in scores.per_class] == np.bincount(rows()["label"]).tolist()
    assert np.average(
        [not_none(row.a_rob).value for row in scores.per_class],
        weights=[row.n for row in scores.per_class],
    ) == pytest.approx(not_none(scores.a_rob).value)
    for position, whole in enumerate(scores.by_alpha):
        parts = [row.by_alpha[position] for row in scores.per_class]
        assert {part.alpha_test for part in parts} == {whole.alpha_test}
        assert sum(not_none(part.share) for part in parts) == pytest.approx(1)
        assert sum(
            not_none(part.share) * not_none(part.a_sa).value for part in parts
        ) == pytest.approx(not_none(whole.a_sa).value)
    weight_per_image = [not_none(row.by_alpha[-1].share) / row.n for row in scores.per_class]
    # class 0 has the smallest margins
    assert weight_per_image == sorted(weight_per_image, reverse=True)


def test_joint_interval_of_a_class_is_wider_than_its_own() -> None:
    for row in score().per_class:
        hits = round(not_none(row.a_rob).value * row.n)
        assert row.a_rob == measures.wilson(hits, row.n)
        assert row.joint == measures.wilson(hits, row.n, num_intervals=4)
        assert row.joint.low < row.a_rob.low
        assert row.joint.high > row.a_rob.high


def test_classes_without_attack_are_scored_on_clean_images() -> None:
    classes = score(metrics=("nat",)).per_class
    assert all(
        row.a_rob is None and row.by_alpha == [] and row.joint.value == row.a_nat.value
        for row in classes
    )


def test_class_without_images_is_left_out() -> None:
    all_rows = rows()
    kept = {name: values[all_rows["label"] != 2] for name, values in all_rows.items()}
    assert [row.label for row in score(given=kept).per_class] == [0, 1, 3]


@pytest.mark.parametrize("kernel", ["exp", "other"])
def test_kept_rows_of_a_repetition_give_the_same_scores(kernel: str) -> None:
    all_rows = rows()
    config = msgspec.structs.replace(EVERYTHING, kernel=kernel)
    if kernel == "other":
        rng = np.random.default_rng(1)
        all_rows |= {f"uniform/log_weight@{alpha}": rng.normal(size=300) for alpha in ALPHAS}
        all_rows |= {f"weighted@{alpha}/log_weight": rng.normal(size=300) for alpha in ALPHAS}
    kept = scoring.keep_scoring_rows(all_rows)
    assert not [name for name in kept if "logits" in name or name.startswith("clean/")]
    repeat = scoring.score_repeat(kept, config, ALPHAS, seed=7)
    assert repeat == scoring.score_repeat(all_rows, config, ALPHAS, seed=7)
    whole = scoring.compute_scores(all_rows, config, ALPHAS, {})
    assert (repeat.seed, repeat.a_rob) == (7, not_none(whole.a_rob).value)
    assert [(row.a_sa, row.a_tr) for row in repeat.by_alpha] == [
        (not_none(row.a_sa).value, not_none(row.a_tr).value) for row in whole.by_alpha
    ]


def change_record(images: int = 1000, **changes: Any) -> Record:
    record = synthetic.make_record(synthetic.make_rows(60), alphas=())
    dataset = msgspec.structs.replace(record.dataset, n=images)
    return msgspec.structs.replace(record, dataset=dataset, **changes)


@pytest.mark.parametrize(
    ("ess", "images", "warns"),
    [
        (35, 36, False),
        (3.5, 36, True),
        (99, 199, False),
        (99, 200, True),
        (150, 1000, False),
        (150, 2000, True),
        (120, 1000, False),
    ],
)
def test_low_effective_sample_size_is_a_caveat(ess: float, images: int, warns: bool) -> None:
    row = AlphaRow(alpha_test=1.0, a_sa=Estimate(0.4, 0.3, 0.5, ess), a_tr=None)
    caveats = list(list_caveats(change_record(images, by_alpha=[row])))
    assert len(caveats) == warns
    assert all("A_sa(1)" in text and f"{ess:.0f} of {images}" in text for text in caveats)


def test_degenerate_accuracy_is_a_caveat() -> None:
    (caveat,) = list_caveats(change_record(a_nat=Estimate(1.0, 1.0, 1.0)))
    assert "A_nat" in caveat


@pytest.mark.parametrize("combined", [None, ["0", "1"]])
def test_missing_worst_case_is_a_caveat(combined: list[str] | None) -> None:
    record = change_record(config={"metrics": ["rob", "dro"]})
    attack = msgspec.structs.replace(record.attack, of=combined)
    (caveat,) = list_caveats(msgspec.structs.replace(record, attack=attack))
    assert "`dro_loss=zero-one`" in caveat
    assert list(list_caveats(msgspec.structs.replace(record, dro=score().dro))) == []
