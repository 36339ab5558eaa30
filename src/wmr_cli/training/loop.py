"""Train a network: batch, attack, losses, margins, weights, loss, step; then log, checkpoint, and the next epoch."""

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ..config import TrainConfig
from ..core.data.splits import read_ahead
from ..core.protocols import ObservesValidation, Split
from ..core.rng import derive_seed
from ..core.traits import read_parameter
from ..errors import RunFolderError
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
from ..runtime.fabric import Hardware, launch
from ..storage import checkpoints
from ..storage.runs import RunFolder, open_run
from .checkpointing import SAVE, Calls, Progress, restore, store
from .monitoring import (
    MetricLoggers,
    check_loggers,
    check_loss,
    guessing_accuracy,
    locate_errors,
    new_warnings,
)
from .optimization import settings_at
from .setup import Assembly, assemble
from .validation import accuracies, evidence, held_out_rows

PATIENCE = timedelta(hours=1)
"""The ranks of a training step work alike: one that waits so long for another waits in vain."""
SAVE_MINUTES = 10.0
"""So long may go by without the state being saved."""
JUDGED = 10
"""The log asks whom the attack fooled in every tenth step of an epoch, or in ten of them where they are few: it takes a pass."""


def train(
    config: TrainConfig,
    path: Path,
    registry: Registry,
    *,
    data_dir: Path,
    device: str = "auto",
    devices: int | None = None,
    nodes: int | None = None,
    compiles: bool = False,
    save_minutes: float = SAVE_MINUTES,
    loggers: tuple[str, ...] = (),
    resume: bool = False,
    overwrite: bool = False,
) -> Iterator[Event]:
    """Run, or go on with, the training that `config` describes, in the run folder `path`. Of several ranks the first speaks."""
    started = time.perf_counter()
    check_loggers(loggers)
    runtime = launch(Hardware(device, devices, nodes), config.precision, PATIENCE)
    ranks = runtime.ranks
    run = assemble(config, registry, data_dir, runtime, compiles=compiles)
    steps, guessing = (
        math.ceil(len(run.split) / config.batch_size),
        guessing_accuracy(run.split.labels),
    )
    epochs = run.timetable.epochs
    yield from (Message(text, warns=True) for text in run.remarks())
    yield from map(Message, run.facts())

    with ExitStack() as held:
        folder, progress = begin(held, run, path, resume=resume, overwrite=overwrite)
        logs, calls = (
            MetricLoggers(loggers if ranks.is_first else (), path, folder.read_log()),
            Calls(save_minutes),
        )
        yield TrainingStarted(progress.epoch, progress.step, epochs, steps)
        for epoch in range(progress.epoch, epochs):
            todo, epoch_started = (
                batches(run.split, config, epoch)[progress.step :],
                time.perf_counter(),
            )
            with calls.noted():
                reader = read_ahead(run.split, [ranks.share(positions) for positions in todo])
                for positions in todo:
                    step = epoch * steps + progress.step
                    judged = progress.step % max(1, min(JUDGED, steps // JUDGED)) == 0
                    run.learner.begin_step(
                        epoch,
                        step,
                        settings_at(run.timetable, step, steps),
                        len(positions),
                        judged=judged,
                    )
                    with locate_errors(epoch, progress.step), ranks.propagate_errors():
                        loss = run.step(next(reader), epoch)
                    check_loss(loss, epoch, progress.step)
                    progress = replace(progress, step=progress.step + 1)
                    yield StepDone(epoch + 1, step, len(positions), loss)
                    call = ranks.max(calls.pending)
                    if call == SAVE:
                        save(folder, run, progress)
                        calls.saved()
                    elif call:
                        break
                save(folder, run, progress)  # now, as the look at held-out images may take long
            if signal := ranks.max(calls.signal):
                if ranks.is_first:
                    yield TrainingStopped(path, signal, epoch + 1, progress.step)
                return

            rate = sum(map(len, todo)) / (time.perf_counter() - epoch_started) if todo else None
            entry = {"epoch": epoch + 1, **run.summary(epoch, steps), "images_per_second": rate}
            entry |= held_out(run, registry, epoch + 1)
            progress = keep(folder, run, entry, progress)
            with ranks.collective():
                logs.log(entry)
            yield EpochDone(epoch + 1, epochs, entry)
            yield from (
                Message(text, warns=True)
                for text in new_warnings(folder.read_log(), guessing, config.eps)
            )
        if ranks.is_first:
            entries = folder.read_log()
            yield TrainingDone(
                path,
                folder.last,
                time.perf_counter() - started,
                entries,
                best_epoch(entries, config.select),
            )


def begin(
    held: ExitStack, run: Assembly, path: Path, *, resume: bool, overwrite: bool
) -> tuple[RunFolder, Progress]:
    """The run folder, in the hands of the first rank, and every rank where the run stands."""
    folder, ranks = RunFolder(path), run.runtime.ranks
    with ranks.collective():
        if ranks.is_first:
            held.enter_context(open_run(path, run.config, resume=resume, overwrite=overwrite))
    with ranks.collective():
        progress = restore(folder, run.source, run.model, run.optimizer, run.stateful)
    places = ranks.all_gather(torch.tensor([progress.epoch, progress.step]))
    if (places != places[0]).any():
        raise RunFolderError(
            f"{path} is not the same folder for all processes",
            hint="put it on a disk that all nodes share",
        )
    if ranks.is_first:
        folder.write_log([entry for entry in folder.read_log() if entry["epoch"] <= progress.epoch])
    # weights that somebody has removed are in the state still
    files = {
        folder.last: run.model,
        **({} if run.average is None else {folder.ema: run.average.model}),
    }
    missing = {
        file: model
        for file, model in files.items()
        if progress.epoch and not progress.step and not file.exists()
    }
    with ranks.collective():
        for file, model in missing.items() if ranks.is_first else ():
            write_weights(file, run, model, progress.epoch)
    return folder, progress


def save(folder: RunFolder, run: Assembly, progress: Progress) -> None:
    """Write the state that resuming trusts."""
    with run.runtime.ranks.collective():
        states = {owner: part.state() for owner, part in run.stateful.items()}
        if run.runtime.ranks.is_first:
            store(folder, progress, run.source, run.model, run.optimizer, states)


def held_out(run: Assembly, registry: Registry, epoch: int) -> dict[str, Any]:
    """How the network, and the average of its weights, do on held-out images, in every so many epochs and the last.

    A kernel that learns from them sees them after every epoch.
    """
    every = run.config.validate_every
    kernel = run.kernel
    is_due = every and (epoch % every == 0 or epoch == run.timetable.epochs)
    if not (is_due or isinstance(kernel, ObservesValidation)):
        return {}
    rows = held_out_rows(run.model, run.source, run.config, run.validation, registry, run.runtime)
    if isinstance(kernel, ObservesValidation):
        kernel.observe(evidence(rows, run.runtime.device))
    if not is_due:
        return {}
    entry = accuracies(rows, run.config)
    if run.average is None:
        return entry
    averaged = held_out_rows(
        run.average.model, run.source, run.config, run.validation, registry, run.runtime
    )
    return entry | {
        f"ema_{name}": value for name, value in accuracies(averaged, run.config).items()
    }


def keep(folder: RunFolder, run: Assembly, entry: dict[str, Any], progress: Progress) -> Progress:
    """Write the epoch: weights, the best ones if these are, their average, the log, and last the state."""
    score = entry.get(f"val_a_{run.config.select}")
    is_best = score is not None and (progress.best is None or score > progress.best)
    progress = Progress(entry["epoch"], best=score if is_best else progress.best)
    files = {folder.last: run.model, **({folder.best: run.model} if is_best else {})}
    files |= {} if run.average is None else {folder.ema: run.average.model}
    with run.runtime.ranks.collective():
        if run.runtime.ranks.is_first:
            for file, model in files.items():
                write_weights(file, run, model, progress.epoch)
            folder.write_log([*folder.read_log(), entry])
    run.tally.clear()
    save(folder, run, progress)
    return progress


def write_weights(file: Path, run: Assembly, model: Module, epoch: int) -> None:
    """A checkpoint that says how it was trained."""
    alpha = read_parameter(run.kernel, "alpha")
    checkpoints.save(
        file, model.state_dict(), run.config, run.source, alpha_train=alpha, epoch=epoch
    )


def best_epoch(entries: list[dict[str, Any]], select: str) -> int | None:
    """The epoch whose weights best.safetensors holds: the first of those that scored highest."""
    scored = [entry for entry in entries if f"val_a_{select}" in entry]
    return max(scored, key=lambda entry: entry[f"val_a_{select}"])["epoch"] if scored else None


def batches(split: Split, config: TrainConfig, epoch: int) -> tuple[Tensor, ...]:
    """The positions of each batch of an epoch: an order that seed and epoch fix, dealt into batches of nearly equal size."""
    generator = torch.Generator().manual_seed(derive_seed("order", config.seed, epoch))
    order = torch.randperm(len(split), generator=generator)
    return order.tensor_split(math.ceil(len(split) / config.batch_size))
