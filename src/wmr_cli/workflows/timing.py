"""Times that can be compared: contestants take turns, so that what else a machine does falls on all of them alike."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Work = Callable[[], object]
"""Something to be timed; it returns when it is done."""


@dataclass(frozen=True)
class Spread:
    """The median of several measurements, between their quartiles."""

    low: float
    median: float
    high: float


def in_turns(
    contestants: Mapping[str, Work], rounds: int, seconds: float = float("inf"), clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """The seconds of each contestant in each round; no further round begins after `seconds`. Nobody always goes first."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    names, began = list(contestants), clock()
    for number in range(rounds):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            started = clock()
            contestants[name]()
            times[name].append(clock() - started)
        if clock() - began > seconds:
            break
    return times


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles."""
    low, median, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    return Spread(low, median, high)


def ratio(of: Sequence[float], to: Sequence[float]) -> Spread:
    """How many times as long one took as the other, round by round."""
    return spread([mine / theirs for mine, theirs in zip(of, to, strict=True)])
