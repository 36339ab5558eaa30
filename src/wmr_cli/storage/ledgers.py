"""What a sweep knows of a run: the settings it was given, the weights that came of them, the records of each evaluation.

`sweep.json` lies in the run folder. A small copy of a finished run, without weights, can be kept elsewhere, so that a study
travels with its results: config, log, records, and of the rows what arithmetic needs.
"""

import shutil
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open

from ..config import TrainConfig
from ..errors import BadFile
from ..reading import check_regular, decode_json, read_bytes
from . import records
from .files import is_locked, refuse_links, write_atomically, write_text
from .records import Rows
from .runs import RunFolder

NAME = "sweep.json"
LOGITS = "uniform/logits"
"""The only logits that arithmetic asks for: how A_sa depends on their scale."""


RecordId = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}\Z")]
"""A part of file names: nothing else may stand in a ledger, such as a path to files of the user."""


class Ledger(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A run of a study. `weights` is the hash of last.safetensors once training is over; evaluations have their records' ids."""

    settings: TrainConfig
    weights: str | None = None
    evaluations: dict[str, list[RecordId]] = {}


def load(run: Path) -> Ledger | None:
    """The ledger of a run folder; None where no sweep has been."""
    try:
        return decode_json(read_bytes(run / NAME), Ledger)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise BadFile(f"{run / NAME} cannot be read: {error}", hint="remove it, and the run is looked at anew") from None


def save(run: Path, ledger: Ledger) -> None:
    """Write the ledger of a run folder."""
    write_text(run / NAME, msgspec.json.format(msgspec.json.encode(ledger), indent=1).decode() + "\n")


def weights_hash(run: Path) -> str | None:
    """The content hash that the last weights of a run say of themselves; None where there are none."""
    try:
        check_regular(RunFolder(run).last)
        with safe_open(RunFolder(run).last, framework="numpy") as file:
            return (file.metadata() or {}).get("content_sha256")
    except (OSError, SafetensorError, UnicodeDecodeError):
        return None


def record_files(run: Path, ledger: Ledger, key: str) -> list[Path] | None:
    """The records of one evaluation, all with their rows; None where one is missing."""
    files = [run / "evaluations" / f"{name}.json" for name in ledger.evaluations.get(key, ())]
    is_there = bool(files) and all(file.exists() and records.rows_path(file).exists() for file in files)
    return files if is_there else None


def is_free(folder: Path) -> bool:
    """Whether no process holds this run, or an evaluation of it; see `files.is_locked`."""
    return not any(map(is_locked, [folder, *folder.glob("evaluations/*.partial")]))


def keep(run: Path, target: Path, ledger: Ledger) -> None:
    """Copy what a report needs of a run, the ledger last: a copy that has one is whole."""
    refuse_links(target.parent, target.name, "evaluations")
    for name in ("config.json", "log.jsonl"):
        if (run / name).exists():
            _copy(run / name, target / name)
    names = dict.fromkeys(name for ids in ledger.evaluations.values() for name in ids)
    for name in names:
        file, copy = run / "evaluations" / f"{name}.json", target / "evaluations" / f"{name}.json"
        records.save_rows(records.rows_path(copy), slim(records.load_rows(records.rows_path(file))))
        _copy(file, copy)
    save(target, ledger)


def _copy(file: Path, target: Path) -> None:
    """On the disk before the ledger is, which says that it is there."""
    write_atomically(target, lambda temporary: shutil.copyfile(file, temporary))


def slim(rows: Rows) -> Rows:
    """Rows without what follows from the rest or is asked of nobody, whole numbers as short as they can be."""
    kept = {name: values for name, values in rows.items() if _is_needed(name)}
    return {
        name: values.astype(np.min_scalar_type(int(values.max()))) if values.dtype.kind in "iu" and values.size else values
        for name, values in kept.items()
    }


def _is_needed(name: str) -> bool:
    prefix, _, what = name.rpartition("/")
    if what == "logits":
        return name == LOGITS
    return what not in ("loss", "logit_margin") or prefix == "uniform"
