"""Gather records, group and rank them, and render them in any format.

Only arithmetic on stored rows: no torch and no attack.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from ..config import RecordFilter
from ..errors import BadFile, BadInput
from ..paper import tables as paper_tables
from ..paper.matching import Match, explain_mismatches, match_rows
from ..spec import Spec
from ..storage import records
from ..storage.records import Record, rows_path
from .comparison import (
    Comparison,
    ResampledAccuracies,
    ResampledRecords,
    compare_groups,
    resample_groups,
)
from .filters import filter_records
from .grouping import ComparisonGroup, group_by_setting
from .radii import CriticalRadii, load_critical_radii, make_radius_table
from .requirements import Judgement
from .rescoring import rescore_file
from .rows import list_accuracies, make_group_rows, name_attacks
from .tables import details, main
from .tables.requirements import judgements_to_json, make_requirement_table
from .tables.text_table import UNLIMITED_WIDTH, TextTable, render_text


@dataclass(frozen=True)
class Report:
    """Records with their files, grouped and ranked; a part that was not requested is None."""

    found: Sequence[tuple[Path, Record]] = ()
    groups: Sequence[ComparisonGroup] = ()
    resampled: ResampledAccuracies | None = None
    comparisons: Sequence[Comparison] | None = None
    matches: Sequence[Match] | None = None
    # the condition that each run fails, where it is the only one
    mismatches: Mapping[str, Sequence[str]] = field(default_factory=dict)
    # the paper's tables instead of a comparison with them
    shows_paper: bool = False
    # the only table of the paper to show
    paper_table: str | None = None
    judgements: Sequence[Judgement] | None = None
    radii: Sequence[CriticalRadii] = ()

    @property
    def records(self) -> list[Record]:
        return [record for _, record in self.found]

    def tables(self) -> list[TextTable]:
        """Return every table, the main one first."""
        tables: list[TextTable] = []
        if self.found:
            tables.append(main.make_ranked_table(self.groups, self.resampled or {}))
            tables += details.make_detail_tables(self.records)
        return tables + self.comparison_tables()

    def comparison_tables(self) -> list[TextTable]:
        """Return the tables beside the records: requirements, radii, differences, the paper."""
        attacks = name_attacks(self.records)
        tables = [make_requirement_table(self.judgements, attacks)] if self.judgements else []
        if self.radii:
            tables.append(make_radius_table(self.radii))
        tables += list(details.make_comparison_tables(self.comparisons or (), attacks))
        if self.matches:
            tables.append(paper_tables.make_match_table(self.matches))
        if self.shows_paper or self.paper_table:
            tables += paper_tables.make_paper_tables(self.paper_table)
        return tables

    def to_csv(self) -> str:
        """Return the records as CSV, or instead what was requested beside them."""
        has_paper = self.matches is not None or self.shows_paper
        if self.comparisons is not None and has_paper:
            raise BadInput(
                "a CSV file has one table, and `compare` and `paper` are two",
                hint="leave out `compare` or `paper`, or choose another `format`",
            )
        if self.comparisons is not None:
            return details.comparisons_to_csv(self.comparisons, name_attacks(self.records))
        if self.shows_paper:
            return paper_tables.paper_to_csv(self.paper_table)
        if self.matches is not None:
            return paper_tables.matches_to_csv(self.matches)
        return main.to_csv(self.records, self.groups)

    def to_json(self) -> list[dict[str, Any]] | dict[str, Any]:
        """Return a list of records; an object with this list if there is more beside them."""
        positions = main.locate_records(self.groups)
        # a record keeps its own numbers, and those of all seeds are beside them
        all_records = [
            {**one, **_seeds_to_json(positions.get(one["id"]))}
            for one in records_to_json(self.found)
        ]
        parts: dict[str, Any] = {}
        if self.judgements is not None:
            parts["requirements"] = judgements_to_json(self.judgements)
        if self.comparisons is not None:
            parts["comparisons"] = details.comparisons_to_json(self.comparisons)
        if self.matches is not None:
            parts["beside_paper"] = paper_tables.matches_to_json(self.matches)
        if self.shows_paper or self.paper_table:
            parts["paper"] = paper_tables.paper_to_json(self.paper_table)
        return {"records": all_records, **parts} if parts else all_records


def records_to_json(found: Sequence[tuple[Path, Record]]) -> list[dict[str, Any]]:
    """Return records as plain data, each with the path of its rows.

    A worst case also has the attacks behind it, under `worst_of`.
    """
    attacks = name_attacks(record for _, record in found)
    results = []
    for file, record in found:
        fields = {**msgspec.to_builtins(record), "rows": str(rows_path(file).absolute())}
        if attacks.combined_attacks(record):
            fields["worst_of"] = list(attacks.combined_attacks(record))
        results.append(fields)
    return results


def _seeds_to_json(position: main.RecordPosition | None) -> dict[str, Any]:
    """Return `over_seeds` for a record of a model with several training seeds."""
    if position is None or position.seeds < 2:
        return {}
    by_alpha = [
        {
            "alpha_test": row.alpha_test,
            "ids": [record.id for record in row.records],
            **{
                name: msgspec.to_builtins(row.training_spread(name))
                for name in list_accuracies(row.records)
            },
        }
        for row in position.rows.values()
    ]
    return {"over_seeds": {"model": position.model, "seeds": position.seeds, "by_alpha": by_alpha}}


@dataclass(frozen=True)
class GatheredRecords:
    """Records with their files, and the files that could not be read."""

    found: list[tuple[Path, Record]]
    problems: list[BadFile]
    # what filters left out: records that identify the attacks behind a worst case
    known: Sequence[Record] = ()

    @property
    def records(self) -> list[Record]:
        return [record for _, record in self.found]


def gather_records(
    paths: Iterable[Path],
    alphas: Sequence[float] | None = None,
    rhos: Sequence[float] | None = None,
    *,
    calibrated: bool = False,
    filters: RecordFilter = RecordFilter(),  # noqa: B008 - frozen
) -> GatheredRecords:
    """Load every record at or below these paths once, rescored if `alphas` or `rhos` are given.

    With `calibrated`, records without A_cal get it from their rows. Only records that pass the
    filters are rescored.
    """
    found: dict[Path, tuple[Path, Record]] = {}
    known: dict[str, Record] = {}
    problems: list[BadFile] = []
    for path in paths:
        if not path.exists():
            raise BadFile(
                f"{path} does not exist",
                hint="name run folders, folders of evaluations, or records",
            )
        for file in records.find_records(path):
            # paths may overlap, such as a folder and a run in it
            if file.resolve() in found:
                continue
            try:
                record = records.load(file)
                _check_specs(file, record)
                if known.get(record.id) == record:
                    continue  # a copy in another folder
                known[record.id] = record
                found[file.resolve()] = (file, record)
            except BadFile as problem:
                # one damaged file must not hide the other records
                problems.append(problem)
    rescored = []
    for file, record in filter_records(list(found.values()), filters):
        try:
            scores = rescore_file(file, record, alphas, rhos, calibrated=calibrated)
            rescored.append((file, scores))
        except BadFile as problem:
            problems.append(problem)
    kept = {record.id for _, record in rescored}
    left_out = [record for _, record in found.values() if record.id not in kept]
    return GatheredRecords(_sort_in_folders(rescored), problems, left_out)


def _sort_in_folders(found: Sequence[tuple[Path, Record]]) -> list[tuple[Path, Record]]:
    """Sort each folder by dataset, threat and attack, and keep the order of the folders.

    File names are hashes, so that their order has no meaning.
    """
    # reversed: a folder keeps the place of its first file
    places = {file.parent: number for number, (file, _) in reversed(list(enumerate(found)))}

    def sort_key(pair: tuple[Path, Record]) -> tuple[int, str, str, str, float, bool, str]:
        file, record = pair
        return (
            places[file.parent],
            record.dataset.name,
            record.dataset.split,
            record.threat.norm,
            record.threat.eps,
            # a worst case comes after its attacks
            record.attack.of is not None,
            record.attack.spec,
        )

    return sorted(found, key=sort_key)


def _check_specs(file: Path, record: Record) -> None:
    """Raise `BadFile` if a spec in the record cannot be parsed."""
    for text in (record.attack.spec, record.checkpoint.defense, record.dataset.name):
        try:
            Spec.parse(text)
        except BadInput as problem:
            raise BadFile(
                f"{file} is not an evaluation record: {problem}", hint=problem.hint
            ) from None


def build_report(
    gathered: GatheredRecords,
    *,
    ranks: bool = True,
    compare: bool = False,
    paper: str | None = None,
    judgements: Sequence[Judgement] | None = None,
) -> tuple[Report, list[BadFile]]:
    """Return the report of these records, and everything that could not be read for it.

    Rows are read only with `ranks` or `compare`. Ranking falls back on intervals if a record has
    no rows; `compare` leaves the record out and reports the problem.
    """
    groups = group_by_setting(gathered.records, gathered.known)
    files = {record.id: file for file, record in gathered.found}
    resampled = ResampledRecords()
    if ranks or compare:
        resampled = resample_groups(groups, files, compare=compare)
    comparisons = None
    if compare:
        comparisons = compare_groups(groups, resampled.accuracies)
    matches = None
    mismatches: Mapping[str, Sequence[str]] = {}
    # the paper's tables are also shown without records
    if paper and gathered.found:
        rows = [
            row for group in groups for entry in group.entries for row in make_group_rows(entry)
        ]
        matches = match_rows(rows, paper)
        mismatches = {} if matches else explain_mismatches(gathered.records, paper)
    paper_table = paper if paper_tables.has_table(paper) else None
    report = Report(
        found=gathered.found,
        groups=groups,
        resampled=resampled.accuracies,
        comparisons=comparisons,
        matches=matches,
        mismatches=mismatches,
        shows_paper=paper == "all" or (paper_table is not None and not gathered.found),
        paper_table=paper_table,
        judgements=judgements,
        # a record without rows has been reported already where it matters
        radii=load_critical_radii(gathered.found)[0] if ranks else (),
    )
    return report, [*gathered.problems, *resampled.problems]


def make_record_tables(record: Record) -> list[TextTable]:
    """Make the tables of one record, which `wmr evaluate` prints and a notebook shows."""
    return [main.make_table([record]), *details.make_detail_tables([record])]


def record_to_rich(record: Record, width: int | None = None) -> Iterator[Table]:
    """Yield a record's tables for a terminal of this width; None is unlimited."""
    for table in make_record_tables(record):
        yield from table.to_rich_tables(width)


def record_to_text(record: Record) -> str:
    """Render a record's tables as text, as wide as the terminal if there is one."""
    # a notebook or a file has no width to fit
    terminal = Console()
    limit = terminal.width if terminal.is_terminal else None
    return render_text(record_to_rich(record, limit), limit or UNLIMITED_WIDTH).rstrip("\n")


def record_to_markdown(record: Record) -> str:
    """Render a record's tables as pipe tables."""
    return "\n".join(table.to_markdown() for table in make_record_tables(record))


def record_to_html(record: Record) -> str:
    """Render a record's tables as HTML; columns that are equal in all rows move to the title."""
    # imported here: only notebooks need HTML
    from .html.report import render_table

    return "".join(render_table(_hide_shared_columns(one)) for one in make_record_tables(record))


def _hide_shared_columns(table: TextTable) -> TextTable:
    shown, shared = table.split_columns()
    return replace(
        table,
        title=table.full_title(shared),
        headings=tuple(table.headings[position] for position in shown),
        rows=[tuple(row[position] for position in shown) for row in table.rows],
    )
