"""Run a study: train and evaluate every run, several at a time, and resume what was interrupted.

No torch.

Each run is a sequence of `wmr train` and `wmr evaluate`. Each command is a child process, so that a
failure ends one run and no other. Several sweeps of one study can share its runs, on one machine or
over a shared disk; locks keep them apart.
"""

import os
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..errors import BadFile, FolderInUse, RunFolderError, WmrError
from ..storage.atomic import lock_folder, refuse_link, refuse_links, write_text
from .ledger import (
    Ledger,
    RunStatus,
    copy_records,
    is_free,
    load_ledger,
    log_folder,
    read_status,
    read_weights_hash,
    record_folders,
    save_ledger,
)
from .process import ChildCommand, ChildProcess, CommandResult, Failure, sleep_before_poll, stop_all
from .study import Run, Study

STUDY_MARKER = ".wmr-study"
"""File in `logs` that marks the folder as one that a sweep has made."""
RETRY_SECONDS = 1.0
"""Time until a busy run is tried again. Each attempt briefly holds the run's lock, and another
process could fail to get it meanwhile."""


@dataclass(frozen=True)
class RunStarted:
    """A command of a run has started."""

    run: Run
    command: str


@dataclass(frozen=True)
class RunWaiting:
    """Another process uses the run."""

    run: Run


@dataclass(frozen=True)
class RunDone:
    """All records of a run exist; `was_done` if they did before the sweep began."""

    run: Run
    was_done: bool = False


@dataclass(frozen=True)
class RunFailed:
    """A run cannot continue."""

    run: Run
    failure: Failure


SweepEvent = RunStarted | RunWaiting | RunDone | RunFailed
SweepEvents = Generator[SweepEvent, None, None]
"""Closing it before its end stops the processes that it has started."""


def run_study(study: Study, *, jobs: int, data_dir: Path | None = None) -> SweepEvents:
    """Carry out all runs, `jobs` at a time.

    When this ends early, its child processes save their state and end.
    """
    sweep = Sweep(study, jobs=jobs, data_dir=data_dir)
    try:
        while sweep.has_runs:
            yield from sweep.start_runs()
            yield from sweep.poll_runs()
            sleep_before_poll()
    finally:
        sweep.stop()


class Sweep:
    """The runs that wait, and those in progress."""

    def __init__(self, study: Study, *, jobs: int, data_dir: Path | None) -> None:
        self._study = study
        self._data_dir = data_dir
        self._waiting = list(study.runs)
        self._active: list[ActiveRun] = []
        # a slot selects the device of a run, so that parallel runs use different devices
        self._free_slots = list(range(min(jobs, len(study.runs))))
        self._retry_times: dict[str, float] = {}

    @property
    def has_runs(self) -> bool:
        """Whether a run waits or is in progress."""
        return bool(self._waiting or self._active)

    def start_runs(self) -> SweepEvents:
        """Claim a waiting run for every free slot."""
        for run in list(self._waiting):
            if not self._free_slots:
                break
            if self._retry_times.get(run.name, 0.0) > time.monotonic():
                continue
            claim = claim_run(self._study, run, self._free_slots[0], self._data_dir)
            if isinstance(claim, RunWaiting):
                # reported once; later attempts would repeat the same line every second
                if run.name not in self._retry_times:
                    yield claim
                self._retry_later(run)
                continue
            self._waiting.remove(run)
            if isinstance(claim, ActiveRun):
                self._active.append(claim)
                self._free_slots.remove(claim.slot)
            else:
                yield claim

    def poll_runs(self) -> SweepEvents:
        """Advance every run in progress whose command has ended."""
        for current in list(self._active):
            event = current.poll()
            if event is None:
                continue
            if not isinstance(event, RunStarted):
                self._active.remove(current)
                self._free_slots.append(current.slot)
            was_reported = current.run.name in self._retry_times
            if isinstance(event, RunWaiting):
                self._waiting.append(current.run)
                self._retry_later(current.run)
                # reported once, as in `start_runs`
                if was_reported:
                    continue
            yield event

    def _retry_later(self, run: Run) -> None:
        self._retry_times[run.name] = time.monotonic() + RETRY_SECONDS

    def stop(self) -> None:
        """End all child processes and release their runs."""
        # children end before their locks are released: no other sweep may start the same run
        stop_all([current.child for current in self._active if current.child is not None])
        for current in self._active:
            current.release()


def claim_folder(study: Study) -> None:
    """Mark the folder as one of a study.

    Raise if it is not one and holds files with the names of the report.
    """
    names = [name for name in (*study.report.out, study.report.figures) if name]
    # a study folder from elsewhere may contain links to files of the user
    for name in ("logs", *names):
        refuse_links(study.folder, name)
    logs = study.folder / "logs"
    marker = logs / STUDY_MARKER
    # folders of early versions have logs, but no marker
    is_study_folder = marker.is_file() or any(logs.glob("*/output.log"))
    if not is_study_folder:
        for name in names:
            if os.path.lexists(study.folder / name):
                problem = f"{study.folder} is not the folder of a study, but holds {name}"
                raise RunFolderError(problem, hint=f"choose another folder in {study.file}")
    write_text(marker, f"{study.file.absolute()}\n")


