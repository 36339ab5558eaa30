"""Records of any set of paths, and their numbers at any alpha and rho. Arithmetic on stored rows: no torch, no attack."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ..config import EvaluateConfig
from ..errors import BadFile
from ..storage import records
from ..storage.records import Record
from . import scoring


@dataclass(frozen=True)
class Gathered:
    """The records found with the file of each, and what could not be read."""

    found: list[tuple[Path, Record]]
    problems: list[BadFile]

    @property
    def records(self) -> list[Record]:
        return [record for _, record in self.found]


def gather(paths: Iterable[Path], alphas: Sequence[float] | None = None, rhos: Sequence[float] | None = None) -> Gathered:
    """Every record at or below these paths, once each, scored at `alphas` and `rhos` where those are given."""
    found: dict[Path, tuple[Path, Record]] = {}
    problems: list[BadFile] = []
    for path in paths:
        if not path.exists():
            raise BadFile(f"there is no {path}", hint="name run folders, folders of evaluations, or records")
        for file in records.find(path):
            if file.resolve() in found:
                continue
            try:
                record = records.load(file)
                found[file.resolve()] = file, rescored(file, record, alphas, rhos)
            except BadFile as problem:
                problems.append(problem)
    return Gathered(list(found.values()), problems)


def rescored(file: Path, record: Record, alphas: Sequence[float] | None, rhos: Sequence[float] | None) -> Record:
    """The record at other alphas and radii: A_sa and DRO from its rows; A_tr only where its own attack was run."""
    if alphas is None and rhos is None:
        return record
    rows, config = records.load_rows(records.rows_path(file)), asked_of(file, record)
    if rhos is not None:
        config = msgspec.structs.replace(config, rho=tuple(rhos))
        record = msgspec.structs.replace(record, dro=scoring.worst_in_ball(rows, config))
    if alphas is not None:
        scores = scoring.scores(rows, config, list(alphas), {row.label: row.name for row in record.per_class})
        record = msgspec.structs.replace(record, by_alpha=scores.by_alpha, per_class=scores.per_class)
    return record


def asked_of(file: Path, record: Record) -> EvaluateConfig:
    """What the record answers, as far as it concerns arithmetic; every accuracy that its rows allow."""
    stored: dict[str, Any] = {name: record.config[name] for name in ("ci", "dro_loss") if name in record.config}
    try:
        return msgspec.convert(
            {
                **stored,
                "kernel": record.kernel,
                "seed": record.attack.seed,
                "per_class": bool(record.per_class),
                "metrics": ("nat", "rob", "sa", "tr"),
            },
            EvaluateConfig,
        )
    except msgspec.ValidationError as error:
        raise BadFile(f"{file} has a config that this version does not know: {error}", hint="update wmr") from None
