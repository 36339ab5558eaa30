"""The spread over seeds of training, and what it leaves of a difference."""

import pytest
from scipy import stats

from support.typed import not_none
from wmr_cli.measures import seeds_interval, spread

THESE = {0: 0.52, 1: 0.49, 2: 0.55}


def test_the_spread_of_one_seed_is_not_known() -> None:
    assert spread([0.5]) is None
    assert spread([]) is None
    found = not_none(spread([0.5, 0.6]))
    assert (found.mean, found.seeds) == (0.55, 2)
    assert found.sd == pytest.approx(0.0707106781)


def test_the_same_seeds_are_compared_in_pairs() -> None:
    others = {2: 0.50, 0: 0.50, 1: 0.45}
    pairs = stats.ttest_rel([0.52, 0.49, 0.55], [0.50, 0.45, 0.50]).confidence_interval()
    assert seeds_interval(THESE, others) == pytest.approx((pairs.low, pairs.high), abs=1e-6)


def test_other_seeds_are_two_samples() -> None:
    others = {3: 0.50, 4: 0.45, 5: 0.42, 6: 0.47}
    welch = stats.ttest_ind(
        list(THESE.values()), list(others.values()), equal_var=False
    ).confidence_interval()
    low, high = not_none(seeds_interval(THESE, others))
    assert low <= welch.low < welch.high <= high  # degrees of freedom are rounded down
    assert (low, high) == pytest.approx((welch.low, welch.high), abs=0.01)


def test_two_seeds_each_tell_little() -> None:
    low, high = not_none(seeds_interval({0: 0.60, 1: 0.61}, {2: 0.55, 3: 0.58}))
    assert low < 0 < high


@pytest.mark.parametrize(("these", "others"), [(THESE, {}), ({0: 0.5}, {0: 0.4})])
def test_nothing_is_known_of_the_spread_without_a_second_seed(
    these: dict[int, float], others: dict[int, float]
) -> None:
    assert seeds_interval(these, others) is None
    assert seeds_interval(others, these) is None


def test_one_seed_is_taken_to_vary_as_much_as_the_others() -> None:
    low, high = not_none(seeds_interval(THESE, {7: 0.3}))
    half = (
        4.302653 * 0.03 * (4 / 3) ** 0.5
    )  # Student's t of two degrees of freedom; the standard deviation of THESE is 0.03
    assert (low, high) == pytest.approx((0.22 - half, 0.22 + half))
    assert seeds_interval({7: 0.3}, THESE) == pytest.approx((-high, -low))


def test_seeds_without_spread_leave_the_difference() -> None:
    assert seeds_interval({0: 0.5, 1: 0.5}, {0: 0.25, 1: 0.25}) == (0.25, 0.25)
    assert seeds_interval({0: 0.5, 1: 0.5}, {2: 0.25, 3: 0.25}) == (0.25, 0.25)


def test_many_seeds_keep_the_last_quantile_of_the_table() -> None:
    these, others = (
        {seed: value + 0.01 * (seed % 2) for seed in range(40)} for value in (0.5, 0.4)
    )
    assert seeds_interval(these, others) == pytest.approx((0.1, 0.1))
    shifted = {seed + 40: value for seed, value in others.items()}
    low, high = not_none(seeds_interval(these, shifted))
    assert 0.09 < low < 0.1 < high < 0.11
