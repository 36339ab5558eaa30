"""Run a study: train and evaluate every run, several at a time, and resume what was interrupted.

No torch.

Each run is a sequence of `wmr train` and `wmr evaluate`. Each command is a child process, so that a
failure ends one run and no other. Several sweeps of one study can share its runs, on one machine or
over a shared disk; locks keep them apart.
"""

import os
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..config import TrainConfig
from ..errors import BadFile, FolderInUse, RunFolderError, WmrError
from ..storage.atomic import lock_folder, refuse_link, refuse_links, write_text
from ..storage.runs import RunFolder
from . import ledger as ledgers
from .ledger import Ledger
from .process import ChildCommand, ChildProcess, CommandResult, Failure, sleep_before_poll, stop_all
from .study import Evaluation, Run, Study

STUDY_MARKER = ".wmr-study"
"""File in `logs` that marks the folder as one that a sweep has made."""
RETRY_SECONDS = 1.0
"""Time until a busy run is tried again. Trying takes the run's lock for an instant, which can
refuse it to others."""


@dataclass(frozen=True)
class RunStatus:
    """How far a run is.

    `records_folder` holds its records if all exist; `refusal` says why it cannot continue.
    """

    epochs_done: int
    is_trained: bool
    missing: tuple[Evaluation, ...]
    records_folder: Path | None = None
    refusal: Failure | None = None

    @property
    def is_done(self) -> bool:
        return self.records_folder is not None

    def __str__(self) -> str:
        if self.refusal is not None:
            return "refused"
        if self.is_done:
            return "done"
        if self.is_trained:
            return f"trained, {len(self.missing)} evaluation{'s' * (len(self.missing) != 1)} to do"
        if self.epochs_done:
            return f"interrupted after epoch {self.epochs_done}"
        return "to do"


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
    waiting = list(study.runs)
    # a slot selects the device of a run, so that parallel runs use different devices
    free_slots = list(range(min(jobs, len(study.runs))))
    active: list[ActiveRun] = []
    retry_times: dict[str, float] = {}
    try:
        while waiting or active:
            for run in list(waiting):
                if not free_slots:
                    break
                if retry_times.get(run.name, 0.0) > time.monotonic():
                    continue
                claim = claim_run(study, run, free_slots[0], data_dir)
                if isinstance(claim, RunWaiting):
                    # reported once; later attempts would repeat the same line every second
                    if run.name not in retry_times:
                        yield claim
                    retry_times[run.name] = time.monotonic() + RETRY_SECONDS
                    continue
                waiting.remove(run)
                if isinstance(claim, ActiveRun):
                    active.append(claim)
                    free_slots.remove(claim.slot)
                else:
                    yield claim
            for current in list(active):
                event = current.poll()
                if event is not None:
                    yield event
                if isinstance(event, RunDone | RunFailed):
                    active.remove(current)
                    free_slots.append(current.slot)
            sleep_before_poll()
    finally:
        # children end before their locks are released: no other sweep may start the same run
        stop_all([current.child for current in active if current.child is not None])
        for current in active:
            current.release()


