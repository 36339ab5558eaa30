"""Carry out a study: train and evaluate every run, several at a time. What is done is kept, what was broken off goes on.

A run is a chain of `wmr train` and `wmr evaluate`, each a process of its own, so that a failure ends one run and no other.
Several sweeps of one study, on one machine or on a disk that several share, take runs from each other's hands in peace.
"""

import os
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..config import TrainConfig
from ..errors import FolderInUse, RunFolderError, WmrError
from ..storage import ledgers
from ..storage.files import locked, refuse_link, refuse_links, write_text
from ..storage.ledgers import Ledger
from ..storage.logs import record_ids
from ..storage.runs import RunFolder
from .jobs import Child, Command, Failure, end_all, pause
from .study import Evaluation, Run, Study

MARK = ".wmr-study"
"""A file in `logs` that says that a sweep has made the folder."""
PATIENCE = 1.0
"""Seconds until a run that another process uses is asked for again; asking is not without harm to who wants it just then."""
Chain = Generator[Command, None, None]
"""The commands of a run, one after the other; whoever follows it asks for the next when one has ended well."""


@dataclass(frozen=True)
class Standing:
    """Where a run stands. `kept` is where its records are if all of them are there; `refused` says why it cannot go on."""

    epochs: int
    is_trained: bool
    missing: tuple[Evaluation, ...]
    kept: Path | None = None
    refused: Failure | None = None

    @property
    def is_done(self) -> bool:
        return self.kept is not None

    def __str__(self) -> str:
        if self.refused is not None:
            return "refused"
        if self.is_done:
            return "done"
        if self.is_trained:
            return f"trained, {len(self.missing)} evaluation{'s' * (len(self.missing) != 1)} to do"
        return f"broken off after epoch {self.epochs}" if self.epochs else "to do"


@dataclass(frozen=True)
class RunStarted:
    """A command of a run begins."""

    run: Run
    what: str


@dataclass(frozen=True)
class RunWaits:
    """Another process uses the run."""

    run: Run


@dataclass(frozen=True)
class RunDone:
    """All records of a run are there; `was_done` before the sweep began."""

    run: Run
    was_done: bool = False


@dataclass(frozen=True)
class RunFailed:
    """A run that cannot go on."""

    run: Run
    failure: Failure


SweepEvent = RunStarted | RunWaits | RunDone | RunFailed
Walk = Generator[SweepEvent, None, None]
"""Closed before its end, it ends what it has started."""


def sweep(study: Study, *, jobs: int, data_dir: Path | None = None) -> Walk:
    """Every run of the study, `jobs` at a time; whatever ends this ends its processes, with their state saved."""
    waiting, places = list(study.runs), list(range(min(jobs, len(study.runs))))
    active: list[Active] = []
    due: dict[str, float] = {}
    try:
        while waiting or active:
            for run in [run for run in waiting if due.get(run.name, 0.0) <= time.monotonic()]:
                if not places:
                    break
                taken = take(study, run, places[0], data_dir)
                if isinstance(taken, RunWaits):
                    if run.name not in due:
                        yield taken
                    due[run.name] = time.monotonic() + PATIENCE
                    continue
                waiting.remove(run)
                if isinstance(taken, Active):
                    active.append(taken)
                    places.remove(taken.place)
                else:
                    yield taken
            for one in list(active):
                event = one.look()
                if event is not None:
                    yield event
                if isinstance(event, RunDone | RunFailed):
                    active.remove(one)
                    places.append(one.place)
            pause()
    finally:
        end_all([one.child for one in active if one.child is not None])
        for one in active:
            one.release()


def claim_folder(study: Study) -> None:
    """Refuse a folder that no sweep has made if it holds files with the names of the report."""
    names = list(filter(None, (*study.report.out, study.report.figures)))
    for name in ("logs", *names):
        refuse_links(study.folder, name)
    folder, mark = study.folder / "logs", study.folder / "logs" / MARK
    is_ours = mark.is_file() or any(folder.glob("*/output.log"))
    taken = [] if is_ours else [name for name in names if os.path.lexists(study.folder / name)]
    if taken:
        problem = f"{study.folder} is not the folder of a study, but holds {taken[0]}"
        raise RunFolderError(problem, hint=f"choose another folder in {study.file}")
    write_text(mark, f"{study.file.absolute()}\n")


