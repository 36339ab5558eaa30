"""Batches, parts and processes make no difference to the numbers."""

import functools
import pickle
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from wmr_cli.measures import (
    RunningAccuracy,
    exponential_log_weights,
    plain_accuracy,
    weighted_accuracy,
)

ALPHAS = (0.0, 1.0, 2.0, 400.0)

margins = st.lists(st.floats(-1, 1, allow_subnormal=False), min_size=1, max_size=20)


def population(size: int, seed: int = 0) -> tuple[NDArray[np.bool], NDArray[np.float64]]:
    found = np.random.default_rng(seed).uniform(-1, 1, size)
    return found > 0.1, found


def running(
    *batches: tuple[NDArray[np.bool], list[float] | NDArray[np.float64]],
    alphas: tuple[float, ...] = ALPHAS,
) -> RunningAccuracy:
    made = RunningAccuracy(alphas)
    for correct, margin in batches:
        made.update(correct, margin)
    return made


def numbers_of(
    part: tuple[NDArray[np.bool], list[float] | NDArray[np.float64]],
) -> NDArray[np.float64]:
    """Return the plain numbers that one process sends."""
    return running(part).numbers()


def assert_close(one_run: RunningAccuracy, other_run: RunningAccuracy) -> None:
    first = one_run.compute()
    second = other_run.compute()
    assert first.plain == second.plain  # whole numbers: no rounding at all
    assert first.weighted.keys() == second.weighted.keys()
    for alpha, one in first.weighted.items():
        other = second.weighted[alpha]
        ours, theirs = ((share.value, share.low, share.high, share.ess) for share in (one, other))
        assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-9)


def test_one_batch_is_bit_identical_to_the_function() -> None:
    correct, margin = population(500)
    found = running((correct, margin)).compute()
    assert found.plain == plain_accuracy(correct)
    assert found.weighted == {
        a: weighted_accuracy(exponential_log_weights(margin, a), correct) for a in ALPHAS
    }


@pytest.mark.parametrize("batches", [2, 7, 500])
def test_many_batches_equal_one(batches: int) -> None:
    correct, margin = population(500)
    parts = zip(np.array_split(correct, batches), np.array_split(margin, batches), strict=True)
    assert_close(running(*parts), running((correct, margin)))


@settings(deadline=None)
@given(st.tuples(margins, margins, margins))
def test_merging_is_associative_and_commutative(
    three: tuple[list[float], list[float], list[float]],
) -> None:
    a, b, c = (running((np.array(some) > 0, some), alphas=(0.0, 1.5)) for some in three)
    assert_close(a.merge(b).merge(c), a.merge(b.merge(c)))
    assert_close(a.merge(b), b.merge(a))
    assert_close(
        a.merge(b).merge(c),
        running(*((np.array(some) > 0, some) for some in three), alphas=(0.0, 1.5)),
    )


def test_merging_leaves_both_parts_unchanged() -> None:
    first, second = running(population(10)), running(population(20, seed=1))
    before = first.numbers(), second.numbers()
    first.merge(second)
    assert all(
        np.array_equal(old, part.numbers())
        for old, part in zip(before, (first, second), strict=True)
    )
    assert np.array_equal(RunningAccuracy(ALPHAS).merge(first).numbers(), first.numbers())
    assert np.array_equal(first.merge(RunningAccuracy(ALPHAS)).numbers(), first.numbers())


def test_states_can_be_sent_between_processes() -> None:
    correct, margin = population(300, seed=2)
    parts = list(zip(np.array_split(correct, 3), np.array_split(margin, 3), strict=True))
    with ProcessPoolExecutor(2) as pool:
        sent = [
            RunningAccuracy.from_numbers(numbers, ALPHAS) for numbers in pool.map(numbers_of, parts)
        ]
    assert_close(functools.reduce(RunningAccuracy.merge, sent), running((correct, margin)))


def test_state_survives_conversion_to_numbers() -> None:
    made = running(population(50))
    again = RunningAccuracy.from_numbers(made.numbers(), ALPHAS)
    assert again.compute() == made.compute() == pickle.loads(pickle.dumps(made)).compute()
    assert len(made.numbers()) == 2 + 7 * len(ALPHAS)
    with pytest.raises(ValueError, match="30 numbers are not those of 1 alphas"):
        RunningAccuracy.from_numbers(made.numbers(), (1.0,))


def test_without_alphas_margins_are_not_needed() -> None:
    made = RunningAccuracy()
    made.update([True, False, True, True])
    assert made.compute() == (plain_accuracy([True, False, True, True]), {})


def test_invalid_update_leaves_the_state_unchanged() -> None:
    made = running(population(10))
    before = made.numbers()
    bad: list[tuple[ArrayLike, ArrayLike | None, str]] = [
        ([True, False], [0.1], "length"),
        ([True], None, "margins"),
        ([True], [float("nan")], "not a number"),
        ([[True]], [[0.1]], "per image"),
    ]
    for correct, margins, problem in bad:
        with pytest.raises(ValueError, match=problem):
            made.update(correct, margins)
    assert np.array_equal(made.numbers(), before)
    with pytest.raises(ValueError, match="cannot be merged"):
        made.merge(RunningAccuracy((1.0,)))
    with pytest.raises(ValueError, match="image"):
        RunningAccuracy().compute()
