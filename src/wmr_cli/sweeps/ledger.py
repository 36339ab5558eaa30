"""The ledger of a run: settings, trained weights, and the records of each evaluation. No torch.

`sweep.json` is in the run folder. A small copy of a finished run, without weights, can be kept
elsewhere, so that a study can be published with its results: config, log, records, and the columns
of the rows that a report needs.
"""

import shutil
from pathlib import Path

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open

from ..config import TrainConfig
from ..errors import BadFile
from ..reading import check_regular, decode_json, read_bytes
from ..storage import records
from ..storage.atomic import is_locked, refuse_links, write_atomically, write_text
from ..storage.records import Rows
from ..storage.runs import RunFolder
from .process import RecordId

FILE_NAME = "sweep.json"
KEPT_LOGITS = "uniform/logits"
"""The only logits that a report needs: it computes how A_sa depends on their scale."""


class Ledger(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """State of a run.

    `weights` is the hash of last.safetensors after training; evaluations map to record ids.
    """

    settings: TrainConfig
    weights: str | None = None
    evaluations: dict[str, list[RecordId]] = {}


def load(run: Path) -> Ledger | None:
    """Read the ledger of a run folder; return None if no sweep has used it."""
    try:
        return decode_json(read_bytes(run / FILE_NAME), Ledger)
    # no test for existence first: sweeps that share a disk change files at any time
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise BadFile(
            f"{run / FILE_NAME} cannot be read: {error}",
            hint="remove it, and the sweep checks the run again",
        ) from None


def save(run: Path, ledger: Ledger) -> None:
    """Write the ledger of a run folder."""
    text = msgspec.json.format(msgspec.json.encode(ledger), indent=1).decode()
    write_text(run / FILE_NAME, text + "\n")


def weights_hash(run: Path) -> str | None:
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


def record_files(run: Path, ledger: Ledger, key: str) -> list[Path] | None:
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
    save(target, ledger)


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
