"""Bounds of accuracies contain the truth, and are attained."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from support.typed import not_none
from wmr_cli.measures import (
    VERIFIED_LOGIT_MARGIN,
    VERIFIED_MARGIN,
    Estimate,
    VerifiedMargins,
    bound_accuracy,
    bound_probability_margin,
    find_contradictions,
    weighted_accuracy,
    worst_rows,
)

ALPHAS = st.sampled_from([0.0, 0.5, 1.0, 2.0, 20.0])
STATUSES = ("certified", "broken", "unknown")


@st.composite
def possible_images(draw: st.DrawFn) -> tuple[str, float, float, float, bool]:
    """Return status, lower and upper bound, smallest margin, and whether all are correct."""
    status = draw(st.sampled_from(STATUSES))
    lower = draw(st.floats(-1, 1 if status == "certified" else 0))
    upper = draw(st.floats(-1, 0) if status == "broken" else st.floats(0, 1))
    assume(lower <= upper)
    is_correct = draw(st.booleans()) if status == "unknown" else status == "certified"
    low = max(lower, 0) if is_correct else lower
    high = upper if is_correct else min(upper, 0)
    return status, lower, upper, draw(st.floats(low, high)), is_correct


IMAGES = st.lists(possible_images(), min_size=1, max_size=12)


def make_margins(images: list[tuple[str, float, float, float, bool]]) -> VerifiedMargins:
    status, lower, upper, _, _ = (np.array(values) for values in zip(*images, strict=True))
    return VerifiedMargins(
        lower=lower.astype(np.float64),
        upper=upper.astype(np.float64),
        certified=status == "certified",
        broken=status == "broken",
        attacked=None,
    )


@given(images=IMAGES, alpha=ALPHAS)
def test_the_accuracy_of_any_possible_margins_is_within_the_bounds(
    images: list[tuple[str, float, float, float, bool]], alpha: float
) -> None:
    margins = make_margins(images)
    actual = np.array([image[3] for image in images])
    correct = np.array([image[4] for image in images])
    value = weighted_accuracy(-alpha * actual, correct).value
    lower, upper = (outcome.estimate().value for outcome in margins.sampled_outcomes(alpha))
    assert lower - 1e-9 <= value <= upper + 1e-9
    fraction = correct.mean()
    low, high = (outcome.estimate().value for outcome in margins.robust_outcomes())
    assert low - 1e-12 <= fraction <= high + 1e-12


@given(images=IMAGES, alpha=ALPHAS)
def test_bounds_are_attained_by_possible_margins(
    images: list[tuple[str, float, float, float, bool]], alpha: float
) -> None:
    margins = make_margins(images)
    lower, upper = margins.sampled_outcomes(alpha)
    for outcome in (lower, upper):
        attained = -not_none(outcome.log_weights) / alpha if alpha else margins.upper
        # possible: within the bounds, and of the sign that correctness requires
        assert ((margins.lower - 1e-9 <= attained) & (attained <= margins.upper + 1e-9)).all()
        if alpha:
            assert (np.where(outcome.correct, attained, -attained) >= -1e-9).all()
        assert (outcome.correct | ~margins.certified).all()
        assert (~outcome.correct | ~margins.broken).all()


@given(
    logits=st.lists(st.floats(-30, 30), min_size=2, max_size=6),
    slack=st.lists(st.floats(0, 10), min_size=6, max_size=6),
)
def test_a_margin_is_at_least_the_bound_from_its_differences(
    logits: list[float], slack: list[float]
) -> None:
    scores = np.array(logits)
    differences = scores[0] - scores - np.array(slack[: len(scores)])
    differences[0] = np.inf
    probabilities = np.exp(scores - scores.max())
    probabilities /= probabilities.sum()
    actual = probabilities[0] - probabilities[1:].max()
    assert bound_probability_margin(differences[None])[0] <= actual + 1e-12


@pytest.mark.parametrize(
    ("differences", "logits"),
    [
        # without slack, and none below 0: the margin itself
        ([np.inf, 1.0, 2.0, 0.5], [0.0, -1.0, -2.0, -0.5]),
        ([np.inf, 0.0, 0.0], [0.0, 0.0, 0.0]),
        # one below 0: the other classes vanish
        ([np.inf, -1.5, 2.0], [0.0, 1.5, -800.0]),
        ([np.inf, -1.5, -1.0], [0.0, 1.5, -800.0]),
    ],
)
def test_the_bound_of_a_margin_is_attained(differences: list[float], logits: list[float]) -> None:
    probabilities = np.exp(np.array(logits))
    probabilities /= probabilities.sum()
    actual = probabilities[0] - probabilities[1:].max()
    assert bound_probability_margin([differences])[0] == pytest.approx(actual, abs=1e-14)


@pytest.mark.parametrize(("least", "bound"), [(-1e4, -1.0), (-np.inf, -1.0), (1e4, 1.0)])
def test_extreme_differences_do_not_overflow(least: float, bound: float) -> None:
    assert bound_probability_margin([[least, np.inf]])[0] == bound


def make_rows(**changes: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Return rows of a certified, a broken and an unknown image."""
    rows = {
        "index": np.array([10, 11, 12]),
        "label": np.array([0, 1, 2]),
        "clean/prediction": np.array([0, 1, 2]),
        "clean/margin": np.array([0.9, 0.5, 0.4]),
        "uniform/prediction": np.array([0, 0, 2]),
        "uniform/margin": np.array([0.8, -0.2, 0.1]),
        "uniform/logit_margin": np.array([2.0, -0.4, 0.2]),
        VERIFIED_LOGIT_MARGIN: np.array([1.0, -3.0, -2.0]),
        VERIFIED_MARGIN: np.array([0.5, -0.9, -0.7]),
    }
    return rows | changes


