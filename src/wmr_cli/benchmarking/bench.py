"""Measure the speed of attack and training, its distance from the limit, and other settings."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import torch
from torch import Tensor, nn

from ..config import TrainConfig
from ..core.contexts import is_accelerator
from ..core.losses import cross_entropy
from ..core.nn.fusion import MEMORY_FORMATS
from ..core.protocols import Batch
from ..core.traits import read_parameter
from ..errors import out_of_memory
from ..events import Event, Message
from ..registry import Registry
from ..runtime.accelerators import count_device_calls, synchronize
from ..runtime.distributed import Ranks
from ..runtime.fabric import Hardware, has_accelerator, launch
from ..runtime.processes import count_usable_cores
from ..training.loop import train_step, warn_of_eager_steps
from ..training.optimization import StepSettings
from ..training.setup import TrainingSetup, set_up_training
from .results import (
    Bench,
    BenchDone,
    Rate,
    Trial,
    find_other_trainings,
    recommend_commands,
    try_processes,
)
from .timing import (
    BLOCK_BYTES,
    PRODUCT_FLOPS,
    Work,
    copy_block,
    count_flops,
    estimate_roofline,
    make_bare_network,
    make_matrices,
    multiply,
    quartiles,
    run_bare_passes,
    time_alternately,
    time_ratio,
)

MAX_ROUNDS = 5
"""Rounds of a measurement. More would narrow the quartiles little."""
BATCH_FACTORS = (0.5, 2, 4)
"""Other batch sizes to try, as multiples of the given one."""


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Where to measure, and how long. Each quantity is measured at least once."""

    device: str = "auto"
    devices: int | None = None
    compile_model: bool = False
    seconds: float = 5.0
    """approximate time per quantity"""
    only_given: bool = False
    """measure the given settings only, without limits or other settings"""
    flags: Mapping[str, str] = field(default_factory=dict)
    """flags of the running command, repeated in recommended commands"""