def take(study: Study, run: Run, place: int, data_dir: Path | None) -> "Active | RunWaits | RunDone | RunFailed":
    """A run in hand, or why there is nothing to do for it now.

    Sweeps keep out of each other's way by the lock of the logs; only who has it looks whether anybody else uses the run.
    """
    with ExitStack() as held:
        try:
            for folder in (logs(study, run), study.path(run), *([] if study.keep is None else [study.keep / run.name])):
                refuse_link(folder)
            held.enter_context(locked(logs(study, run)))
            is_free = ledgers.is_free(study.path(run))
        except FolderInUse:
            is_free = False
        except WmrError as problem:
            return RunFailed(run, Failure(str(problem), problem.hint))
        if not is_free:
            return RunWaits(run)
        found = standing(study, run)
        if found.refused is not None:
            return RunFailed(run, found.refused)
        return RunDone(run, was_done=True) if found.is_done else Active(study, run, place, data_dir, held.pop_all())


class Active:
    """A run in hand: its chain, the process of its present command, and the lock that keeps others away."""

    def __init__(self, study: Study, run: Run, place: int, data_dir: Path | None, held: ExitStack) -> None:
        self.run, self.place = run, place
        self._study, self._held = study, held
        device = study.machine.device[place % len(study.machine.device)]
        self._chain = chain(study, run, device, data_dir)
        self.child: Child | None = None

    def look(self) -> SweepEvent | None:
        """Whatever has happened since the last look, and the next command if it is time for it."""
        if self.child is not None and self.child.status is None:
            return None
        failure = self.child.failure() if self.child is not None else None
        try:
            command = None if failure else next(self._chain, None)
            if command is not None:
                log = logs(self._study, self.run) / "output.log"
                self.child = Child(command, log, threads=self._study.machine.threads)
                return RunStarted(self.run, command.what)
        except WmrError as problem:
            failure = Failure(str(problem), problem.hint)
        self.release()
        return RunDone(self.run) if failure is None else RunFailed(self.run, failure)

    def release(self) -> None:
        """Others may have the run."""
        self._held.close()


def chain(study: Study, run: Run, device: str, data_dir: Path | None) -> Chain:
    """What is left to do for a run. The ledger is written after each command, so that none is repeated."""
    path, folder = study.path(run), logs(study, run)
    found = _standing(study, run)
    ledger = ledgers.load(path) or Ledger(settings=run.config)
    ledgers.save(path, ledger)
    if not found.is_trained:
        write_text(folder / "config.json", run.config.to_json() + "\n")
        words = ("train", "--config", str(folder / "config.json"), "--out", str(path), "--resume", *_trained_by(study))
        yield Command("training", (*words, *_placed(study, device, data_dir)), folder / "train.txt")
        ledger = msgspec.structs.replace(ledger, weights=ledgers.weights_hash(path), evaluations={})
        ledgers.save(path, ledger)
    for number, evaluation in enumerate(found.missing, 1):
        weights, output = path / f"{evaluation.checkpoint}.safetensors", folder / "evaluate.json"
        words = ("evaluate", str(weights), *evaluation.words(), "--resume", "--format", "json")
        yield Command(f"evaluation {number} of {len(found.missing)}", (*words, *_placed(study, device, data_dir)), output)
        ledger = msgspec.structs.replace(ledger, evaluations={**ledger.evaluations, evaluation.key: record_ids(output)})
        ledgers.save(path, ledger)
    if study.keep is not None:
        asked = {evaluation.key: ledger.evaluations[evaluation.key] for evaluation in study.asked_of(run)}
        ledgers.keep(path, study.keep / run.name, msgspec.structs.replace(ledger, evaluations=asked))


