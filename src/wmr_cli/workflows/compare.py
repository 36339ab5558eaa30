"""What stored rows say of several models on the same images. Arithmetic only: no torch, no attack."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..errors import BadFile
from ..measures import Outcome, Resampled, Resamples
from ..reporting.comparisons import contenders
from ..reporting.peers import Peers
from ..storage import records
from ..storage.records import Record, Rows
from . import scoring

Key = tuple[str, str, float | None]
"""Id of a record, name of a share, alpha."""


@dataclass(frozen=True)
class Weighed:
    """Every share of every record in every resample of its images, and the records whose rows cannot be used."""

    evidence: dict[Key, Resampled] = field(default_factory=dict)
    problems: list[BadFile] = field(default_factory=list)


def weighed(found: Iterable[Peers], files: Mapping[str, Path], *, compare: bool) -> Weighed:
    """The evidence of all peers among which there is anything to tell apart.

    To `compare`, the seeds of one model are such, too, and a record needs its rows; otherwise it may make do without.
    """
    made = Weighed()
    drawn: dict[int, Resamples] = {}
    for peers in found:
        if len(contenders(peers) if compare else peers.entries) < 2:
            continue
        outcomes = _outcomes(peers.records, files, made.problems, needs_rows=compare)
        if outcomes:
            images = len(next(iter(outcomes.values())).correct)
            resamples = drawn.setdefault(images, Resamples(images))
            made.evidence.update(zip(outcomes, resamples.of(list(outcomes.values())), strict=True))
    return made


def _outcomes(
    members: Sequence[Record], files: Mapping[str, Path], problems: list[BadFile], *, needs_rows: bool
) -> dict[Key, Outcome]:
    """What is behind every share of records measured alike, image by image in one order."""
    index = None
    made: dict[Key, Outcome] = {}
    for record in {record.id: record for record in members}.values():
        file = files[record.id]
        try:
            rows = _in_order(records.rows_of(file, record))
            index = rows["index"] if index is None else index
            if not np.array_equal(rows["index"], index):
                raise BadFile(f"the rows of {file} are of other images than it says", hint="evaluate again")
            made |= _of_record(record, rows, file)
        except BadFile as problem:
            # a record may travel without its rows; what is there and cannot be read is said
            if needs_rows or records.rows_path(file).exists():
                problems.append(problem)
    return made


def _in_order(rows: Rows) -> Rows:
    """Rows by the index of their images: they are joined by it, never by position."""
    if (np.diff(rows["index"]) > 0).all():
        return rows
    order = np.argsort(rows["index"], kind="stable")
    return {name: values[order] for name, values in rows.items()}


def _of_record(record: Record, rows: Rows, file: Path) -> dict[Key, Outcome]:
    alphas = [row.alpha_test for row in record.by_alpha]
    outcomes = scoring.asked_outcomes(rows, scoring.asked_of(file, record), alphas)
    return {(record.id, f"a_{name}", alpha): outcome for (name, alpha), outcome in outcomes.items() if outcome is not None}
