"""The worst case over χ² balls against closed forms, the dual, the paper and a solver."""

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from wmr_cli.measures import RHOS, worst_accuracy, worst_case, worst_cases

real = st.floats(-100, 100, allow_subnormal=False)
tied = st.integers(-3, 3).map(float)
bits = st.sampled_from([0.0, 1.0])
losses = st.one_of(*(st.lists(one, min_size=1, max_size=40) for one in (real, tied, bits)))
radius = st.one_of(
    st.sampled_from([0.0, *RHOS, 1e-14, 3.0]), st.floats(0, 25, allow_subnormal=False)
)


def dual(values: NDArray[np.float64], rho: float) -> float:
    """min over t of t + sqrt(1 + 2 rho) * root mean square of (l - t)+, by a search over t."""

    def height(t: float) -> float:
        return t + math.sqrt(1 + 2 * rho) * math.sqrt(np.mean(np.maximum(values - t, 0) ** 2))

    spread = max(np.ptp(values), 1e-12)
    low = values.mean() - spread * (1 + 2 / math.sqrt(2 * rho))
    found = minimize_scalar(
        height, bounds=(low, values.max()), method="bounded", options={"xatol": 1e-9 * spread}
    )
    return float(min(found.fun, height(values.max()), height(low)))


@pytest.mark.parametrize(
    ("given", "rho", "weights", "value"),
    [
        ((0, 1, 2, 3), 0.2, (0.0378680, 0.1792893, 0.3207107, 0.4621320), 2.2071068),
        ((3, 0, 2, 1), 0.2, (0.4621320, 0.0378680, 0.3207107, 0.1792893), 2.2071068),
        ((0, 1, 2, 3), 1.5, (0, 0, 0, 1), 3),
        ((0, 1, 2, 3), 400.0, (0, 0, 0, 1), 3),
        ((0, 1, 2, 3), 0.0, (0.25, 0.25, 0.25, 0.25), 1.5),
        ((1, 1, 0, 0), 0.1, (0.3618034, 0.3618034, 0.1381966, 0.1381966), 0.7236068),
        ((1, 1, 0, 0), 0.5, (0.5, 0.5, 0, 0), 1),
        ((1, 1, 0, 0), 0.7, (0.5, 0.5, 0, 0), 1),
        ((2, 2, 2), 0.3, (1 / 3, 1 / 3, 1 / 3), 2),
        ((7,), 0.3, (1,), 7),
    ],
)
def test_vectors(
    given: tuple[int, ...], rho: float, weights: tuple[float, ...], value: float
) -> None:
    found = worst_case(given, rho)
    assert found.weights == pytest.approx(weights, abs=5e-8)
    assert found.value == pytest.approx(value, abs=5e-8)


@settings(deadline=None)
@given(losses, radius)
def test_weights_are_feasible_and_match_the_reported_facts(values: list[float], rho: float) -> None:
    found, size = worst_case(values, rho), len(values)
    assert (found.weights >= 0).all()
    assert found.weights.sum() == pytest.approx(1, abs=1e-12)
    distance = size * np.sum((found.weights - 1 / size) ** 2) / 2
    assert distance <= rho * (1 + 1e-9) + 1e-12
    assert found.value == pytest.approx(found.weights @ values, rel=1e-9, abs=1e-9)
    assert found.zero_weights == np.count_nonzero(found.weights == 0)
    assert found.ess == pytest.approx(1 / np.sum(found.weights**2), rel=1e-6)
    if found.binds:
        assert found.ess == size / (1 + 2 * rho)
        assert distance == pytest.approx(rho, rel=1e-6, abs=1e-12)
    shares = [
        {weight for weight, other in zip(found.weights, values, strict=True) if other == value}
        for value in set(values)
    ]
    assert all(len(of_one_value) == 1 for of_one_value in shares)  # tied images have equal weights