def test_statuses_and_bounds_by_hand() -> None:
    margins = not_none(VerifiedMargins.of(make_rows()))
    assert margins.statuses.tolist() == ["certified", "broken", "unknown"]
    lower, upper = (outcome.estimate().value for outcome in margins.robust_outcomes())
    assert (lower, upper) == (1 / 3, 2 / 3)
    lower, upper = (outcome.estimate().value for outcome in margins.sampled_outcomes(2.0))
    correct = np.exp(-2 * 0.8)
    assert lower == pytest.approx(correct / (correct + np.exp(2 * 0.9) + np.exp(2 * 0.7)))
    correct = np.exp(-2 * 0.5) + 1
    assert upper == pytest.approx(correct / (correct + np.exp(2 * 0.2)))
    fixed = not_none(margins.fixed_outcomes(2.0))
    weights = np.exp(-2 * np.array([0.8, -0.2, 0.1]))
    assert fixed.lower.estimate().value == pytest.approx(weights[0] / weights.sum())
    assert fixed.upper.estimate().value == pytest.approx(1 - weights[1] / weights.sum())


def test_an_image_that_is_misclassified_without_an_attack_is_broken() -> None:
    rows = make_rows(**{"clean/prediction": np.array([0, 1, 0]), "clean/margin": np.zeros(3)})
    assert not_none(VerifiedMargins.of(rows)).statuses.tolist()[2] == "broken"


def test_attacks_without_margins_bound_by_clean_margins() -> None:
    rows = make_rows()
    del rows["uniform/margin"], rows["uniform/logit_margin"]
    margins = not_none(VerifiedMargins.of(rows))
    assert margins.upper.tolist() == [0.9, 0.0, 0.4]
    assert margins.fixed_outcomes(1.0) is None


@pytest.mark.parametrize(
    ("name", "values", "image"),
    [
        ("uniform/prediction", [2, 0, 2], 0),
        ("clean/prediction", [1, 1, 2], 0),
        ("weighted@2.0/prediction", [1, 0, 0], 0),
        ("uniform/margin", [0.4, -0.2, 0.1], 0),
        ("weighted@2.0/margin", [0.6, -0.2, -0.8], 2),
    ],
)
def test_an_image_below_its_verified_bound_is_a_contradiction(
    name: str, values: list[float], image: int
) -> None:
    assert not not_none(find_contradictions(make_rows())).any()
    found = not_none(find_contradictions(make_rows(**{name: np.array(values)})))
    assert found.nonzero()[0].tolist() == [image]


def test_rows_without_a_verifier_have_no_bounds() -> None:
    rows = {name: part for name, part in make_rows().items() if not name.startswith("certify/")}
    assert VerifiedMargins.of(rows) is None
    assert find_contradictions(rows) is None


def test_the_worst_case_over_attacks_keeps_the_verified_bounds() -> None:
    other = make_rows(
        **{
            "uniform/prediction": np.array([0, 1, 1]),
            "uniform/margin": np.array([0.7, 0.3, -0.3]),
            "uniform/logit_margin": np.array([1.5, 0.9, -0.5]),
        }
    )
    margins = not_none(VerifiedMargins.of(worst_rows([make_rows(), other])))
    assert margins.statuses.tolist() == ["certified", "broken", "broken"]
    assert margins.upper.tolist() == [0.7, -0.2, -0.3]


def test_a_bound_without_an_interval_gets_one() -> None:
    nothing = Estimate(0.0, 0.0, 0.0, 50.0)
    everything = Estimate(1.0, 1.0, 1.0, 50.0)
    both = bound_accuracy(nothing, everything, 100)
    assert (both.low, both.lower, both.upper, both.high) == (0, 0, 1, 1)
    certain = bound_accuracy(everything, everything, 100)
    assert 0.9 < certain.low < certain.lower == certain.upper == certain.high == 1


def test_the_interval_contains_both_bounds() -> None:
    # a bootstrap interval need not contain its value
    found = bound_accuracy(Estimate(0.3, 0.31, 0.4), Estimate(0.5, 0.4, 0.49), 100)
    assert (found.low, found.high) == (0.3, 0.5)
