"""Cost as a function of size: attacks by images and steps, DRO by images. It should be linear."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wmr_cli.benchmarking.timing import Work, quartiles, time_alternately
from wmr_cli.measures import worst_case

from .cases import Case
from .comparisons import Effort
from .wmr_workloads import make_evaluation, with_steps

ROUNDS = 3
QUICK_ROUNDS = 2
DRO_SIZES = (10**4, 10**5, 10**6)


@dataclass(frozen=True)
class Growth:
    """Median seconds at each size."""

    title: str
    unit: str
    sizes: Sequence[int]
    seconds: Sequence[float]

    @property
    def relative_unit_costs(self) -> list[float]:
        """The cost per unit at each size, over that at the smallest size."""
        costs = [seconds / size for size, seconds in zip(self.sizes, self.seconds, strict=True)]
        return [cost / costs[0] for cost in costs]


def measure_growth(case: Case, folder: Path, effort: Effort) -> list[Growth]:
    """Measure evaluations by images, attacks by steps, and DRO accuracy by images."""
    images = [256, 512, 1024]
    steps = [5, 10, 20]
    if not effort.is_quick:
        images.append(2048)
        steps.append(40)
    # two steps only, so that costs per image outside the attack are visible
    by_images: dict[int, Work] = {
        count: make_evaluation(with_steps(case, 2), folder, count).evaluate_robust
        for count in images
    }
    by_steps: dict[int, Work] = {
        count: make_evaluation(with_steps(case, count), folder, case.batch).attack
        for count in steps
    }
    by_losses = {count: _make_dro_work(count) for count in DRO_SIZES}
    return [
        _time_sizes("wmr evaluate, 2 steps", "images", by_images, effort),
        _time_sizes(f"attack on {case.batch} images", "steps", by_steps, effort),
        _time_sizes("worst case in a χ² ball", "images", by_losses, effort),
    ]


def _make_dro_work(count: int) -> Work:
    losses = np.random.default_rng(0).exponential(size=count)
    return lambda: worst_case(losses, 0.1)


def _time_sizes(title: str, unit: str, work: dict[int, Work], effort: Effort) -> Growth:
    # warm-up
    next(iter(work.values()))()
    rounds = QUICK_ROUNDS if effort.is_quick else ROUNDS
    named = {str(size): function for size, function in work.items()}
    times = time_alternately(named, rounds, effort.seconds)
    medians = [quartiles(times[str(size)]).median for size in work]
    return Growth(title, unit, list(work), medians)
