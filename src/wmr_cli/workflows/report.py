"""Records of any set of paths, and their numbers at any alpha. Arithmetic on stored rows: no torch, no attack."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from .. import measures
from ..errors import BadFile
from ..storage import records
from ..storage.records import AlphaRow, Record


@dataclass(frozen=True)
class Gathered:
    """The records found with the file of each, and what could not be read."""

    found: list[tuple[Path, Record]]
    problems: list[BadFile]

    @property
    def records(self) -> list[Record]:
        return [record for _, record in self.found]


def gather(paths: Iterable[Path], alphas: Sequence[float] | None = None) -> Gathered:
    """Every record at or below these paths, once each, scored at `alphas` where those are given."""
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
                found[file.resolve()] = file, record if alphas is None else rescored(file, record, alphas)
            except BadFile as problem:
                problems.append(problem)
    return Gathered(list(found.values()), problems)


def rescored(file: Path, record: Record, alphas: Sequence[float]) -> Record:
    """The record at other alphas: A_sa from its rows; A_tr only where its own attack was run."""
    rows = records.load_rows(records.rows_path(file))
    return msgspec.structs.replace(
        record,
        by_alpha=[
            AlphaRow(
                alpha_test=alpha,
                a_sa=measures.sampled_accuracy(rows, record.kernel, alpha),
                a_tr=measures.crafted_accuracy(rows, record.kernel, alpha),
            )
            for alpha in alphas
        ],
    )
