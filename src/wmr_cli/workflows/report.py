"""Records of any set of paths, and their numbers at any alpha and rho. Arithmetic on stored rows: no torch, no attack."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..errors import BadFile, BadInput
from ..reporting.comparisons import comparisons
from ..reporting.documents import Document
from ..reporting.lines import lines_of
from ..reporting.paper.beside import beside
from ..reporting.peers import by_setting
from ..spec import Spec
from ..storage import records
from ..storage.records import Record
from . import scoring
from .compare import Weighed, weighed


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
    known: dict[str, Record] = {}
    problems: list[BadFile] = []
    for path in paths:
        if not path.exists():
            raise BadFile(f"there is no {path}", hint="name run folders, folders of evaluations, or records")
        for file in records.find(path):
            if file.resolve() in found:
                continue
            try:
                record = _legible(file, records.load(file))
                if known.get(record.id) == record:
                    continue  # a copy
                known[record.id] = record
                found[file.resolve()] = file, rescored(file, record, alphas, rhos)
            except BadFile as problem:
                problems.append(problem)
    return Gathered(list(found.values()), problems)


def rescored(file: Path, record: Record, alphas: Sequence[float] | None, rhos: Sequence[float] | None) -> Record:
    """The record at other alphas and radii: A_sa and DRO from its rows; A_tr only where its own attack was run."""
    if alphas is None and rhos is None:
        return record
    rows, config = records.rows_of(file, record), scoring.asked_of(file, record)
    if rhos is not None and (record.attack.of is None or record.dro):
        # of the worst of several attacks the image of lowest margin is kept, which need not be that of largest loss
        config = msgspec.structs.replace(config, rho=tuple(rhos))
        record = msgspec.structs.replace(record, dro=scoring.worst_in_ball(rows, config))
    if alphas is not None:
        scores = scoring.scores(rows, config, list(alphas), {row.label: row.name for row in record.per_class})
        record = msgspec.structs.replace(record, by_alpha=scores.by_alpha, per_class=scores.per_class)
    return record


def _legible(file: Path, record: Record) -> Record:
    """A record whose components can be read, too."""
    for text in (record.attack.spec, record.checkpoint.defense, record.dataset.name):
        try:
            Spec.parse(text)
        except BadInput as problem:
            raise BadFile(f"{file} is not an evaluation record: {problem}", hint=problem.hint) from None
    return record


def assembled(
    gathered: Gathered, *, ranks: bool = True, compare: bool = False, paper: str | None = None
) -> tuple[Document, list[BadFile]]:
    """The report of these records, and everything that could not be read for it.

    Rows are opened only to rank records or to compare them. To rank, records without rows make do with their intervals; to
    compare, they are left out and named. Rows that are there and cannot be used are named in any case.
    """
    peers = by_setting(gathered.records)
    files = {record.id: file for file, record in gathered.found}
    made = weighed(peers, files, compare=compare) if ranks or compare else Weighed()
    lines = (line for members in peers for entry in members.entries for line in lines_of(entry))
    document = Document(
        found=gathered.found,
        peers=peers,
        evidence=made.evidence,
        comparisons=comparisons(peers, made.evidence) if compare else None,
        matches=beside(lines, paper) if paper and gathered.found else None,
        shows_paper=paper == "all",
    )
    return document, [*gathered.problems, *made.problems]
