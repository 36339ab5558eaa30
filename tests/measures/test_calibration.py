"""The worst of several attacks, and how A_sa depends on the scale of logits."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from support import calibrated_populations as populations
from wmr_cli import measures
from wmr_cli.core.losses import probability_margin
from wmr_cli.errors import BadInput

LABEL = np.array([0, 1, 2, 0])


def attacked(scores: list[list[int]], **more: Any) -> dict[str, NDArray[Any]]:
    logits = np.asarray(scores, dtype=np.float32)
    true = np.take_along_axis(logits, LABEL[:, None], 1)[:, 0]
    others = logits.copy()
    others[np.arange(4), LABEL] = -np.inf
    rows: dict[str, NDArray[Any]] = {
        "index": np.arange(4),
        "label": LABEL,
        "clean/prediction": LABEL,
        "uniform/prediction": logits.argmax(1),
    }
    return rows | {"uniform/logit_margin": true - others.max(1), "uniform/logits": logits, **more}


STRONG = attacked([[1, 2, 0], [0, 3, 0], [1, 0, 2], [3, 0, 0]])
WEAK = attacked([[4, 0, 0], [0, 1, 0], [3, 0, 1], [2, 0, 0]])


def test_worst_rows_take_the_strongest_attack_per_image() -> None:
    worst = measures.worst_rows([STRONG, WEAK])
    assert worst["uniform/logits"].tolist() == [[1, 2, 0], [0, 1, 0], [3, 0, 1], [2, 0, 0]]
    assert worst["uniform/prediction"].tolist() == [1, 1, 0, 0]
    assert worst["clean/prediction"].tolist() == LABEL.tolist()


def test_the_order_of_attacks_does_not_matter() -> None:
    one, other = measures.worst_rows([STRONG, WEAK]), measures.worst_rows([WEAK, STRONG])
    assert all(np.array_equal(one[name], other[name]) for name in one)


def test_worst_case_with_an_attack_without_margins_has_only_predictions() -> None:
    blunt = {
        name: values
        for name, values in WEAK.items()
        if name in ("index", "label", "clean/prediction", "uniform/prediction")
    }
    worst = measures.worst_rows([STRONG, blunt])
    assert sorted(name for name in worst if name.startswith("uniform/")) == ["uniform/prediction"]
    assert (worst["uniform/prediction"] == LABEL).tolist() == [False, True, False, True]


def test_rows_of_other_images_are_refused() -> None:
    with pytest.raises(ValueError, match="different images"):
        measures.worst_rows([STRONG, WEAK | {"index": np.arange(4) + 1}])


def test_margins_at_temperature_one_are_unchanged() -> None:
    import torch

    logits = np.random.default_rng(0).normal(size=(50, 4))
    labels = np.arange(50) % 4
    usual = probability_margin(torch.from_numpy(logits), torch.from_numpy(labels)).numpy()
    assert np.allclose(measures.probability_margins(logits, labels), usual, atol=1e-15)


@settings(deadline=None)
@given(st.integers(0, 10_000), st.floats(0.1, 5.0))
def test_higher_temperature_moves_a_sa_towards_a_rob(seed: int, alpha: float) -> None:
    rng = np.random.default_rng(seed)
    logits, label = rng.normal(size=(60, 5)) * 3, rng.integers(5, size=60)
    rows = {"label": label, "uniform/logits": logits, "uniform/prediction": logits.argmax(1)}
    huge = measures.tempered_accuracy(rows, alpha, 1e6).value
    plain = np.mean(logits.argmax(1) == label)
    assert huge == pytest.approx(plain, abs=1e-4)
    assert measures.tempered_accuracy(rows, alpha, 1.0).value <= plain + 1e-12


def cross_entropy(logits: np.ndarray, label: np.ndarray, temperature: float) -> float:
    scaled = logits / temperature
    return float(
        np.mean(np.logaddexp.reduce(scaled, axis=1) - scaled[np.arange(len(label)), label])
    )


@settings(deadline=None)
@given(st.integers(0, 10_000), st.floats(-6.0, 6.0), st.floats(0.3, 3.0))
def test_calibrated_accuracy_is_invariant_to_scale(
    seed: int, exponent: float, signal: float
) -> None:
    rng = np.random.default_rng(seed)
    label = rng.integers(4, size=90)
    logits = rng.normal(size=(90, 4)) + signal * np.eye(4)[label]
    logits[0] = -np.eye(4)[label[0]]  # at least one is misclassified
    scaled = logits * 10.0**exponent
    found = measures.calibrating_temperature(logits, label)
    near = [cross_entropy(logits, label, found * factor) for factor in (0.99, 1.0, 1.01)]
    assert found == np.inf or near[1] <= min(near) + 1e-12
    assert measures.calibrating_temperature(scaled, label) == pytest.approx(found * 10.0**exponent)
    rows, other = (
        {"label": label, "uniform/logits": each, "uniform/prediction": each.argmax(1)}
        for each in (logits, scaled)
    )
    expected = measures.tempered_accuracy(rows, 2.0, found)
    if found < np.inf:
        calibrated, scaled_too = (measures.calibrated_accuracy(one, 2.0) for one in (rows, other))
        assert calibrated.value == expected.value
        ends = [scaled_too.value, scaled_too.low, scaled_too.high]
        assert ends == pytest.approx([calibrated.value, calibrated.low, calibrated.high])
    loss, margin = (measures.calibrated_losses(rows, name) for name in ("ce", "margin"))
    assert loss.mean() == pytest.approx(cross_entropy(logits, label, found))
    assert np.array_equal(margin < 0, logits.argmax(1) == label) or found == np.inf
    assert measures.calibrated_losses(other, "ce") == pytest.approx(loss)
    assert measures.calibrated_losses(other, "margin") == pytest.approx(margin)


def test_calibrated_losses_are_those_of_tempered_logits() -> None:
    rows = {
        "label": np.array([0, 1, 1]),
        "uniform/logits": np.array([[4.0, 0.0], [2.0, 0.0], [0.0, 6.0]]),
    }
    temperature = measures.calibrating_temperature(rows["uniform/logits"], rows["label"])
    margins = np.array([4.0, -2.0, 6.0]) / temperature
    assert measures.calibrated_losses(rows, "margin") == pytest.approx(-margins)
    assert measures.calibrated_losses(rows, "ce") == pytest.approx(np.log1p(np.exp(-margins)))
    with pytest.raises(ValueError, match="zero-one"):
        measures.calibrated_losses(rows, "zero-one")


def test_temperature_without_a_minimum() -> None:
    flawless, hopeless = np.array([[3.0, 1.0], [0.0, 2.0]]), np.array([[1.0, 3.0], [2.0, 0.0]])
    assert measures.calibrating_temperature(flawless, [0, 1]) == 1
    assert measures.calibrating_temperature(hopeless, [0, 1]) == np.inf


@settings(deadline=None)
@given(st.integers(0, 10_000), st.floats(0.0, 5.0))
def test_ranked_accuracy_depends_only_on_the_number_of_correct_images(
    seed: int, alpha: float
) -> None:
    rng = np.random.default_rng(seed)
    margin = rng.normal(size=(2, 60))
    num_misclassified = 20
    margin = (
        np.sort(margin, axis=1) - np.sort(margin, axis=1)[:, [num_misclassified]] + 1e-9
    )  # twenty of sixty below 0
    rows = [
        {
            "label": np.zeros(60, int),
            "uniform/prediction": (each < 0).astype(int),
            "uniform/logit_margin": each,
        }
        for each in map(rng.permutation, margin)
    ]
    one, other = (measures.ranked_accuracy(each, alpha).value for each in rows)
    assert one == pytest.approx(other)


@pytest.mark.parametrize("scale", [0.01, 1.0, 50.0])
def test_ranked_accuracy_is_invariant_to_scale(scale: float) -> None:
    rng = np.random.default_rng(1)
    logits, label = rng.normal(size=(80, 3)), rng.integers(3, size=80)
    true = logits[np.arange(80), label]
    others = logits.copy()
    others[np.arange(80), label] = -np.inf
    margin = true - others.max(1)
    rows = {"label": label, "uniform/prediction": logits.argmax(1), "uniform/logit_margin": margin}
    expected = measures.ranked_accuracy(rows, 2.0)
    assert (
        measures.ranked_accuracy(rows | {"uniform/logit_margin": margin * scale}, 2.0) == expected
    )
    assert measures.ranked_accuracy(rows, 0.0).value == pytest.approx(
        np.mean(logits.argmax(1) == label)
    )


def test_equal_margins_have_equal_ranks() -> None:
    rows = {
        "label": LABEL,
        "uniform/prediction": np.array([0, 0, 0, 0]),
        "uniform/logit_margin": np.zeros(4),
    }
    assert measures.ranked_accuracy(rows, 9.0).value == 0.5


def test_temperature_must_be_positive() -> None:
    with pytest.raises(ValueError, match="not positive"):
        measures.probability_margins([[0.0, 1.0]], [0], 0.0)


def test_compact_rows_allow_no_other_temperature() -> None:
    compact = {name: values for name, values in STRONG.items() if name != "uniform/logits"}
    for compute in (
        lambda: measures.tempered_accuracy(compact, 1.0, 2.0),
        lambda: measures.calibrated_accuracy(compact, 1.0),
        lambda: measures.calibrated_losses(compact, "ce"),
    ):
        with pytest.raises(BadInput) as refused:
            compute()
        assert "rows=full" in str(refused.value.hint)
    assert measures.calibrate(compact).problem == measures.NO_LOGITS
    assert measures.ranked_accuracy(compact, 1.0) == measures.ranked_accuracy(STRONG, 1.0)


def make_attacked_rows(logits: ArrayLike, label: ArrayLike) -> dict[str, NDArray[Any]]:
    values = np.asarray(logits, dtype=np.float64)
    return {
        "label": np.asarray(label),
        "uniform/logits": values,
        "uniform/prediction": values.argmax(1),
    }


def refit_accuracy(
    rows: dict[str, NDArray[Any]], alpha: float, counts: NDArray[np.float64]
) -> float:
    """Return A_cal of a set that has each image `counts` times, by golden-section search."""
    logits, label = rows["uniform/logits"], rows["label"]
    images = np.arange(len(label))

    def loss(log_inverse: float) -> float:
        scaled = logits * np.exp(log_inverse)
        return float(counts @ (np.logaddexp.reduce(scaled, axis=1) - scaled[images, label]))

    low, high = -6.0, 6.0
    golden = (np.sqrt(5) - 1) / 2
    while high - low > 1e-7:
        first, second = high - golden * (high - low), low + golden * (high - low)
        if loss(first) < loss(second):
            high = second
        else:
            low = first
    margins = measures.probability_margins(logits, label, float(np.exp(-low)))
    weights = counts * np.exp(-alpha * margins)
    return float(weights @ (rows["uniform/prediction"] == label) / weights.sum())


@pytest.mark.parametrize("alpha", [0.5, 2.0, 5.0])
def test_the_interval_follows_from_the_influence_of_every_image(alpha: float) -> None:
    (rows,) = populations.draw_rows([populations.POPULATIONS["A_rob 56 %"]], 40, seed=3)
    found = measures.calibrated_accuracy(rows, alpha)
    step = 1e-3
    influences = []
    for image in range(40):
        sides = [np.ones(40), np.ones(40)]
        sides[0][image] += step
        sides[1][image] -= step
        more, less = (refit_accuracy(rows, alpha, counts) for counts in sides)
        influences.append((more - less) / (2 * step))
    deviation = np.sqrt(np.square(influences).sum())
    half = 1.959963984540054 * deviation / (found.value * (1 - found.value))
    centre = np.log(found.value / (1 - found.value))
    assert found.value == pytest.approx(refit_accuracy(rows, alpha, np.ones(40)), abs=1e-6)
    assert found.low == pytest.approx(1 / (1 + np.exp(half - centre)), abs=1e-4)
    assert found.high == pytest.approx(1 / (1 + np.exp(-half - centre)), abs=1e-4)


def test_resamples_fit_the_temperature_again() -> None:
    networks = [populations.POPULATIONS["A_rob 56 %"], populations.POPULATIONS["A_rob 92 %"]]
    drawn = populations.draw_rows(networks, 300, seed=1)
    outcomes = [populations.make_outcome(measures.calibrate(rows), 2.0) for rows in drawn]
    found = measures.Resamples(300, seed=5, resamples=20).of(outcomes)
    counts = np.random.default_rng(5).poisson(1.0, (20, 300)).astype(np.float64)
    for rows, outcome, resampled in zip(drawn, outcomes, found, strict=True):
        exact = [refit_accuracy(rows, 2.0, one) for one in counts]
        fixed = measures.Resamples(300, seed=5, resamples=20).of(
            [populations.make_outcome(measures.calibrate(rows), 2.0, has_fit=False)]
        )
        # a Newton step leaves a small part of what a given temperature leaves out
        errors = np.abs(resampled.resampled_values - exact)
        assert errors.mean() < 0.2 * np.abs(fixed[0].resampled_values - exact).mean()
        (estimate,) = measures.bootstrap([outcome], seed=5, resamples=20)
        assert [estimate.low, estimate.high] == pytest.approx(
            np.quantile(resampled.resampled_values, (0.025, 0.975))
        )


FLAWLESS = make_attacked_rows([[3.0, 1.0], [0.0, 2.0]], [0, 1])
HOPELESS = make_attacked_rows([[1.0, 3.0], [2.0, 0.0]], [0, 1])
UNINFORMATIVE = make_attacked_rows([[1.0, 3.0], [2.0, 0.0], [0.0, 0.1]], [0, 1, 1])
TIED = make_attacked_rows([[1.0, 1.0], [1.0, 1.0], [0.0, 3.0]], [0, 1, 1])


@pytest.mark.parametrize(
    ("rows", "value"),
    [
        (FLAWLESS, 1.0),
        (HOPELESS, 0.0),
        (make_attacked_rows([[3.0, 1.0]], [0]), 1.0),
        (make_attacked_rows([[3.0, 1.0]], [1]), 0.0),
        # a finite temperature fits, and no image is correct
        (make_attacked_rows([[0.0, 3.0, 2.9], [1.0, 0.9, -4.0]], [2, 1]), 0.0),
    ],
)
def test_images_that_are_all_correct_or_misclassified_need_no_temperature(
    rows: dict[str, NDArray[Any]], value: float
) -> None:
    found = measures.calibrated_accuracy(rows, 2.0)
    assert (found.value, found.degenerate) == (value, True)


@pytest.mark.parametrize("rows", [UNINFORMATIVE, TIED])
def test_a_temperature_at_a_boundary_gives_no_number_except_at_alpha_0(
    rows: dict[str, NDArray[Any]],
) -> None:
    calibration = measures.calibrate(rows)
    assert calibration.temperature is None
    assert calibration.problem
    assert calibration.outcome(2.0) is None
    with pytest.raises(BadInput):
        measures.calibrated_accuracy(rows, 2.0)
    correct = np.mean(rows["uniform/prediction"] == rows["label"])
    assert measures.calibrated_accuracy(rows, 0.0).value == correct


def test_alpha_0_gives_a_rob_with_the_interval_of_a_sa() -> None:
    (rows,) = populations.draw_rows([populations.POPULATIONS["A_rob 36 %"]], 77, seed=2)
    found = measures.calibrated_accuracy(rows, 0.0)
    assert found.value == np.mean(rows["uniform/prediction"] == rows["label"])
    assert found == measures.tempered_accuracy(rows, 0.0, 1.0)


def test_images_of_a_single_class_are_calibrated() -> None:
    (rows,) = populations.draw_rows([populations.POPULATIONS["A_rob 56 %"]], 2000, seed=2)
    one_class = {name: values[rows["label"] == 3] for name, values in rows.items()}
    assert measures.calibrate(one_class).temperature == pytest.approx(0.9, abs=0.2)


@pytest.mark.parametrize(
    ("rows", "kernel"),
    [
        (make_attacked_rows([[np.inf, 1.0], [0.0, 2.0]], [1, 1]), "exp"),
        (FLAWLESS, "none"),
    ],
)
def test_other_weights_and_infinite_logits_are_not_calibrated(
    rows: dict[str, NDArray[Any]], kernel: str
) -> None:
    calibration = measures.calibrate(rows, kernel)
    assert calibration.problem
    assert calibration.outcome(0.0) is None


ALPHAS = (0.5, 1.0, 2.0, 5.0)


def test_intervals_hold_the_truth_as_often_as_they_should() -> None:
    network = populations.POPULATIONS["A_rob 36 %"]
    with_fit, given = populations.measure_coverage(network, 150, ALPHAS, samples=250)
    assert (with_fit >= 0.92).all()
    assert (with_fit <= 0.98).all()
    # as if the temperature had been known, the interval would be far too wide
    assert given[ALPHAS.index(2.0)] > 0.985


def test_paired_intervals_hold_the_truth_as_often_as_they_should() -> None:
    first = populations.POPULATIONS["A_rob 56 %"]
    other = populations.Network(signal=2.3, spread=1.5, rivalry=1.0, scale=3.0)
    with_fit, given = populations.measure_paired_coverage((first, other), 100, (1.0, 2.0), 120)
    assert (with_fit >= 0.9).all()
    assert (with_fit <= 0.98).all()
    assert given[1] > 0.98