@settings(deadline=None)
@given(losses, radius.filter(lambda rho: rho > 1e-6))
def test_dual_proves_that_no_weights_are_worse(losses: list[float], rho: float) -> None:
    values = np.array(losses)
    assert worst_case(values, rho).value == pytest.approx(
        dual(values, rho), rel=1e-7, abs=1e-7 * max(1.0, np.ptp(values))
    )


@settings(deadline=None)
@given(st.lists(real, min_size=2, max_size=40), st.floats(0.001, 0.999))
def test_value_is_mean_plus_scaled_deviation_before_clipping(
    losses: list[float], part: float
) -> None:
    values = np.array(losses)
    assume(values.std() > 1e-6)
    rho = part * (values.std() / (values.mean() - values.min())) ** 2 / 2
    found = worst_case(values, rho)
    assert found.value == pytest.approx(
        values.mean() + math.sqrt(2 * rho) * values.std(), rel=1e-10, abs=1e-10
    )
    expected = (1 + math.sqrt(2 * rho) * (values - values.mean()) / values.std()) / len(values)
    assert found.weights == pytest.approx(expected, abs=1e-10)
    assert found.zero_weights == 0


def test_clipping_begins_at_the_theoretical_radius() -> None:
    onset = (1.118034 / 1.5) ** 2 / 2
    assert onset == pytest.approx(0.277778, abs=1e-6)
    assert worst_case([0, 1, 2, 3], onset - 1e-4).zero_weights == 0
    assert worst_case([0, 1, 2, 3], onset + 1e-4).zero_weights == 1


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=60), radius)
def test_the_zero_one_loss_has_its_closed_form(correct: list[bool], rho: float) -> None:
    error = 1 - np.mean(correct)
    found = worst_case(1.0 - np.array(correct), rho)
    assert found.value == pytest.approx(
        min(1, error + math.sqrt(2 * rho * error * (1 - error))), abs=1e-9
    )
    assert worst_accuracy(correct, rho) == pytest.approx(1 - found.value, abs=1e-9)
    assert found.accuracy(correct) == pytest.approx(1 - found.value, abs=1e-9)


@settings(deadline=None)
@given(losses, st.lists(st.booleans(), min_size=40, max_size=40), radius)
def test_no_weights_in_the_ball_give_less_than_the_worst_accuracy(
    values: list[float], hits: list[bool], rho: float
) -> None:
    hits = hits[: len(values)]
    assert worst_accuracy(hits, rho) <= worst_case(values, rho).accuracy(hits) + 1e-9


@settings(deadline=None)
@given(losses)
def test_the_value_rises_with_rho_and_is_concave_in_its_root(values: list[float]) -> None:
    roots = np.linspace(0, 3, 61)
    curve = np.array([found.value for found in worst_cases(values, roots**2)])
    rises = np.diff(curve)
    slack = 1e-9 * max(1.0, np.ptp(values))
    assert curve[0] == pytest.approx(np.mean(values), abs=1e-9)
    assert (rises >= -slack).all()
    assert (np.diff(rises) <= slack).all()


def test_worst_cases_follow_the_order_of_radii() -> None:
    values = np.random.default_rng(0).normal(size=100)
    curve = list(worst_cases(values, (1.0, 0.01, 0.3)))
    assert [found.rho for found in curve] == [1.0, 0.01, 0.3]
    for found in curve:
        alone = worst_case(values, found.rho)
        assert found.value == alone.value
        assert np.array_equal(found.weights, alone.weights)


@pytest.mark.parametrize("rho", [0.05, 0.5, 5.0])
def test_worst_case_is_equivariant_to_offset_and_scale(rho: float) -> None:
    values = np.random.default_rng(1).exponential(size=500)
    plain = worst_case(values, rho)
    shifted = worst_case(values + 1e6, rho)
    assert shifted.value - 1e6 == pytest.approx(plain.value, abs=1e-8)
    assert shifted.weights == pytest.approx(plain.weights, abs=1e-8)
    for scale in (1e-200, 1e200):
        assert worst_case(values * scale, rho).value == pytest.approx(
            plain.value * scale, rel=1e-12
        )


