"""The comparisons: which functions run, on which data, and the ratios of their times."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from wmr_cli.benchmarking.timing import (
    PRODUCT_FLOPS,
    Quartiles,
    Work,
    count_flops,
    make_bare_network,
    make_matrices,
    multiply,
    quartiles,
    run_bare_passes,
    time_alternately,
    time_ratio,
    to_contiguous,
)
from wmr_cli.core.nn.fusion import MEMORY_FORMATS

from . import wmr_workloads
from .cases import LR, MOMENTUM, Case
from .peer_process import PeerProcess
from .peers import (
    make_peer_attacks,
    make_torchattacks_attack,
    pgd_training_step,
    trades_step,
)

WMR = "wmr"
BARE = "bare passes"
PEAK = "matrix product"
ONE_ATTACK = "one attack"
ROBUST_EVALUATION = "evaluation, A_nat and A_rob"
FULL_EVALUATION = "evaluation, all four, three α"


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    is_quick: bool
    rounds: int
    seconds: float


@dataclass(frozen=True)
class Comparison:
    """Seconds of every function in every round, and floating-point operations of some."""

    title: str
    images: int
    times: Mapping[str, list[float]]
    flops: Mapping[str, int] = field(default_factory=dict)

    def ratio(self, numerator: str, denominator: str) -> Quartiles:
        """Return how many times as long one function takes as another."""
        return time_ratio(self.times[numerator], self.times[denominator])

    def fraction_of_peak(self, name: str) -> Quartiles:
        """Return the operations per second of a function over those of a matrix product."""
        scale = self.flops[name] / self.flops[PEAK]
        pairs = zip(self.times[name], self.times[PEAK], strict=True)
        return quartiles([scale * peak / seconds for seconds, peak in pairs])

    def fastest_except(self, *excluded: str) -> str:
        """Return the function with the lowest median."""
        names = [name for name in self.times if name not in excluded]
        return min(names, key=lambda name: quartiles(self.times[name]).median)


def compare(
    title: str, case: Case, effort: Effort, make_work: Callable[[Case], Mapping[str, Work]]
) -> Comparison:
    """Warm up with an attack of one step, then time all functions alternately."""
    # one step runs every kernel once, at a tenth of the cost
    time_alternately(make_work(wmr_workloads.with_steps(case, 1)), 1)
    title = f"{title}: {case.model}, batch {case.batch}, {case.steps} steps"
    times = time_alternately(make_work(case), effort.rounds, effort.seconds)
    return Comparison(title, case.batch, times)


def compare_attacks(case: Case, folder: Path, effort: Effort, peers: PeerProcess) -> Comparison:
    """Compare PGD of the libraries, of `wmr`, and the bare passes that every attack needs."""
    flops = {PEAK: PRODUCT_FLOPS}
    # on a large network the slow libraries would exceed the time of a quick run
    make_peers = library_attacks
    if effort.is_quick and case.model == "resnet18":
        make_peers = fastest_library_attack

    def make_work(case: Case) -> dict[str, Work]:
        own = wmr_workloads.make_pgd_training(case, folder)
        work = peers.make_work(make_peers, case, folder)
        network, images = make_fastest_bare_network(own.plain, to_contiguous(own.batch.images))
        # the same number for both: what `wmr` does beside the passes is overhead
        flops.update(dict.fromkeys((WMR, BARE), count_flops(network, images, case.steps)))
        left, right = make_matrices(images.device, torch.float32)
        work[WMR] = own.attack
        work[BARE] = partial(run_bare_passes, network, images, case.steps)
        work[PEAK] = partial(multiply, left, right)
        return work

    return replace(compare("PGD attack", case, effort, make_work), flops=flops)


def library_attacks(case: Case, folder: Path) -> Mapping[str, Work]:
    """Return PGD of every other library."""
    own = wmr_workloads.make_pgd_training(case, folder)
    return make_peer_attacks(own.plain, to_contiguous(own.batch.images), own.batch.labels, case)


def fastest_library_attack(case: Case, folder: Path) -> Mapping[str, Work]:
    """Return PGD of the library that is usually fastest."""
    own = wmr_workloads.make_pgd_training(case, folder)
    images = to_contiguous(own.batch.images)
    attack = make_torchattacks_attack(own.plain.eval(), images, own.batch.labels, case)
    return {"torchattacks": attack}


def make_fastest_bare_network(
    model: nn.Module, images: torch.Tensor
) -> tuple[nn.Module, torch.Tensor]:
    """Return the network and images in the memory format with the fastest bare passes."""
    networks = {layout: make_bare_network(model, images, layout) for layout in MEMORY_FORMATS}
    work: dict[str, Work] = {
        layout: partial(run_bare_passes, *pair, steps=1) for layout, pair in networks.items()
    }
    # two rounds, and the faster one of each: the first includes the warm-up
    times = time_alternately(work, 2)
    return networks[min(times, key=lambda layout: min(times[layout]))]


def compare_trades(case: Case, folder: Path, effort: Effort, peers: PeerProcess) -> Comparison:
    """Compare a TRADES step of the public script with that of `wmr`."""

    def make_work(case: Case) -> dict[str, Work]:
        work = peers.make_work(public_trades, case, folder)
        return {**work, WMR: wmr_workloads.make_trades(case, folder).step}

    return compare("TRADES step", case, effort, make_work)


def compare_pgd_training(
    case: Case, folder: Path, effort: Effort, peers: PeerProcess
) -> Comparison:
    """Compare a step of adversarial training in public scripts with that of `wmr`."""

    def make_work(case: Case) -> dict[str, Work]:
        work = peers.make_work(public_pgd_training, case, folder)
        return {**work, WMR: wmr_workloads.make_pgd_training(case, folder).step}

    return compare("PGD training step", case, effort, make_work)


def public_trades(case: Case, folder: Path) -> Mapping[str, Work]:
    """Return a step of the public TRADES script."""
    return _make_public(wmr_workloads.make_trades(case, folder), trades_step, case)


def public_pgd_training(case: Case, folder: Path) -> Mapping[str, Work]:
    """Return a step of adversarial training in public scripts."""
    own = wmr_workloads.make_pgd_training(case, folder)
    return _make_public(own, pgd_training_step, case)


def _make_public(
    own: wmr_workloads.TrainingWorkload, step: Callable[..., None], case: Case
) -> Mapping[str, Work]:
    images = to_contiguous(own.batch.images)
    optimizer = torch.optim.SGD(own.plain.parameters(), LR, momentum=MOMENTUM)
    return {"public loop": partial(step, own.plain, optimizer, images, own.batch.labels, case)}


def compare_evaluation(case: Case, folder: Path, effort: Effort, images: int) -> Comparison:
    """Compare `wmr evaluate`, including its files, with one attack on the same images."""
    made = wmr_workloads.make_evaluation(case, folder, images)
    work: dict[str, Work] = {
        ONE_ATTACK: made.attack,
        ROBUST_EVALUATION: made.evaluate_robust,
        FULL_EVALUATION: made.evaluate,
    }
    made.training.attack()  # warm-up
    times = time_alternately(work, effort.rounds, effort.seconds)
    title = f"Evaluation: {case.model}, {images} images, batch {case.batch}, {case.steps} steps"
    return Comparison(title, images, times)
