"""How far each run of a study is, from its files alone. No torch.

The ledger of a run, `sweep.json` in its folder, holds settings, hash of the trained weights, and
the records of each evaluation. A small copy of a finished run, without weights, can be kept
elsewhere, so that a study can be published with its results: config, log, records, and the columns
of the rows that a report needs.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open

from ..config import TrainConfig
from ..errors import BadFile, WmrError
from ..reading import check_regular, decode_json, read_bytes
from ..storage import records
from ..storage.atomic import is_locked, refuse_links, write_atomically, write_text
from ..storage.records import Rows
from ..storage.runs import RunFolder
from .process import Failure, RecordId
from .study import Evaluation, Run, Study

LEDGER_NAME = "sweep.json"
KEPT_LOGITS = "uniform/logits"
"""The only logits that a report needs: it computes how A_sa depends on their scale."""


class Ledger(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """State of a run.

    `weights` is the hash of last.safetensors after training; evaluations map to record ids.
    """

    settings: TrainConfig
    weights: str | None = None
    evaluations: dict[str, list[RecordId]] = {}


def load_ledger(run: Path) -> Ledger | None:
    """Read the ledger of a run folder; return None if no sweep has used it."""
    try:
        return decode_json(read_bytes(run / LEDGER_NAME), Ledger)
    # no test for existence first: sweeps that share a disk change files at any time
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise BadFile(
            f"{run / LEDGER_NAME} cannot be read: {error}",
            hint="remove it, and the sweep checks the run again",
        ) from None


def save_ledger(run: Path, ledger: Ledger) -> None:
    """Write the ledger of a run folder."""
    text = msgspec.json.format(msgspec.json.encode(ledger), indent=1).decode()
    write_text(run / LEDGER_NAME, text + "\n")


def read_weights_hash(run: Path) -> str | None:
    """Return the content hash in the header of the last weights; None if they cannot be read."""
    weights = RunFolder(run).last
    try:
        # safe_open would block on a FIFO
        check_regular(weights)
        with safe_open(weights, framework="numpy") as file:
            return (file.metadata() or {}).get("content_sha256")
    except (OSError, SafetensorError, UnicodeDecodeError):
        # damaged weights count as missing, so that the run is trained again
        return None


def find_records(run: Path, ledger: Ledger, key: str) -> list[Path] | None:
    """Return the records of one evaluation if all of them and their rows exist, otherwise None."""
    files = [run / "evaluations" / f"{name}.json" for name in ledger.evaluations.get(key, ())]
    if not files:
        return None
    for file in files:
        # a report cannot recompute measures without rows
        if not file.exists() or not records.rows_path(file).exists():
            return None
    return files


def is_free(run: Path) -> bool:
    """Return whether no process holds the lock of this run or of an evaluation of it."""
    return not any(map(is_locked, [run, *run.glob("evaluations/*.partial")]))


def copy_records(run: Path, target: Path, ledger: Ledger) -> None:
    """Copy what a report needs of a run.

    The ledger is written last, so that a copy with one is complete.
    """
    refuse_links(target.parent, target.name, "evaluations")
    for name in ("config.json", "log.jsonl"):
        if (run / name).exists():
            _copy_file(run / name, target / name)
    # evaluations can share a record, which is copied once
    names = dict.fromkeys(name for ids in ledger.evaluations.values() for name in ids)
    for name in names:
        record = run / "evaluations" / f"{name}.json"
        copy = target / "evaluations" / f"{name}.json"
        rows = records.load_rows(records.rows_path(record))
        records.save_rows(records.rows_path(copy), compact_rows(rows))
        _copy_file(record, copy)
    save_ledger(target, ledger)


def _copy_file(file: Path, target: Path) -> None:
    # atomic, because it also flushes the copy to the disk before the ledger mentions it
    write_atomically(target, lambda temporary: shutil.copyfile(file, temporary))


def compact_rows(rows: Rows) -> Rows:
    """Return the columns that a report needs, integers in the smallest type that holds them."""
    compact: dict[str, np.ndarray] = {}
    for name, values in rows.items():
        if not _is_needed(name):
            continue
        # exact for integers; floating-point values keep their type, so reports stay the same
        is_integer = values.dtype.kind in "iu"
        if is_integer and values.size:
            compact[name] = values.astype(np.min_scalar_type(int(values.max())))
        else:
            compact[name] = values
    return compact


def _is_needed(column: str) -> bool:
    prefix, _, quantity = column.rpartition("/")
    if quantity == "logits":
        return column == KEPT_LOGITS
    # loss and logit margin of other kernels follow from the remaining columns
    return quantity not in ("loss", "logit_margin") or prefix == "uniform"


@dataclass(frozen=True)
class RunStatus:
    """How far a run is."""

    epochs_done: int
    is_trained: bool
    missing: tuple[Evaluation, ...]
    """evaluations without records"""
    is_done: bool = False
    refusal: Failure | None = None
    """why the run cannot continue"""

    def __str__(self) -> str:
        if self.refusal is not None:
            return "refused"
        if self.is_done:
            return "done"
        if self.is_trained:
            plural = "s" * (len(self.missing) != 1)
            return f"trained, {len(self.missing)} evaluation{plural} to do"
        if self.epochs_done:
            return f"interrupted after epoch {self.epochs_done}"
        return "to do"


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
    for folder in record_folders(study, run):
        ledger = load_ledger(folder)
        if ledger is None:
            continue
        if ledger.settings != run.config:
            return _refuse(study, run, _describe_differences(folder, ledger.settings, run.config))
        # with `keep`, a run is done when its copy is complete
        is_final = study.keep is None or folder != path
        # a study without evaluations only trains: `all` of an empty list would be true too early
        has_results = bool(evaluations) or ledger.weights is not None
        has_records = all(find_records(folder, ledger, each.key) for each in evaluations)
        if is_final and has_results and has_records:
            return RunStatus(run.config.epochs, is_trained=True, missing=(), is_done=True)

    ledger = load_ledger(path) or Ledger(settings=run.config)
    # weights that were replaced since are not those of this run
    is_trained = ledger.weights is not None and read_weights_hash(path) == ledger.weights
    missing = [
        each
        for each in evaluations
        if not is_trained or find_records(path, ledger, each.key) is None
    ]
    # the log has an entry per finished epoch; a new run has none
    try:
        log = RunFolder(path).read_log()
    except BadFile as error:
        # the error itself suggests a setting of `wmr train`, which a sweep does not have
        hint = f"repair the line, or remove {path} and repeat the sweep"
        raise BadFile(str(error), hint) from None
    epochs = [entry.get("epoch", 0) for entry in log]
    return RunStatus(max(epochs, default=0), is_trained, tuple(missing))


def record_folders(study: Study, run: Run) -> list[Path]:
    """Return the folders that can hold the records of a run: the kept copy, then the run folder."""
    path = study.path(run)
    if study.keep is None:
        return [path]
    return [study.keep / run.name, path]


def _refuse(study: Study, run: Run, failure: Failure) -> RunStatus:
    missing = tuple(study.evaluations_of(run))
    return RunStatus(0, is_trained=False, missing=missing, refusal=failure)


def _describe_differences(folder: Path, stored: TrainConfig, wanted: TrainConfig) -> Failure:
    old = msgspec.structs.asdict(stored)
    new = msgspec.structs.asdict(wanted)
    differences = [
        f"`{name}` was {old[name]!r}, is {new[name]!r}" for name in old if old[name] != new[name]
    ]
    return Failure(
        f"{folder} holds a run with other settings: {'; '.join(differences)}",
        "choose another folder for the study, or remove this one if it is not needed",
    )


def count_remaining_parts(study: Study, run: Run) -> int:
    """Return the number of epochs and evaluations that a run still needs."""
    status = read_status(study, run)
    parts = len(status.missing)
    if not status.is_trained:
        parts += run.config.epochs - status.epochs_done
    return parts


def list_records(study: Study, run: Run) -> list[Path]:
    """Return every existing record of a run's evaluations, once each."""
    # a study with kept copies is reported from these, wherever it was run
    folder = record_folders(study, run)[0]
    ledger = load_ledger(folder)
    if ledger is None or ledger.settings != run.config:
        return []
    # a dict keeps the order; two evaluations of a study can share a record
    files: dict[Path, None] = {}
    for evaluation in study.evaluations_of(run):
        files |= dict.fromkeys(find_records(folder, ledger, evaluation.key) or ())
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
    stored = {file.parent.name for folder in folders for file in folder.glob(f"*/{LEDGER_NAME}")}
    return sorted(stored - {run.name for run in study.runs})