def _trained_by(study: Study) -> Iterator[str]:
    machine = study.machine
    yield from ("--compile",) if machine.compile else ()
    yield from ("--save-minutes", str(machine.save_minutes)) if machine.save_minutes is not None else ()


def _placed(study: Study, device: str, data_dir: Path | None) -> Iterator[str]:
    yield from ("--device", device)
    yield from ("--devices", str(study.machine.devices)) if study.machine.devices is not None else ()
    yield from ("--data-dir", str(data_dir)) if data_dir is not None else ()


def logs(study: Study, run: Run) -> Path:
    """Where the words of a run's commands go, and the lock of whoever carries them out."""
    return study.folder / "logs" / run.name


def standing(study: Study, run: Run) -> Standing:
    """Where a run stands, from its files alone; one whose files are damaged cannot go on, and others can."""
    try:
        return _standing(study, run)
    except WmrError as problem:
        refused = Failure(str(problem), problem.hint)
        return Standing(0, is_trained=False, missing=tuple(study.asked_of(run)), refused=refused)


def parts_left(study: Study, run: Run) -> int:
    """The epochs and evaluations that a run still wants; the time that a sweep still takes is guessed by them."""
    found = standing(study, run)
    return (0 if found.is_trained else run.config.epochs - found.epochs) + len(found.missing)


def _standing(study: Study, run: Run) -> Standing:
    path, asked = study.path(run), study.asked_of(run)
    places = [path] if study.keep is None else [study.keep / run.name, path]
    for place in places:
        ledger = ledgers.load(place)
        if ledger is not None and ledger.settings != run.config:
            return Standing(0, is_trained=False, missing=tuple(asked), refused=_differences(place, ledger.settings, run.config))
        if ledger is not None and all(ledgers.record_files(place, ledger, evaluation.key) for evaluation in asked):
            is_whole = bool(asked) or ledger.weights is not None
            if is_whole and (study.keep is None or place != path):
                return Standing(run.config.epochs, is_trained=True, missing=(), kept=place)
    ledger = ledgers.load(path) or Ledger(settings=run.config)
    is_trained = ledger.weights is not None and ledgers.weights_hash(path) == ledger.weights
    missing = [each for each in asked if not (is_trained and ledgers.record_files(path, ledger, each.key))]
    epochs = [entry.get("epoch", 0) for entry in RunFolder(path).read_log()]
    return Standing(max(epochs, default=0), is_trained, tuple(missing))


def record_files(study: Study, run: Run) -> list[Path]:
    """Every record that the study asks of a run, as far as they are there, once each."""
    found: dict[Path, None] = {}
    for place in [study.path(run)] if study.keep is None else [study.keep / run.name]:
        ledger = ledgers.load(place)
        if ledger is not None and ledger.settings == run.config:
            for evaluation in study.asked_of(run):
                found |= dict.fromkeys(ledgers.record_files(place, ledger, evaluation.key) or ())
    return list(found)


def known_by_records(study: Study) -> list[Run]:
    """Runs that are done because their small records are there, and not because they were carried out here."""
    return [run for run in study.runs if not study.path(run).exists() and standing(study, run).is_done]


def no_longer_covered(study: Study) -> list[str]:
    """Runs that an earlier form of the study has left in its folder."""
    names = {run.name for run in study.runs}
    places = filter(None, [study.folder, study.keep])
    return sorted({file.parent.name for place in places for file in place.glob(f"*/{ledgers.NAME}")} - names)


def _differences(place: Path, had: TrainConfig, has: TrainConfig) -> Failure:
    names = [name for name in had.__struct_fields__ if getattr(had, name) != getattr(has, name)]
    told = "; ".join(f"{name} was {getattr(had, name)!r}, is {getattr(has, name)!r}" for name in names)
    return Failure(
        f"{place} holds a run with other settings: {told}",
        "give the study another folder, or remove this one if it is not wanted any more",
    )
