"""How fast a network is attacked and trained on this machine, how near that is to the limit, and what would be faster."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch
from torch import Tensor, nn

from ..config import TrainConfig
from ..core.contracts import Batch
from ..core.layouts import arranged
from ..core.losses import cross_entropy
from ..errors import out_of_memory
from ..registry import Registry
from .assembly import Assembly, assemble
from .devices import LAYOUTS, has_accelerator, settle
from .events import BenchDone, Event, Message
from .limits import PRODUCT, bare, climb, matrices, multiply, operations
from .optimization import Pace
from .ranks import largest, launched, share
from .timing import Work, in_turns, ratio, spread
from .trials import Bench, Rate, Trial, cores, processes, recommended

if TYPE_CHECKING:
    from lightning_fabric import Fabric

ROUNDS = 5
FACTORS = (0.5, 2, 4)
"""Other batch sizes to try, over the one asked for."""


@dataclass(frozen=True)
class Machine:
    """Where to measure, and about how many seconds each thing; but every one is measured once at least."""

    device: str = "auto"
    devices: int | None = None
    compiles: bool = False
    seconds: float = 5.0


def bench(
    config: TrainConfig, registry: Registry, data_dir: Path, machine: Machine, asked: Mapping[str, str], *, alone: bool = False
) -> Iterator[Event]:
    """Measure a training and its attack; unless they are to stay `alone`, the limit and other settings beside them.

    `asked` holds the flags that led here, for commands to recommend. Of several ranks the first speaks.
    """
    fabric = launched(machine.device, machine.devices, None, config.precision)
    run = assemble(config, registry, data_dir, fabric, compiles=machine.compiles)
    yield Message(f"measuring {config.model} on {config.dataset}, {config.defense}, batch {config.batch_size}")
    found = measured(run, machine.seconds)
    if not alone and fabric.world_size == 1:
        yield Message("measuring the limit: bare passes and a matrix product")
        found = limited(found, run, machine.seconds)
        yield Message("measuring other settings beside these")
        tried = [*batch_sizes(run, machine.seconds)]
        if has_accelerator(machine.device):
            tried += precisions(run, registry, data_dir, machine)
        else:
            tried += threads(run, machine.seconds)
            yield Message("measuring several processes")
            again = measured(run, machine.seconds)
            tried += processes([found, again], asked)
        found = msgspec.structs.replace(found, tried=tried, recommended=recommended(asked, tried))
    if fabric.is_global_zero:
        yield BenchDone(found)


@dataclass(frozen=True)
class Load:
    """A batch for a run to attack and to train on, by so many threads. Every rank takes its share."""

    run: Assembly
    batch: Batch
    count: int
    threads: int

    @classmethod
    def of(cls, run: Assembly, count: int | None = None, threads: int | None = None) -> "Load":
        count = count or run.config.batch_size
        positions = share(torch.arange(count) % len(run.split), run.fabric)
        batch = run.split.batch(positions).to(run.fabric.device)
        batch = replace(batch, images=arranged(batch.images, run.memory_format))
        return cls(run, batch, count, threads or torch.get_num_threads())

    def attack(self) -> None:
        """The attack of a training step, with the logits of what it made."""
        self._begin(judged=True)
        self.run.learner.attack(self.batch, cross_entropy)
        self._end()

    def step(self) -> None:
        """A whole step, at full strength."""
        self._begin(judged=False)
        self.run.step(self.batch, epoch=0)
        self._end()

    def _begin(self, *, judged: bool) -> None:
        torch.set_num_threads(self.threads)
        pace, last = Pace(self.run.config.lr), self.run.timetable.epochs - 1
        self.run.learner.begin_step(last, 0, pace, self.count, judged=judged)

    def _end(self) -> None:
        settle(self.run.fabric.device)
        self.run.fabric.barrier()


def timed(work: Mapping[str, Work], seconds: float, fabric: "Fabric") -> dict[str, list[float]]:
    """A round to warm up, then as many as fit into the time, on all ranks alike."""
    first = sum(sum(times) for times in in_turns(work, 1).values())
    rounds = max(1, min(ROUNDS, int(seconds / first)))
    return in_turns(work, -largest(fabric, -rounds))


def rate(times: list[float], images: int) -> Rate:
    """Images per second from the seconds of every round."""
    found = spread([images / seconds for seconds in times])
    return Rate(found.median, found.low, found.high)


def measured(run: Assembly, seconds: float) -> Bench:
    """Attack and training as they are asked for."""
    load = Load.of(run)
    times = timed({"attack": load.attack, "step": load.step}, seconds, run.fabric)
    return Bench(
        model=run.config.model,
        dataset=run.config.dataset,
        defense=run.config.defense,
        device=str(run.fabric.device),
        devices=run.fabric.world_size,
        threads=torch.get_num_threads(),
        precision=run.config.precision,
        batch_size=load.count,
        steps=getattr(run.attack, "steps", 1),
        attack=rate(times["attack"], load.count),
        training=rate(times["step"], load.count),
    )


def limited(found: Bench, run: Assembly, seconds: float) -> Bench:
    """The same beside the bare passes in the fastest layout, and these beside a matrix product."""
    load = Load.of(run)
    networks = {layout: bare(run.model, load.batch.images, layout) for layout in LAYOUTS}
    left, right = matrices(run.fabric.device)
    work: dict[str, Work] = {layout: _passes(*pair, found.steps) for layout, pair in networks.items()}
    times = timed({**work, "attack": load.attack, "product": lambda: multiply(left, right)}, 2 * seconds, run.fabric)
    layout = min(LAYOUTS, key=lambda name: spread(times[name]).median)
    product = PRODUCT / operations(*networks[layout], found.steps)
    return msgspec.structs.replace(
        found,
        limit=rate(times[layout], load.count),
        share_of_limit=ratio(times[layout], times["attack"]).median,
        layout=layout,
        peak_gflops=PRODUCT / min(times["product"]) / 1e9,
        share_of_peak=ratio(times["product"], times[layout]).median / product,
    )


def _passes(network: nn.Module, images: Tensor, steps: int) -> Work:
    return lambda: climb(network, images, steps)


def batch_sizes(run: Assembly, seconds: float) -> Iterator[Trial]:
    """Smaller and larger batches beside the one asked for."""
    for size in (max(2, int(run.config.batch_size * factor)) for factor in FACTORS):
        if size != run.config.batch_size:
            yield compared(f"--batch-size {size}", Load.of(run), partial(Load.of, run, size), seconds)


def threads(run: Assembly, seconds: float) -> Iterator[Trial]:
    """One thread, and one per core, beside as many as there are."""
    usual = Load.of(run)
    for count in sorted({1, cores()} - {usual.threads}):
        yield compared(f"OMP_NUM_THREADS={count}", usual, partial(Load.of, run, threads=count), seconds)
    torch.set_num_threads(usual.threads)


def precisions(run: Assembly, registry: Registry, data_dir: Path, machine: Machine) -> Iterator[Trial]:
    """bfloat16 and a compiled network, where they are not in use."""

    def other(precision: str, compiles: bool) -> Load:
        config = msgspec.structs.replace(run.config, precision=precision)
        fabric = launched(machine.device, machine.devices, None, precision)
        return Load.of(assemble(config, registry, data_dir, fabric, compiles=compiles))

    if run.config.precision == "32":
        yield compared("--precision bf16", Load.of(run), lambda: other("bf16", machine.compiles), machine.seconds)
    if not machine.compiles:
        yield compared("--compile", Load.of(run), lambda: other(run.config.precision, True), machine.seconds)


def compared(setting: str, usual: Load, make: Callable[[], Load], seconds: float) -> Trial:
    """Another load beside the usual one, in turns, per image."""
    try:
        other = make()
        work = {"attack": usual.attack, "step": usual.step, "other attack": other.attack, "other step": other.step}
        times = timed(work, seconds, usual.run.fabric)
    except (MemoryError, RuntimeError) as error:
        if out_of_memory(error) is None:
            raise
        return Trial(setting, attack=None, training=None)
    scale = other.count / usual.count
    attack, step = ratio(times["attack"], times["other attack"]), ratio(times["step"], times["other step"])
    return Trial(setting, attack=scale * attack.median, training=scale * step.median)
