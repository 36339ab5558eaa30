"""The training loop: steps, validation, log and checkpoints of every epoch."""

import math
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from ..config import TrainConfig
from ..core.contexts import tuned_convolutions
from ..core.protocols import Batch, Split
from ..core.rng import derive_seed
from ..core.run_attack import check_report
from ..events import (
    EpochDone,
    Event,
    Message,
    StepDone,
    TrainingDone,
    TrainingStarted,
    TrainingStopped,
)
from ..registry import Registry
from ..runtime.accelerators import copies_without_blocking
from ..runtime.distributed import limit_waiting
from ..runtime.fabric import Hardware, launch
from ..runtime.loggers import RunLoggers
from ..storage.runs import RunFolder, restore_init_hash
from .checkpointing import (
    SAVE_REQUEST,
    Progress,
    SignalHandler,
    best_epoch,
    describe_early_stop,
    open_training,
    save_epoch,
    save_state,
    stops_early,
)
from .compatibility import divide_batch
from .extra import ExtraImages, add_extra
from .monitoring import (
    LogEntry,
    check_losses,
    guessing_accuracy,
    locate_errors,
    new_warnings,
)
from .optimization import settings_at
from .setup import TrainingSetup, set_up_training
from .validation import validate_if_due

SETUP_TIMEOUT = timedelta(hours=1)
"""How long a rank waits for others that read and check a dataset."""
STEP_TIMEOUT = timedelta(minutes=10)
"""How long a rank waits once steps run. A rank that fails or dies is noticed at once."""
SAVE_MINUTES = 10.0
"""Default interval between checkpoints inside an epoch."""
MAX_SUCCESS_INTERVAL = 10
"""Attack success is measured at least every 10th step. It costs a forward pass."""
MIN_SUCCESS_MEASUREMENTS = 10
"""Attack success is measured at least 10 times per epoch, or in every step of a shorter one."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """How to run a training. Unlike `TrainConfig`, this changes its result by rounding at most."""

    data_dir: Path
    hardware: Hardware = field(default_factory=Hardware)
    compile_model: bool = False
    save_minutes: float = SAVE_MINUTES
    loggers: tuple[str, ...] = ()
    resume: bool = False
    overwrite: bool = False


def train(
    config: TrainConfig, path: Path, registry: Registry, options: TrainOptions
) -> Iterator[Event]:
    """Run or resume a training in the run folder `path`. All ranks call this together."""
    started = time.perf_counter()
    # before the processes start: a missing package is reported once
    loggers = RunLoggers(options.loggers, registry)
    runtime = launch(options.hardware, config.precision, SETUP_TIMEOUT)
    ranks = runtime.ranks
    resumes = options.resume and RunFolder(path).resume.exists()
    if resumes:
        config = restore_init_hash(path, config)
    run = set_up_training(
        config,
        registry,
        options.data_dir,
        runtime,
        compile_model=options.compile_model,
        threads=options.hardware.count_threads(),
        resumes=resumes,
    )
    yield from describe_setup(run)

    # a defense that replays each batch m times has 1/m of the epochs, at equal cost
    epochs = run.schedule_config.epochs
    guessing = guessing_accuracy(run.split.labels)
    with ExitStack() as stack:
        stack.enter_context(tuned_convolutions())
        # nothing was written so far: a mistake in the settings leaves no trace
        folder, progress = open_training(
            stack, run, path, resume=options.resume, overwrite=options.overwrite
        )
        if not ranks.is_first:
            loggers = RunLoggers((), registry)
        stack.callback(loggers.close)
        settings = msgspec.json.decode(run.config.to_json())
        yield from loggers.open(path, settings, folder.read_log())
        if runtime.threads is not None:
            # known only now: a resumed run keeps its number
            yield Message(describe_threads(runtime.threads))
        signals = SignalHandler(options.save_minutes)
        yield TrainingStarted(progress.epoch, progress.step_in_epoch, epochs, count_steps(run))

        for epoch in range(progress.epoch, epochs):
            if stops_early(run, progress):
                yield Message(f"the run is complete: it {describe_early_stop(run, progress)}")
                break
            epoch_started = time.perf_counter()
            first_step = progress.step_in_epoch
            with signals.deferred():
                progress = yield from train_steps(run, folder, progress, signals)
                # before validation, which may take long and is not resumed in the middle
                save_state(folder, run, progress)
            # a signal may have reached one rank only, and all ranks must stop together
            if signal := ranks.max(signals.signal):
                if ranks.is_first:
                    yield TrainingStopped(path, signal, epoch + 1, progress.step_in_epoch)
                return

            entry = summarize_epoch(run, epoch, first_step, time.perf_counter() - epoch_started)
            entry |= validate_if_due(run, epoch + 1)
            progress = save_epoch(folder, run, entry, progress)
            # after the state: a logger that fails does not cost the epoch
            yield from loggers.log_epoch(entry)
            yield EpochDone(epoch + 1, epochs, entry)
            for text in new_warnings(folder.read_log(), guessing, config.eps):
                yield Message(text, is_warning=True)

        if ranks.is_first:
            entries = folder.read_log()
            seconds = time.perf_counter() - started
            best = best_epoch(entries, config.select)
            yield from loggers.close(is_complete=True)
            yield TrainingDone(path, folder.last, seconds, entries, best)


def train_steps(
    run: TrainingSetup, folder: RunFolder, progress: Progress, signals: SignalHandler
) -> Generator[Event, None, Progress]:
    """Run the remaining steps of an epoch, or stop after the step in which a signal arrives."""
    ranks = run.runtime.ranks
    epoch = progress.epoch
    steps = count_steps(run)
    interval = max(1, min(MAX_SUCCESS_INTERVAL, steps // MIN_SUCCESS_MEASUREMENTS))
    remaining = make_batches(run.split, run.config, epoch, run.extra)[progress.step_in_epoch :]
    reader = run.batches.read([ranks.share(positions) for positions in remaining], epoch)
    loss: float | None = None
    for positions in remaining:
        # over the whole run: schedules and random numbers follow from it
        global_step = epoch * steps + progress.step_in_epoch
        run.learner.begin_step(
            epoch,
            global_step,
            settings_at(run.schedule_config, global_step, steps),
            len(positions),
            measure_success=progress.step_in_epoch % interval == 0,
        )
        with locate_errors(epoch, progress.step_in_epoch), ranks.describe_errors():
            losses = train_step(run, next(reader))
        newest = check_losses(losses, epoch)
        loss = loss if newest is None else newest
        yield from warn_of_eager_steps(run)
        if positions is remaining[0]:
            # not before: the first step of a run compiles and loads kernels, which may take long
            limit_waiting(STEP_TIMEOUT)
        progress = replace(progress, step_in_epoch=progress.step_in_epoch + 1)
        yield StepDone(epoch + 1, global_step, len(positions), loss)

        # the largest request of all ranks: saving is a collective operation
        request = ranks.max(signals.request)
        if request == SAVE_REQUEST:
            check_losses(run.statistics.collect(ranks), epoch)
            save_state(folder, run, progress)
            signals.note_saved()
        elif request:
            break
    check_losses(run.statistics.collect(ranks), epoch)
    return progress


def describe_threads(threads: int) -> str:
    """Return `computing with 1 thread`, for each process."""
    return f"computing with {threads} thread{'s' * (threads != 1)} per process"


def describe_setup(run: TrainingSetup) -> Iterator[Message]:
    """Yield warnings about the settings of a run, and facts about its parts."""
    for text in run.list_warnings():
        yield Message(text, is_warning=True)
    for text in run.describe():
        yield Message(text)


def warn_of_eager_steps(run: TrainingSetup) -> Iterator[Message]:
    """Yield once what is not compiled, although the user asked for it."""
    if run.learner.compiler is not None:
        for problem in run.learner.compiler.take_problems():
            yield Message(problem, is_warning=True)


def train_step(run: TrainingSetup, batch: Batch) -> list[tuple[int, float]]:
    """Run one step on this rank's part of a batch.

    Return the steps of the epoch whose statistics have arrived, each with the mean loss of all
    ranks: this step, or the one before on a GPU.
    """
    report = run.defense.step(run.learner, batch)
    check_report(run.defense, report, len(batch.labels))
    if run.average is not None:
        run.average.update(run.model)
    run.statistics.add(report, run.learner.attack_outcome)
    # an exchange between ranks: all of them must reach this line
    leave = int(copies_without_blocking(run.runtime.device))
    return run.statistics.collect(run.runtime.ranks, leave=leave)


def make_batches(
    split: Split, config: TrainConfig, epoch: int, extra: ExtraImages | None = None
) -> tuple[Tensor, ...]:
    """Return the positions of each batch of an epoch, in an order given by seed and epoch.

    Positions of extra images follow those of the split.
    """
    generator = torch.Generator().manual_seed(derive_seed("order", config.seed, epoch))
    order = torch.randperm(len(split), generator=generator)
    # nearly equal sizes instead of a small last batch, which batch norm would suffer from
    batches = order.tensor_split(count_batches(split, config))
    return batches if extra is None else add_extra(batches, extra, config, len(split), epoch)


def count_batches(split: Split, config: TrainConfig) -> int:
    """Return the number of batches of an epoch, which is one pass over the split."""
    main, _ = divide_batch(config)
    return math.ceil(len(split) / main)


def count_steps(run: TrainingSetup) -> int:
    """Return the number of batches of an epoch."""
    return count_batches(run.split, run.config)


def summarize_epoch(run: TrainingSetup, epoch: int, first_step: int, seconds: float) -> LogEntry:
    """Return the log entry of an epoch whose steps since `first_step` took this time."""
    steps = count_steps(run)
    last = settings_at(run.schedule_config, (epoch + 1) * steps - 1, steps)
    entry: LogEntry = {"epoch": epoch + 1, **run.statistics.summary()}
    entry["lr"] = last.learning_rate
    entry["eps"] = last.eps_fraction * run.config.eps
    weight_factor = run.defense.traits.weight_factor
    if weight_factor:
        entry["beta_weight_mean"] = weight_factor * entry["weight_mean"]
    # a run may resume after the last step of an epoch
    batches = make_batches(run.split, run.config, epoch, run.extra)
    if run.extra is not None:
        # statistics of training images cover these, too
        entry["extra_images"] = sum(map(len, batches)) - len(run.split)
    images = sum(map(len, batches[first_step:]))
    entry["images_per_second"] = images / seconds if images else None
    return entry
