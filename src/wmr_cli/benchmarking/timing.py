"""Time several functions so that their times can be compared.

The functions alternate, so that other load on the machine affects all of them equally.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Work = Callable[[], object]
"""A function to be timed. It returns when its work is complete, also on an accelerator."""


@dataclass(frozen=True)
class Quartiles:
    """The median of several measurements, and their quartiles."""

    low: float
    median: float
    high: float


def time_alternately(
    functions: Mapping[str, Work],
    rounds: int,
    seconds: float = float("inf"),
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return the seconds of each function in each round. No round begins after `seconds`."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    names = list(functions)
    started = clock()
    for number in range(rounds):
        # rotate the order: a function that always runs first would find other cache contents
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            begin = clock()
            functions[name]()
            times[name].append(clock() - begin)
        if clock() - started > seconds:
            break
    return times


def quartiles(values: Sequence[float]) -> Quartiles:
    """Return median and quartiles."""
    low, median, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    return Quartiles(low, median, high)


def time_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Quartiles:
    """Return how many times as long one function takes as another."""
    # per round: both functions of a round met the same load, so it cancels
    pairs = zip(numerators, denominators, strict=True)
    return quartiles([numerator / denominator for numerator, denominator in pairs])