def test_losses_of_extreme_range_do_not_overflow() -> None:
    assert worst_case([1.5e308, 0, -1.5e308], 0.2).value == pytest.approx(
        1.5e308 * worst_case([1, 0, -1], 0.2).value, rel=1e-12
    )
    assert worst_case([0, -1e-200, -1], 0.4).weights[2] == pytest.approx(
        worst_case([0, 0, -1], 0.4).weights[2]
    )


def test_float32_losses_are_taken_in_float64() -> None:
    values = np.random.default_rng(2).exponential(size=1000).astype(np.float32)
    found = worst_case(values, 0.3)
    assert found.weights.dtype == np.float64
    assert found.value == worst_case(values.astype(np.float64), 0.3).value


def test_a_tiny_radius_is_not_lost_in_rounding() -> None:
    values = np.arange(4.0)
    assert worst_case(values, 1e-14).value - 1.5 == pytest.approx(
        math.sqrt(2e-14) * values.std(), rel=1e-6
    )


@pytest.mark.parametrize(
    ("values", "rho", "binds", "is_unique"),
    [
        ([0, 1, 2, 3], 0.5, True, True),
        ([0, 1, 2, 3], 9.0, False, True),
        ([1, 1, 0, 0], 0.5, True, True),
        ([1, 1, 0, 0], 0.6, False, False),
        ([2, 2, 2], 0.0, True, True),
        ([2, 2, 2], 0.1, False, False),
        ([2], 5.0, False, True),
    ],
)
def test_ambiguous_worst_case_is_reported(
    values: list[int], rho: float, binds: bool, is_unique: bool
) -> None:
    found = worst_case(values, rho)
    assert (found.binds, found.is_unique) == (binds, is_unique)


@pytest.mark.parametrize("rho", [-0.1, math.nan, math.inf])
def test_invalid_radius_is_refused(rho: float) -> None:
    with pytest.raises(ValueError, match="rho is"):
        worst_case([1.0, 2.0], rho)
    with pytest.raises(ValueError, match="rho is"):
        worst_accuracy([True, False], rho)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_error_names_the_position_of_a_loss_that_is_not_finite(bad: float) -> None:
    with pytest.raises(ValueError, match="loss 1 is not finite"):
        worst_case([0.0, bad, 1.0], 0.1)


@pytest.mark.parametrize("bad", [[], [[1.0, 2.0]], 3.0])
def test_losses_are_one_value_per_image(bad: float | list[list[float]]) -> None:
    with pytest.raises(ValueError, match="one value per image"):
        worst_case(bad, 0.1)


def test_hits_must_fit_the_weights() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        worst_case([1.0, 2.0], 0.1).accuracy([True])
    with pytest.raises(ValueError, match="no images"):
        worst_accuracy([], 0.1)


# the paper's figure 4 (a, b): cross-entropy attack, weighted loss and accuracy at its radii
PRINTED = {
    "baseline": (
        (
            1.44599342555277,
            1.51027579851091,
            1.60118480215784,
            1.72974954802038,
            1.91156755529725,
            2.16869704716937,
        ),
        (
            0.482053329861871,
            0.461281898982289,
            0.431906659713575,
            0.390363797967201,
            0.331613319459566,
            0.248573329522419,
        ),
        (1.29080, 1.09737, 0.53220),
    ),
    "weighted": (
        (
            1.42638263287374,
            1.48636222821408,
            1.57118618543611,
            1.69114537609848,
            1.86079329055748,
            2.10071166956851,
        ),
        (
            0.48890572969946,
            0.468735902536279,
            0.440211459398731,
            0.399871805073082,
            0.342822918816337,
            0.262206962074649,
        ),
        (1.28158, 1.02392, 0.53760),
    ),
}