def claim_folder(study: Study) -> None:
    """Mark the folder as one of a study.

    Raise if it is not one and holds files with the names of the report.
    """
    names = list(filter(None, (*study.report.out, study.report.figures)))
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

    The lock on the run's logs keeps sweeps apart. Only its holder looks whether a single `wmr
    train` or `wmr evaluate` uses the run, because looking takes that command's lock for an instant.
    """
    with ExitStack() as lock:
        try:
            for folder in (log_folder(study, run), *_record_folders(study, run)):
                refuse_link(folder)
            # the lock is not in the run folder, which `wmr train` locks itself
            lock.enter_context(lock_folder(log_folder(study, run)))
            is_free = ledgers.is_free(study.path(run))
        except FolderInUse:
            is_free = False
        except WmrError as error:
            return RunFailed(run, Failure.from_error(error))
        if not is_free:
            return RunWaiting(run)
        status = read_status(study, run)
        if status.refusal is not None:
            return RunFailed(run, status.refusal)
        if status.is_done:
            return RunDone(run, was_done=True)
        device = study.machine.device[slot % len(study.machine.device)]
        steps = run_steps(study, run, device, data_dir)
        # pop_all moves the lock into the run: it outlives this block
        return ActiveRun(study, run, slot, steps=steps, lock=lock.pop_all())


RunSteps = Generator[ChildCommand, CommandResult, None]
"""The commands of a run, one after the other. Each receives the result of the command before."""


class ActiveRun:
    """A run in progress: remaining steps, child process of the current one, lock on its logs."""

    def __init__(
        self, study: Study, run: Run, slot: int, *, steps: RunSteps, lock: ExitStack
    ) -> None:
        self.run = run
        self.slot = slot
        self.child: ChildProcess | None = None
        self._study = study
        self._steps = steps
        self._lock = lock

    def poll(self) -> SweepEvent | None:
        """Start the next command when the current one has ended; return what has happened."""
        if self.child is not None and self.child.status is None:
            return None
        try:
            if self.child is None:
                command = next(self._steps)
            else:
                result = self.child.read_result()
                if isinstance(result, Failure):
                    return self._end(RunFailed(self.run, result))
                command = self._steps.send(result)
            log = log_folder(self._study, self.run) / "output.log"
            self.child = ChildProcess(command, log, threads=self._study.machine.threads)
        except StopIteration:
            return self._end(RunDone(self.run))
        except WmrError as error:
            return self._end(RunFailed(self.run, Failure.from_error(error)))
        return RunStarted(self.run, command.title)

    def _end(self, event: SweepEvent) -> SweepEvent:
        self.release()
        return event

    def release(self) -> None:
        """Give the run back, so that other sweeps can claim it."""
        self._lock.close()


def run_steps(study: Study, run: Run, device: str, data_dir: Path | None) -> RunSteps:
    """Yield the remaining commands of a run.

    The ledger is saved after each, so that none is repeated.
    """
    path = study.path(run)
    logs = log_folder(study, run)
    result_file = logs / "result.json"
    placement = tuple(_placement_flags(study, device, data_dir))
    status = _read_status(study, run)
    # saved before training starts, so that a later study with other settings is refused
    ledger = ledgers.load(path) or Ledger(settings=run.config)
    ledgers.save(path, ledger)
    if not status.is_trained:
        config = logs / "config.json"
        write_text(config, run.config.to_json() + "\n")
        # with --resume a training that was interrupted continues, and a new one starts
        arguments = ["train", "--config", str(config), "--out", str(path), "--resume"]
        arguments += [*_training_flags(study), *placement]
        yield ChildCommand("training", tuple(arguments), result_file, logs / "train.txt")
        # evaluations of other weights are not results of these
        ledger = msgspec.structs.replace(ledger, weights=ledgers.weights_hash(path), evaluations={})
        ledgers.save(path, ledger)
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
        ledgers.save(path, ledger)
    if study.keep is not None:
        # evaluations of an earlier version of the study file are not copied
        keys = [evaluation.key for evaluation in study.evaluations_of(run)]
        evaluations = {key: ledger.evaluations[key] for key in keys}
        kept = msgspec.structs.replace(ledger, evaluations=evaluations)
        ledgers.copy_records(path, study.keep / run.name, kept)


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


def log_folder(study: Study, run: Run) -> Path:
    """Return the folder of a run's logs and of the lock between sweeps."""
    return study.folder / "logs" / run.name


def read_status(study: Study, run: Run) -> RunStatus:
    """Return how far a run is, from its files alone.

    A run with damaged files is refused; others continue.
    """
    try:
        return _read_status(study, run)
    except WmrError as error:
        return _refuse(study, run, Failure.from_error(error))


def _read_status(study: Study, run: Run) -> RunStatus:
    path = study.path(run)
    evaluations = study.evaluations_of(run)
    for folder in _record_folders(study, run):
        ledger = ledgers.load(folder)
        if ledger is None:
            continue
        if ledger.settings != run.config:
            return _refuse(study, run, _describe_differences(folder, ledger.settings, run.config))
        # with `keep`, a run is done when its copy is complete
        is_final = study.keep is None or folder != path
        # a study without evaluations only trains: `all` of an empty list would be true too early
        has_results = bool(evaluations) or ledger.weights is not None
        has_records = all(ledgers.record_files(folder, ledger, each.key) for each in evaluations)
        if is_final and has_results and has_records:
            return RunStatus(run.config.epochs, is_trained=True, missing=(), records_folder=folder)

    ledger = ledgers.load(path) or Ledger(settings=run.config)
    # weights that were replaced since are not those of this run
    is_trained = ledger.weights is not None and ledgers.weights_hash(path) == ledger.weights
    missing = [
        each
        for each in evaluations
        if not is_trained or ledgers.record_files(path, ledger, each.key) is None
    ]
    epochs = [entry.get("epoch", 0) for entry in RunFolder(path).read_log()]
    return RunStatus(max(epochs, default=0), is_trained, tuple(missing))


def _record_folders(study: Study, run: Run) -> list[Path]:
    """Folders that can hold the records of a run: the kept copy first, then the run folder."""
    path = study.path(run)
    return [path] if study.keep is None else [study.keep / run.name, path]


def _refuse(study: Study, run: Run, failure: Failure) -> RunStatus:
    missing = tuple(study.evaluations_of(run))
    return RunStatus(0, is_trained=False, missing=missing, refusal=failure)


def _describe_differences(folder: Path, stored: TrainConfig, wanted: TrainConfig) -> Failure:
    differences = [
        f"{name} was {getattr(stored, name)!r}, is {getattr(wanted, name)!r}"
        for name in stored.__struct_fields__
        if getattr(stored, name) != getattr(wanted, name)
    ]
    return Failure(
        f"{folder} holds a run with other settings: {'; '.join(differences)}",
        "choose another folder for the study, or remove this one if it is not needed",
    )


def count_remaining_parts(study: Study, run: Run) -> int:
    """Return the number of epochs and evaluations that a run still needs."""
    status = read_status(study, run)
    epochs = 0 if status.is_trained else run.config.epochs - status.epochs_done
    return epochs + len(status.missing)


def record_files(study: Study, run: Run) -> list[Path]:
    """Return every existing record of a run's evaluations, once each."""
    folder = study.path(run) if study.keep is None else study.keep / run.name
    ledger = ledgers.load(folder)
    if ledger is None or ledger.settings != run.config:
        return []
    # a dict keeps the order; two evaluations of a study can share a record
    files: dict[Path, None] = {}
    for evaluation in study.evaluations_of(run):
        files |= dict.fromkeys(ledgers.record_files(folder, ledger, evaluation.key) or ())
    return list(files)


def find_runs_known_from_records(study: Study) -> list[Run]:
    """Return runs that are done because their kept records exist, without a run folder here."""
    return [
        run
        for run in study.runs
        if not study.path(run).exists() and read_status(study, run).is_done
    ]


def find_leftover_runs(study: Study) -> list[str]:
    """Return names of runs that an earlier version of the study file has left in its folders."""
    folders = filter(None, [study.folder, study.keep])
    stored = {
        file.parent.name for folder in folders for file in folder.glob(f"*/{ledgers.FILE_NAME}")
    }
    return sorted(stored - {run.name for run in study.runs})
