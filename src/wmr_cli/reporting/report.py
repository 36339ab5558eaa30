"""Everything that a report shows, in any format.

Records of any set of paths, and their numbers at any alpha and rho. Arithmetic on stored rows: no torch, no attack.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from ..errors import BadFile, BadInput
from ..paper import tables as paper_tables
from ..paper.matching import Match, match_rows
from ..spec import Spec
from ..storage import records
from ..storage.records import Record, rows_path
from . import ranking, scoring
from .grouping import ComparisonGroup, group_by_setting
from .ranking import Comparison, ResampledAccuracies, compare_groups
from .rows import ACCURACIES, make_group_rows, name_attacks
from .scoring import ResampledRecords, resample_groups
from .tables import main
from .tables.details import make_detail_tables
from .tables.text_table import UNLIMITED_WIDTH, TextTable, render_text


@dataclass(frozen=True)
class Report:
    """Records with their files, taken together and ranked, and what was asked for beside them; None was not asked for."""

    found: Sequence[tuple[Path, Record]] = ()
    groups: Sequence[ComparisonGroup] = ()
    resampled: ResampledAccuracies | None = None
    comparisons: Sequence[Comparison] | None = None
    matches: Sequence[Match] | None = None
    shows_paper: bool = False

    @property
    def records(self) -> list[Record]:
        return [record for _, record in self.found]

    def tables(self) -> list[TextTable]:
        """Every table, the main one first."""
        made = (
            [
                main.make_ranked_table(self.groups, self.resampled or {}),
                *make_detail_tables(self.records),
            ]
            if self.found
            else []
        )
        return made + self.comparison_tables()

    def comparison_tables(self) -> list[TextTable]:
        """What was asked for beside the records: differences between models, the paper's rows, the paper's tables."""
        made = list(
            ranking.make_comparison_tables(self.comparisons or (), name_attacks(self.records))
        )
        made += [paper_tables.make_match_table(self.matches)] if self.matches else []
        return made + (list(paper_tables.make_paper_tables()) if self.shows_paper else [])

    def to_csv(self) -> str:
        """One table: the records, or what was asked for beside them."""
        asked = self.comparisons is not None, self.matches is not None or self.shows_paper
        if all(asked):
            raise BadInput(
                "one CSV holds one table",
                hint="leave out --compare or --paper, or take another --format",
            )
        if self.comparisons is not None:
            return ranking.comparisons_to_csv(self.comparisons, name_attacks(self.records))
        if self.shows_paper:
            return paper_tables.paper_to_csv()
        return (
            main.to_csv(self.records)
            if self.matches is None
            else paper_tables.matches_to_csv(self.matches)
        )

    def to_json(self) -> Any:
        """For JSON: a list of records, or an object that holds it and what was asked for beside them."""
        placed = main.locate_records(self.groups)
        records = [
            {**one, **_over_seeds(placed.get(one["id"]))} for one in records_to_json(self.found)
        ]
        parts = {
            "comparisons": None
            if self.comparisons is None
            else ranking.comparisons_to_json(self.comparisons),
            "beside_paper": None
            if self.matches is None
            else paper_tables.matches_to_json(self.matches),
            "paper": paper_tables.paper_to_json() if self.shows_paper else None,
        }
        asked = {name: part for name, part in parts.items() if part is not None}
        return {"records": records, **asked} if asked else records


def records_to_json(found: Sequence[tuple[Path, Record]]) -> list[dict[str, Any]]:
    """Records as plain data, each with the absolute path of its rows, a worst case also with the attacks behind it."""
    attacks = name_attacks(record for _, record in found)
    return [
        {
            **msgspec.to_builtins(record),
            "rows": str(rows_path(file).absolute()),
            **({"worst_of": list(attacks.of(record))} if attacks.of(record) else {}),
        }
        for file, record in found
    ]


def _over_seeds(place: main.RecordPosition | None) -> dict[str, Any]:
    """For a record with seeds beside it: what they give together, alpha by alpha."""
    if place is None or place.seeds < 2:
        return {}
    by_alpha = [
        {
            "alpha_test": line.alpha_test,
            "ids": [record.id for record in line.records],
            **{name: msgspec.to_builtins(line.training_spread(name)) for name in ACCURACIES},
        }
        for line in place.rows.values()
    ]
    return {"over_seeds": {"model": place.model, "seeds": place.seeds, "by_alpha": by_alpha}}


@dataclass(frozen=True)
class GatheredRecords:
    """The records found with the file of each, and what could not be read."""

    found: list[tuple[Path, Record]]
    problems: list[BadFile]

    @property
    def records(self) -> list[Record]:
        return [record for _, record in self.found]


def gather_records(
    paths: Iterable[Path],
    alphas: Sequence[float] | None = None,
    rhos: Sequence[float] | None = None,
) -> GatheredRecords:
    """Every record at or below these paths, once each, scored at `alphas` and `rhos` where those are given."""
    found: dict[Path, tuple[Path, Record]] = {}
    known: dict[str, Record] = {}
    problems: list[BadFile] = []
    for path in paths:
        if not path.exists():
            raise BadFile(
                f"there is no {path}", hint="name run folders, folders of evaluations, or records"
            )
        for file in records.find_records(path):
            if file.resolve() in found:
                continue
            try:
                record = _legible(file, records.load(file))
                if known.get(record.id) == record:
                    continue  # a copy
                known[record.id] = record
                found[file.resolve()] = file, rescore_file(file, record, alphas, rhos)
            except BadFile as problem:
                problems.append(problem)
    return GatheredRecords(_in_order(list(found.values())), problems)


def _in_order(found: Sequence[tuple[Path, Record]]) -> list[tuple[Path, Record]]:
    """Folder by folder as they were found; in a folder by data, ball and attack, worst cases behind their attacks.

    Files are called by their hashes, whose order says nothing. What may be compared keeps its order.
    """
    places = {file.parent: number for number, (file, _) in reversed(list(enumerate(found)))}

    def place(one: tuple[Path, Record]) -> tuple[int, str, str, str, float, bool, str]:
        file, record = one
        data, threat, attack = record.dataset, record.threat, record.attack
        return (
            places[file.parent],
            data.name,
            data.split,
            threat.norm,
            threat.eps,
            attack.of is not None,
            attack.spec,
        )

    return sorted(found, key=place)


def rescore_file(
    file: Path, record: Record, alphas: Sequence[float] | None, rhos: Sequence[float] | None
) -> Record:
    """The record at other alphas and radii: A_sa and DRO from its rows; A_tr only where its own attack was run."""
    if alphas is None and rhos is None:
        return record
    return scoring.rescore(
        record,
        records.load_record_rows(file, record),
        scoring.stored_config(file, record),
        alphas,
        rhos,
    )


def _legible(file: Path, record: Record) -> Record:
    """A record whose components can be read, too."""
    for text in (record.attack.spec, record.checkpoint.defense, record.dataset.name):
        try:
            Spec.parse(text)
        except BadInput as problem:
            raise BadFile(
                f"{file} is not an evaluation record: {problem}", hint=problem.hint
            ) from None
    return record


def build_report(
    gathered: GatheredRecords,
    *,
    ranks: bool = True,
    compare: bool = False,
    paper: str | None = None,
) -> tuple[Report, list[BadFile]]:
    """The report of these records, and everything that could not be read for it.

    Rows are opened only to rank records or to compare them. To rank, records without rows make do with their intervals; to
    compare, they are left out and named. Rows that are there and cannot be used are named in any case.
    """
    groups = group_by_setting(gathered.records)
    files = {record.id: file for file, record in gathered.found}
    resampled = (
        resample_groups(groups, files, compare=compare) if ranks or compare else ResampledRecords()
    )
    lines = (
        line for members in groups for entry in members.entries for line in make_group_rows(entry)
    )
    document = Report(
        found=gathered.found,
        groups=groups,
        resampled=resampled.accuracies,
        comparisons=compare_groups(groups, resampled.accuracies) if compare else None,
        matches=match_rows(lines, paper) if paper and gathered.found else None,
        shows_paper=paper == "all",
    )
    return document, [*gathered.problems, *resampled.problems]


def make_record_tables(record: Record) -> list[TextTable]:
    """Make the tables of one record, which `wmr evaluate` prints and a notebook shows."""
    return [main.make_table([record]), *make_detail_tables([record])]


def record_to_rich(record: Record, width: int | None = None) -> Iterator[Table]:
    """Yield a record's tables for a terminal of this width; None is unlimited."""
    for table in make_record_tables(record):
        yield from table.to_rich_tables(width)


def record_to_text(record: Record) -> str:
    """Render a record's tables as text, as wide as the terminal if there is one."""
    terminal = Console()
    limit = terminal.width if terminal.is_terminal else None
    return render_text(record_to_rich(record, limit), limit or UNLIMITED_WIDTH).rstrip("\n")


def record_to_markdown(record: Record) -> str:
    """Render a record's tables as pipe tables."""
    return "\n".join(table.to_markdown() for table in make_record_tables(record))


def record_to_html(record: Record) -> str:
    """Render a record's tables as HTML; columns that are equal in all rows move to the title."""
    # imported here: only notebooks need HTML
    from .html.tables import render_table

    return "".join(render_table(_hide_shared_columns(one)) for one in make_record_tables(record))


def _hide_shared_columns(table: TextTable) -> TextTable:
    shown, shared = table.split_columns()
    return replace(
        table,
        title=table.full_title(shared),
        headings=tuple(table.headings[position] for position in shown),
        rows=[tuple(row[position] for position in shown) for row in table.rows],
    )
