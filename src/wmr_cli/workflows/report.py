"""Records of any set of paths, and their numbers at any alpha and rho. Arithmetic on stored rows: no torch, no attack."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

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
    return Gathered(_in_order(list(found.values())), problems)


def _in_order(found: Sequence[tuple[Path, Record]]) -> list[tuple[Path, Record]]:
    """Folder by folder as they were found; in a folder by data, ball and attack, worst cases behind their attacks.

    Files are called by their hashes, whose order says nothing. What may be compared keeps its order.
    """
    places = {file.parent: number for number, (file, _) in reversed(list(enumerate(found)))}

    def place(one: tuple[Path, Record]) -> tuple[int, str, str, str, float, bool, str]:
        file, record = one
        data, threat, attack = record.dataset, record.threat, record.attack
        return places[file.parent], data.name, data.split, threat.norm, threat.eps, attack.of is not None, attack.spec

    return sorted(found, key=place)


def rescored(file: Path, record: Record, alphas: Sequence[float] | None, rhos: Sequence[float] | None) -> Record:
    """The record at other alphas and radii: A_sa and DRO from its rows; A_tr only where its own attack was run."""
    if alphas is None and rhos is None:
        return record
    return scoring.rescored(record, records.rows_of(file, record), scoring.asked_of(file, record), alphas, rhos)


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