def claim_run(
    study: Study, run: Run, slot: int, data_dir: Path | None
) -> "ActiveRun | RunWaiting | RunDone | RunFailed":
    """Lock a run and return it ready to start, or return why there is nothing to do now.

    The lock on the run's logs keeps sweeps apart. Only its holder checks whether a single `wmr
    train` or `wmr evaluate` uses the run, because the check takes that command's lock for an
    instant.
    """
    with ExitStack() as lock:
        try:
            for folder in (log_folder(study, run), *record_folders(study, run)):
                refuse_link(folder)
            # the lock is not in the run folder, which `wmr train` locks itself
            lock.enter_context(lock_folder(log_folder(study, run)))
            if not is_free(study.path(run)):
                return RunWaiting(run)
        except FolderInUse:
            return RunWaiting(run)
        except WmrError as error:
            return RunFailed(run, Failure.from_error(error))
        status = read_status(study, run)
        if status.refusal is not None:
            return RunFailed(run, status.refusal)
        if status.is_done:
            return RunDone(run, was_done=True)
        device = study.machine.device[slot % len(study.machine.device)]
        placement = tuple(_placement_flags(study, device, data_dir))
        commands = remaining_commands(study, run, status, placement)
        # pop_all moves the lock into the run: it outlives this block
        return ActiveRun(study, run, slot, commands=commands, lock=lock.pop_all())


RunCommands = Generator[ChildCommand, CommandResult, None]
"""The commands of a run, one after the other. Each receives the result of the command before."""


class ActiveRun:
    """A run in progress: remaining commands, child process of the current one, lock on its logs."""

    def __init__(
        self, study: Study, run: Run, slot: int, *, commands: RunCommands, lock: ExitStack
    ) -> None:
        self.run = run
        self.slot = slot
        self.child: ChildProcess | None = None
        self._study = study
        self._commands = commands
        self._lock = lock

    def poll(self) -> SweepEvent | None:
        """Start the next command when the current one has ended; return what has happened.

        Any event but RunStarted means that the run is released.
        """
        if self.child is not None and self.child.status is None:
            return None
        try:
            command = self._next_command()
            if isinstance(command, ChildCommand):
                log = log_folder(self._study, self.run) / "output.log"
                self.child = ChildProcess(command, log, threads=self._study.machine.threads)
                return RunStarted(self.run, command.title)
            event = command
        except WmrError as error:
            event = RunFailed(self.run, Failure.from_error(error))
        self.release()
        return event

    def _next_command(self) -> "ChildCommand | RunWaiting | RunDone | RunFailed":
        """Return the command that follows, or how the run ends."""
        try:
            if self.child is None:
                return next(self._commands)
            result = self.child.read_result()
            if not isinstance(result, Failure):
                return self._commands.send(result)
        except StopIteration:
            return RunDone(self.run)
        if result.error_class == FolderInUse.__name__:
            # another process has locked the run folder since the run was claimed
            return RunWaiting(self.run)
        return RunFailed(self.run, result)

    def release(self) -> None:
        """Give the run back, so that other sweeps can claim it."""
        self._lock.close()


def remaining_commands(
    study: Study, run: Run, status: RunStatus, placement: Sequence[str]
) -> RunCommands:
    """Yield the remaining commands of a run.

    The ledger is saved after each, so that none is repeated.
    """
    path = study.path(run)
    logs = log_folder(study, run)
    result_file = logs / "result.json"
    # saved before training starts, so that a later study with other settings is refused
    ledger = load_ledger(path) or Ledger(settings=run.config)
    save_ledger(path, ledger)
    if not status.is_trained:
        config = logs / "config.json"
        write_text(config, run.config.to_json() + "\n")
        # with --resume a training that was interrupted continues, and a new one starts
        arguments = ["train", "--config", str(config), "--out", str(path), "--resume"]
        arguments += [*_training_flags(study), *placement]
        yield ChildCommand("training", tuple(arguments), result_file, logs / "train.txt")
        # evaluations of other weights are not results of these
        ledger = msgspec.structs.replace(ledger, weights=read_weights_hash(path), evaluations={})
        save_ledger(path, ledger)
    for number, evaluation in enumerate(status.missing, 1):
        title = f"evaluation {number} of {len(status.missing)}"
        weights = path / f"{evaluation.checkpoint}.safetensors"
        arguments = ["evaluate", str(weights), *evaluation.flags(), "--resume", "--format", "json"]
        arguments += placement
        output = logs / "evaluate.json"
        result = yield ChildCommand(title, tuple(arguments), result_file, output)
        # an evaluation without records would count as missing and be repeated by every sweep
        if not result.record_ids:
            raise BadFile(f"{title} of {weights} measured no records", hint=f"see {output}")
        evaluations = {**ledger.evaluations, evaluation.key: result.record_ids}
        ledger = msgspec.structs.replace(ledger, evaluations=evaluations)
        save_ledger(path, ledger)
    if study.keep is not None:
        # evaluations of an earlier version of the study file are not copied
        keys = [evaluation.key for evaluation in study.evaluations_of(run)]
        evaluations = {key: ledger.evaluations[key] for key in keys}
        kept = msgspec.structs.replace(ledger, evaluations=evaluations)
        copy_records(path, study.keep / run.name, kept)


def _training_flags(study: Study) -> Iterator[str]:
    if study.machine.compile:
        yield "--compile"
    if study.machine.save_minutes is not None:
        yield from ("--save-minutes", str(study.machine.save_minutes))


def _placement_flags(study: Study, device: str, data_dir: Path | None) -> Iterator[str]:
    yield from ("--device", device)
    if study.machine.devices is not None:
        yield from ("--devices", str(study.machine.devices))
    if data_dir is not None:
        yield from ("--data-dir", str(data_dir))
