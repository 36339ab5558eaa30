"""Cost over sizes: attacks by images and by steps, and the worst case in a ball by images. It should grow in proportion."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wmr_cli.measures import worst_case
from wmr_cli.workflows.timing import Work, in_turns, spread

from . import ours
from .cases import Case
from .races import Effort

ROUNDS = 3


@dataclass(frozen=True)
class Growth:
    """Median seconds at each size."""

    title: str
    unit: str
    sizes: Sequence[int]
    seconds: Sequence[float]

    @property
    def per_unit(self) -> list[float]:
        """What a unit costs at each size, over what it costs at the smallest."""
        costs = [seconds / size for size, seconds in zip(self.sizes, self.seconds, strict=True)]
        return [cost / costs[0] for cost in costs]


def growths(case: Case, folder: Path, effort: Effort) -> list[Growth]:
    """How the cost of an evaluation grows with images and with steps, and that of the worst case in a ball with images."""
    images = (256, 512, 1024) if effort.is_quick else (256, 512, 1024, 2048)
    steps = (5, 10, 20) if effort.is_quick else (5, 10, 20, 40)
    by_images = {str(count): ours.evaluated(ours.shortened(case, 2), folder, count) for count in images}
    by_steps = {str(count): ours.evaluated(ours.shortened(case, count), folder, case.batch) for count in steps}
    rows = (10**4, 10**5, 10**6)
    return [
        _grown("wmr evaluate, 2 steps", "images", images, {size: made.robust for size, made in by_images.items()}, effort),
        _grown(
            f"attack on {case.batch} images", "steps", steps, {size: made.one_attack for size, made in by_steps.items()}, effort
        ),
        _grown("worst case in a ball", "images", rows, {str(count): _ball(count) for count in rows}, effort),
    ]


def _ball(count: int) -> Work:
    losses = np.random.default_rng(0).exponential(size=count)
    return lambda: worst_case(losses, 0.1)


def _grown(title: str, unit: str, sizes: Sequence[int], work: dict[str, Work], effort: Effort) -> Growth:
    next(iter(work.values()))()
    times = in_turns(work, 2 if effort.is_quick else ROUNDS, effort.seconds)
    return Growth(title, unit, sizes, [spread(times[str(size)]).median for size in sizes])