def bench(
    config: TrainConfig, registry: Registry, data_dir: Path, options: BenchOptions
) -> Iterator[Event]:
    """Measure a training and its attack, then the limit and other settings in comparison."""
    runtime = launch(Hardware(options.device, options.devices), config.precision)
    run = set_up_training(config, registry, data_dir, runtime, compile_model=options.compile_model)
    yield Message(
        f"measuring {config.model} on {config.dataset}, {config.defense}, batch {config.batch_size}"
    )
    found = add_device_calls(measure_rates(run, options.seconds), run)
    yield from warn_of_eager_steps(run)
    # several ranks cannot start processes of their own to compare with
    if not options.only_given and runtime.ranks.count == 1:
        yield Message("measuring the limit: bare passes and a matrix product")
        found = add_limits(found, run, options.seconds)
        yield Message("measuring other settings in comparison")
        trials = [*try_batch_sizes(run, options.seconds)]
        if has_accelerator(options.device):
            trials += try_precisions(run, registry, data_dir, options)
        else:
            trials += try_threads(run, options.seconds)
            yield Message("measuring several processes")
            # measured twice: before and after the trials, which take minutes
            again = measure_rates(run, options.seconds)
            trials += try_processes([found, again], options.flags)
        found = msgspec.structs.replace(
            found,
            tried=trials,
            recommended=recommend_commands(options.flags, trials),
            other_trainings=find_other_trainings(trials),
        )
    # all ranks measure, rank 0 reports
    if runtime.ranks.is_first:
        yield BenchDone(found)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A batch to attack and to train on, divided among the ranks, with this many threads each."""

    run: TrainingSetup
    positions: Tensor
    batch: Batch
    images: int
    """over all ranks"""
    threads: int

    @classmethod
    def make(
        cls, run: TrainingSetup, images: int | None = None, threads: int | None = None
    ) -> "Workload":
        """Make a batch of the training set, by default of the configured size."""
        images = images or run.config.batch_size
        # modulo: a batch may be larger than a small dataset
        positions = run.runtime.ranks.share(torch.arange(images) % len(run.split))
        batch = next(run.batches.read([positions], epoch=0))
        threads = threads or torch.get_num_threads()
        return cls(run=run, positions=positions, batch=batch, images=images, threads=threads)

    def attack(self) -> None:
        """Run the attack of a training step, and compute the logits of its result."""
        self._begin(measure_success=True)
        self.run.learner.attack(self.batch, cross_entropy)
        self._end()

    def attack_with_steps(self, steps: int) -> None:
        """Run the attack with another number of steps, without a last forward pass."""
        self._begin(measure_success=False)
        shorter = dataclasses.replace(cast(Any, self.run.attack), steps=steps)
        self.run.learner.attack(self.batch, cross_entropy, own=shorter)

    def step(self) -> None:
        """Run a whole training step."""
        self._begin(measure_success=False)
        batch = next(self.run.batches.read([self.positions], epoch=0))
        train_step(self.run, batch)
        self._end()

    def _begin(self, *, measure_success: bool) -> None:
        # set each time: workloads with other numbers of threads alternate
        torch.set_num_threads(self.threads)
        # the last epoch, where warm-up and ramps are complete
        last_epoch = self.run.schedule_config.epochs - 1
        settings = StepSettings(self.run.config.lr)
        self.run.learner.begin_step(
            last_epoch, 0, settings, self.images, measure_success=measure_success
        )

    def _end(self) -> None:
        synchronize(self.run.runtime.device)
        # the slowest rank determines the time of a step
        self.run.runtime.ranks.barrier()


def time_work(work: Mapping[str, Work], seconds: float, ranks: Ranks) -> dict[str, list[float]]:
    """Run one round as a warm-up, then as many as fit into the time."""
    warm_up = time_alternately(work, 1)
    round_seconds = sum(sum(times) for times in warm_up.values())
    rounds = max(1, min(MAX_ROUNDS, int(seconds / round_seconds)))
    # the minimum over the ranks: with different numbers of rounds they would wait for each other
    return time_alternately(work, -ranks.max(-rounds))


def image_rate(times: list[float], images: int) -> Rate:
    """Return images per second from the seconds of every round."""
    rates = quartiles([images / seconds for seconds in times])
    return Rate(rates.median, rates.low, rates.high)


def measure_rates(run: TrainingSetup, seconds: float) -> Bench:
    """Measure attack and training with the given settings."""
    load = Workload.make(run)
    times = time_work({"attack": load.attack, "step": load.step}, seconds, run.runtime.ranks)
    steps = read_parameter(run.attack, "steps")
    return Bench(
        model=run.config.model,
        dataset=run.config.dataset,
        defense=run.config.defense,
        device=str(run.runtime.device),
        devices=run.runtime.ranks.count,
        threads=torch.get_num_threads(),
        precision=run.config.precision,
        batch_size=load.images,
        steps=1 if steps is None else steps,
        attack=image_rate(times["attack"], load.images),
        training=image_rate(times["step"], load.images),
    )


def add_device_calls(found: Bench, run: TrainingSetup) -> Bench:
    """Count launches and waits of the host per step, on devices where they can be counted."""
    load = Workload.make(run)
    device = run.runtime.device
    whole = count_device_calls(load.step, device)
    if whole is None:
        return found
    found = msgspec.structs.replace(
        found, launches_per_step=whole.launches, waits_per_step=whole.waits
    )
    attack: object = run.attack
    if not dataclasses.is_dataclass(attack) or read_parameter(run.attack, "steps") is None:
        return found
    # the difference: an attack also has a start, and checks of its result
    calls = []
    for steps in (1, 2):
        # once to warm up: the first call may compile
        load.attack_with_steps(steps)
        calls.append(count_device_calls(partial(load.attack_with_steps, steps), device))
    shorter, longer = calls
    if shorter is None or longer is None:
        return found
    return msgspec.structs.replace(
        found,
        launches_per_attack_step=longer.launches - shorter.launches,
        waits_per_attack_step=longer.waits - shorter.waits,
    )


def add_limits(found: Bench, run: TrainingSetup, seconds: float) -> Bench:
    """Compare the attack with its bare passes, and these with a matrix product."""
    load = Workload.make(run)
    networks = {
        layout: make_bare_network(run.model, load.batch.images, layout) for layout in MEMORY_FORMATS
    }
    # the precision of attacks: float16 has none of its own, see `attack_autocast`
    dtype = torch.bfloat16 if run.config.precision == "bf16" else torch.float32
    left, right = make_matrices(run.runtime.device, dtype)

    def run_passes(network: nn.Module, images: Tensor) -> None:
        with run.learner.attack_autocast():
            run_bare_passes(network, images, found.steps)

    work: dict[str, Work] = {
        layout: partial(run_passes, network, images)
        for layout, (network, images) in networks.items()
    }
    work["attack"] = load.attack
    work["product"] = partial(multiply, left, right)
    has_roofline = is_accelerator(run.runtime.device)
    if has_roofline:
        block = torch.zeros(2, BLOCK_BYTES, dtype=torch.uint8, device=run.runtime.device)
        work["copy"] = partial(copy_block, block[0], block[1])
    # twice the time, because four functions are compared instead of two
    times = time_work(work, 2 * seconds, run.runtime.ranks)
    layout = min(MEMORY_FORMATS, key=lambda name: quartiles(times[name]).median)
    # ratio of operations: what the matrix product would need for those of the bare passes
    work_ratio = PRODUCT_FLOPS / count_flops(*networks[layout], found.steps)
    share_of_roofline = None
    if has_roofline:
        with run.learner.attack_autocast():
            fastest = estimate_roofline(
                *networks[layout],
                found.steps,
                flops_per_second=PRODUCT_FLOPS / min(times["product"]),
                # a copy reads and writes
                bytes_per_second=2 * BLOCK_BYTES / min(times["copy"]),
            )
        share_of_roofline = fastest / quartiles(times["attack"]).median
    return msgspec.structs.replace(
        found,
        share_of_roofline=share_of_roofline,
        limit=image_rate(times[layout], load.images),
        share_of_limit=time_ratio(times[layout], times["attack"]).median,
        layout=layout,
        # the fastest round: a peak is not lowered by other load
        peak_gflops=PRODUCT_FLOPS / min(times["product"]) / 1e9,
        share_of_peak=time_ratio(times["product"], times[layout]).median / work_ratio,
    )


def try_batch_sizes(run: TrainingSetup, seconds: float) -> Iterator[Trial]:
    """Compare smaller and larger batches with the given size."""
    for factor in BATCH_FACTORS:
        # batch norm needs two images
        size = max(2, int(run.config.batch_size * factor))
        if size != run.config.batch_size:
            make = partial(Workload.make, run, size)
            yield compare(f"--batch-size {size}", Workload.make(run), make, seconds)


def try_threads(run: TrainingSetup, seconds: float) -> Iterator[Trial]:
    """Compare one thread, and one per core, with the current number."""
    current = Workload.make(run)
    for count in sorted({1, count_usable_cores()} - {current.threads}):
        make = partial(Workload.make, run, threads=count)
        yield compare(f"--threads {count}", current, make, seconds)
    # the setting is one of the whole process, and the trials have changed it
    torch.set_num_threads(current.threads)


def try_precisions(
    run: TrainingSetup, registry: Registry, data_dir: Path, options: BenchOptions
) -> Iterator[Trial]:
    """Compare bfloat16 and a compiled network, if they are not in use."""

    def make(precision: str, *, compile_model: bool) -> Workload:
        config = msgspec.structs.replace(run.config, precision=precision)
        runtime = launch(Hardware(options.device, options.devices), precision)
        return Workload.make(
            set_up_training(config, registry, data_dir, runtime, compile_model=compile_model)
        )

    if run.config.precision == "32":
        make_bf16 = partial(make, "bf16", compile_model=options.compile_model)
        yield compare("--precision bf16", Workload.make(run), make_bf16, options.seconds)
    if not options.compile_model:
        make_compiled = partial(make, run.config.precision, compile_model=True)
        yield compare("--compile", Workload.make(run), make_compiled, options.seconds)


def compare(
    setting: str, current: Workload, make_other: Callable[[], Workload], seconds: float
) -> Trial:
    """Compare another workload with the current one, per image."""
    try:
        other = make_other()
        work = {
            "attack": current.attack,
            "step": current.step,
            "other attack": other.attack,
            "other step": other.step,
        }
        times = time_work(work, seconds, current.run.runtime.ranks)
    except (MemoryError, RuntimeError) as error:
        if out_of_memory(error) is None:
            raise
        return Trial(setting, attack=None, training=None)
    # a batch of another size takes another time; speed-ups are per image
    scale = other.images / current.images
    return Trial(
        setting,
        attack=scale * time_ratio(times["attack"], times["other attack"]).median,
        training=scale * time_ratio(times["step"], times["other step"]).median,
    )