@pytest.mark.parametrize("model", PRINTED)
def test_weights_of_the_paper_are_in_the_chi_squared_ball(model: str) -> None:
    """Losses with the printed moments and accuracy: the solver returns the printed curve."""
    printed, accuracies, (mean, deviation, correct_fraction) = PRINTED[model]
    root = np.sqrt(2 * np.array(RHOS[:6]))
    gradient, start = np.polyfit(root[:5], printed[:5], 1)
    assert (start, gradient) == pytest.approx((mean, deviation), abs=1e-5)
    assert np.polyfit(root[:5], accuracies[:5], 1)[1] == pytest.approx(correct_fraction, abs=1e-5)

    values, hits = population_of(
        mean, deviation, correct_fraction, np.polyfit(root[:5], accuracies[:5], 1)[0]
    )
    curve = list(worst_cases(values, RHOS[:5]))
    assert [found.value for found in curve] == pytest.approx(printed[:5], abs=2e-5)
    assert [found.accuracy(hits) for found in curve] == pytest.approx(accuracies[:5], abs=2e-5)


def population_of(
    mean: float, deviation: float, correct_fraction: float, fall: float
) -> tuple[NDArray[np.float64], NDArray[np.bool]]:
    """Return 10,000 losses with these moments: two values for correct images, two for others.

    Before clipping, accuracy falls by cov(loss, correct) / deviation for each unit of sqrt(2 rho).
    """
    size = 10_000
    hits = np.arange(size) < round(correct_fraction * size)
    gap = (
        -fall * deviation / (correct_fraction * (1 - correct_fraction))
    )  # between the means of misclassified and correct images
    values = np.where(hits, mean - gap * (1 - correct_fraction), mean + gap * correct_fraction)
    left = math.sqrt(deviation**2 - values.var())  # what the spread within both groups has to add
    return values + left * np.where(np.arange(size) % 2, 1, -1), hits


def test_worst_case_of_a_million_losses_is_fast() -> None:
    values = np.random.default_rng(3).exponential(size=1_000_000)

    def seconds(work: Callable[..., Any]) -> float:
        started = time.perf_counter()
        work()
        return time.perf_counter() - started

    # a stable sort uses no vector instructions, which only some processors have
    sort = min(seconds(lambda: np.argsort(values, kind="stable")) for _ in range(3))
    solve = min(seconds(lambda: worst_case(values, 0.3)) for _ in range(3))
    assert solve <= 15 * sort


def random_losses(rng: np.random.Generator, size: int) -> NDArray[np.float64]:
    """One of five families, ties and the zero-one loss among them."""
    families: list[NDArray[np.float64]] = [
        rng.normal(size=size),
        rng.exponential(size=size),
        rng.integers(0, 4, size).astype(float),
        rng.integers(0, 2, size).astype(float),
        rng.standard_t(3, size) - 5,
    ]
    return families[rng.integers(5)]


@pytest.mark.peers
def test_worst_case_equals_that_of_a_conic_solver() -> None:
    cvxpy = pytest.importorskip("cvxpy", reason="cvxpy is not installed")
    rng, furthest = np.random.default_rng(4), 0.0
    for _ in range(400):
        size = int(rng.integers(2, 60))
        values, rho = random_losses(rng, size), float(rng.choice([*RHOS, 0.001, 3.0, 0.4 * size]))
        weights = cvxpy.Variable(size, nonneg=True)
        ball = cvxpy.norm(size * weights - 1) <= math.sqrt(2 * rho * size)
        problem = cvxpy.Problem(cvxpy.Maximize(values @ weights), [cvxpy.sum(weights) == 1, ball])
        problem.solve(solver=cvxpy.CLARABEL)
        assert problem.status == "optimal"
        found = worst_case(values, rho)
        difference = abs(found.value - problem.value) / max(1.0, abs(found.value))
        assert difference < 1e-6, (size, rho)
        furthest = max(furthest, difference)
    print(f"largest relative difference {furthest:.1e}")  # noqa: T201 - shown with `pytest -s`
