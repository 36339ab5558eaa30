"""The races: who runs, over what, and what the times say."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import nn

from wmr_cli.workflows.devices import LAYOUTS
from wmr_cli.workflows.limits import PRODUCT, as_planes, bare, climb, matrices, multiply, operations
from wmr_cli.workflows.timing import Spread, Work, in_turns, ratio, spread

from . import loops, ours
from .cases import LR, MOMENTUM, Case
from .elsewhere import Elsewhere
from .peers import of_torchattacks, peers

OURS, BARE, PEAK = "wmr", "bare passes", "matrix product"


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    is_quick: bool
    rounds: int
    seconds: float


@dataclass(frozen=True)
class Race:
    """Seconds of every contestant in every round, over so many images; and the operations of some, where they are counted."""

    title: str
    images: int
    times: Mapping[str, list[float]]
    operations: Mapping[str, int] = field(default_factory=dict)

    def ratio(self, of: str, to: str) -> Spread:
        """How many times as long one takes as the other, round by round."""
        return ratio(self.times[of], self.times[to])

    def share_of_peak(self, name: str) -> Spread:
        """The operations per second of a contestant over those of a matrix product."""
        times, peak = self.times[name], self.times[PEAK]
        scale = self.operations[name] / self.operations[PEAK]
        return spread([scale * product / seconds for seconds, product in zip(times, peak, strict=True)])

    def fastest(self, *but: str) -> str:
        """Who has the lowest median, these left out."""
        return min((name for name in self.times if name not in but), key=lambda name: spread(self.times[name]).median)


def run(title: str, case: Case, effort: Effort, contestants: Callable[[Case], Mapping[str, Work]]) -> Race:
    """Warm everybody up with a single step, then let them take turns."""
    in_turns(contestants(ours.shortened(case, 1)), 1)
    title = f"{title}: {case.model}, batch {case.batch}, {case.steps} steps"
    return Race(title, case.batch, in_turns(contestants(case), effort.rounds, effort.seconds))


def attacks(case: Case, folder: Path, effort: Effort, others: Elsewhere) -> Race:
    """PGD: the libraries, us, and the passes that nobody can do without. A quick look leaves out the slow on slow networks."""
    counted = {PEAK: PRODUCT}

    def contestants(case: Case) -> dict[str, Work]:
        mine = ours.adversarial(case, folder)
        theirs = others.contestants(one_library if effort.is_quick and case.model == "resnet18" else libraries, case, folder)
        network, placed = fastest_bare(mine.plain, as_planes(mine.batch.images))
        counted.update(dict.fromkeys((OURS, BARE), operations(network, placed, case.steps)))
        left, right = matrices(placed.device)
        limits: dict[str, Work] = {BARE: lambda: climb(network, placed, case.steps), PEAK: lambda: multiply(left, right)}
        return {**theirs, OURS: mine.attack, **limits}

    return replace(run("PGD attack", case, effort, contestants), operations=counted)


def libraries(case: Case, folder: Path) -> Mapping[str, Work]:
    """PGD of every other library."""
    mine = ours.adversarial(case, folder)
    return peers(mine.plain, as_planes(mine.batch.images), mine.batch.labels, case)


def one_library(case: Case, folder: Path) -> Mapping[str, Work]:
    """PGD of the fastest of them."""
    mine = ours.adversarial(case, folder)
    return {"torchattacks": of_torchattacks(mine.plain.eval(), as_planes(mine.batch.images), mine.batch.labels, case)}


def fastest_bare(model: nn.Module, images: torch.Tensor) -> tuple[nn.Module, torch.Tensor]:
    """The network for bare passes, and images, in the layout in which these are fastest."""
    ready = {layout: bare(model, images, layout) for layout in LAYOUTS}
    work: dict[str, Work] = {layout: lambda pair=pair: climb(*pair, steps=1) for layout, pair in ready.items()}  # type: ignore[misc]
    times = in_turns(work, 2)
    return ready[min(times, key=lambda layout: min(times[layout]))]


def trades(case: Case, folder: Path, effort: Effort, others: Elsewhere) -> Race:
    """A TRADES step as the public script takes it, and ours."""

    def contestants(case: Case) -> dict[str, Work]:
        return {**others.contestants(public_trades, case, folder), OURS: ours.trades(case, folder).step}

    return run("TRADES step", case, effort, contestants)


def pgd_training(case: Case, folder: Path, effort: Effort, others: Elsewhere) -> Race:
    """A step of adversarial training as public scripts take it, and ours."""

    def contestants(case: Case) -> dict[str, Work]:
        return {**others.contestants(public_pgd_training, case, folder), OURS: ours.adversarial(case, folder).step}

    return run("PGD training step", case, effort, contestants)


def public_trades(case: Case, folder: Path) -> Mapping[str, Work]:
    """A step of the public TRADES script."""
    return _public(ours.trades(case, folder), loops.trades_step, case)


def public_pgd_training(case: Case, folder: Path) -> Mapping[str, Work]:
    """A step of adversarial training as public scripts take it."""
    return _public(ours.adversarial(case, folder), loops.pgd_training_step, case)


def _public(mine: ours.Ours, step: Callable[..., None], case: Case) -> Mapping[str, Work]:
    images, labels = as_planes(mine.batch.images), mine.batch.labels
    optimizer = torch.optim.SGD(mine.plain.parameters(), LR, momentum=MOMENTUM)
    return {"public loop": lambda: step(mine.plain, optimizer, images, labels, case)}


ONE, ROBUST, WHOLE = "one attack", "evaluation, A_nat and A_rob", "evaluation, all four, three α"


def evaluation(case: Case, folder: Path, effort: Effort, images: int) -> Race:
    """The whole of `wmr evaluate`, files and all, and one attack on the same images."""
    made = ours.evaluated(case, folder, images)
    contestants: dict[str, Work] = {
        ONE: made.one_attack, ROBUST: made.robust, WHOLE: made.whole
    }  # fmt: skip
    made.ours.attack()
    times = in_turns(contestants, effort.rounds, effort.seconds)
    return Race(f"Evaluation: {case.model}, {images} images, batch {case.batch}, {case.steps} steps", images, times)
