"""The paper's tables, and a report's rows next to the paper's, as text tables, CSV and JSON."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec

from ..reporting.rows import ACCURACIES, attack_name, row_name
from ..reporting.tables.escaping import csv_text
from ..reporting.tables.formatting import format_signed
from ..reporting.tables.main import format_accuracy
from ..reporting.tables.text_table import TextTable
from ..spec import format_number
from .errata import CorrectedRow, Footnotes, load_corrected_rows
from .matching import Match, PrintedAccuracy
from .results import ACCURACY_FIELDS, PaperTable, find_figure, load_results

HEADINGS = {
    "defense": "defense",
    "attack": "attack",
    "inv_lambda": "1/λ",
    "eps_train": "ε_train",
    "eps_test": "ε_test",
    "alpha_train": "α_train",
    "alpha_test": "α_test",
    "a_nat": "A_nat",
    "a_rob": "A_rob",
    "a_sa": "A_sa",
    "a_tr": "A_tr",
}
CAPTION = "percent, from arXiv:{}; single runs without intervals"
MATCH_CAPTION = (
    "percent. The interval of a difference is that of your number, because the paper gives none. "
    "With 10,000 images, the paper's numbers have a standard error of up to half a point"
)
ROWS_PER_MATCH = 3
# scripts of users read these names
MATCH_CSV_HEADINGS = (
    "run", "defense", "alpha_train", "dataset", "eps", "attack", "share", "alpha_test",
    "value", "low", "high", "paper", "tables",
    "difference", "difference_low", "difference_high", "notes", "departures", "departs_in",
)  # fmt: skip


def has_table(name: str | None) -> bool:
    """Return whether the paper has a table of this name, such as `T2`."""
    return any(table.name == name for table in load_results().tables)


def make_paper_tables(name: str | None = None) -> Iterator[TextTable]:
    """Yield the twelve tables, or the named one, with misprints corrected and marked."""
    # rows come table by table, in the order of the tables
    by_table = groupby(load_corrected_rows(), key=lambda corrected: corrected.table)
    for table, (_, rows) in zip(load_results().tables, by_table, strict=True):
        if name in (None, table.name):
            yield _make_paper_table(table, list(rows))


def _make_paper_table(table: PaperTable, rows: list[CorrectedRow]) -> TextTable:
    footnotes = Footnotes()
    fields = [name for name in HEADINGS if name in table.columns]
    # what the table does not print as a column is part of its caption in the paper
    title = [f"{table.name}: {table.about}"]
    if "attack" not in table.columns:
        title += sorted({corrected.row.attack for corrected in rows if corrected.row.attack})
    if "eps_test" not in table.columns:
        radii = {format_number(corrected.row.eps_test) for corrected in rows}
        title += [f"ε {eps}" for eps in sorted(radii)]
    return TextTable(
        headings=tuple(HEADINGS[name] for name in fields),
        rows=[tuple(format_cell(row, name, footnotes) for name in fields) for row in rows],
        caption=CAPTION.format(load_results().arxiv),
        title=", ".join(title),
        text_columns=("defense", "attack"),
        notes=footnotes.notes(),
    )


def format_cell(corrected: CorrectedRow, name: str, footnotes: Footnotes) -> str:
    """Return a value of a row with the mark of its footnote."""
    value = getattr(corrected.row, name)
    if value is None:
        text = "-"
    elif name in ACCURACY_FIELDS:
        text = f"{value:.2f}"
    elif isinstance(value, str):
        text = value
    else:
        text = format_number(value)
    if name in corrected.reasons:
        text += footnotes.mark([corrected.reasons[name]])
    return text


def paper_to_csv(name: str | None = None) -> str:
    """Return the corrected rows of all tables or of the named one as CSV.

    Accuracies are fractions, and `notes` has the printed value.
    """
    headings = ("table", "dataset", "line", *HEADINGS, "notes")
    rows = []
    for corrected in load_corrected_rows():
        if name not in (None, corrected.table):
            continue
        notes = [f"{name} {reason}" for name, reason in corrected.reasons.items()]
        fields = row_to_fractions(corrected).values()
        rows.append([corrected.table, corrected.dataset, *fields, "; ".join(notes)])
    return csv_text(headings, rows)


def row_to_fractions(corrected: CorrectedRow) -> dict[str, Any]:
    """Return the row as plain data, with accuracies between 0 and 1."""
    fields = {name: getattr(corrected.row, name) for name in ("line", *HEADINGS)}
    for name in ACCURACY_FIELDS:
        if fields[name] is not None:
            fields[name] = round(fields[name] / 100, 6)
    return fields


def paper_to_json(name: str | None = None) -> dict[str, Any]:
    """Return all tables or the named one, with figures and errata, for JSON, as fractions."""
    results = load_results()
    by_table: dict[str, list[dict[str, Any]]] = {}
    for corrected in load_corrected_rows():
        fields = {**row_to_fractions(corrected), "notes": corrected.reasons}
        by_table.setdefault(corrected.table, []).append(fields)
    return {
        "title": results.title,
        "arxiv": results.arxiv,
        "tables": [
            {
                "name": table.name,
                "dataset": table.dataset,
                "about": table.about,
                "rows": by_table[table.name],
            }
            for table in results.tables
            if name in (None, table.name)
        ],
        "figures": [msgspec.to_builtins(find_figure(figure.name)) for figure in results.figures],
        "errata": msgspec.to_builtins(results.errata),
        "disputed": msgspec.to_builtins(results.disputed),
        "suspect_points": msgspec.to_builtins(results.suspect_points),
    }


def make_match_table(matches: Sequence[Match]) -> TextTable:
    """Make a table with three rows per match: yours, the paper's, and the difference."""
    footnotes = Footnotes()
    rows = [row for match in matches for row in _match_rows(match, footnotes)]
    differences = dict.fromkeys(
        match.describe_differences() for match in matches if match.setting_differences
    )
    return TextTable(
        headings=("run", "dataset", "attack", "ε", "α_test", *ACCURACIES.values()),
        rows=rows,
        caption=MATCH_CAPTION,
        title="comparison with the paper",
        text_columns=("run", "dataset", "attack"),
        shared_columns=("dataset", "ε", "α_test"),
        interval_columns=tuple(ACCURACIES.values()),
        rules_after=frozenset(range(ROWS_PER_MATCH - 1, len(rows), ROWS_PER_MATCH)),
        notes=(*footnotes.notes(), *differences),
    )


def _match_rows(match: Match, footnotes: Footnotes) -> Iterator[tuple[str, ...]]:
    first = match.paper_rows[0]
    record = match.row.record
    alpha = match.row.alpha_test
    alpha_test = "-" if alpha is None else format_number(alpha)
    setting = (format_number(first.row.eps_test), alpha_test)
    # the footnotes of attack and method come before those of the accuracies
    attack = format_cell(first, "attack", footnotes)
    method = _describe_method(match, footnotes)
    own = [format_accuracy(match.row, name) for name in ACCURACIES]
    printed = [_format_printed(match.accuracies[name], footnotes) for name in ACCURACIES]
    differences = [_format_difference(match, name) for name in ACCURACIES]
    own_setting = (format_number(record.threat.eps), alpha_test)
    yield row_name(match.row), record.dataset.name, attack_name(record), *own_setting, *own
    yield method, first.dataset, attack, *setting, *printed
    departures = [f"departs in: {', '.join(match.departures)}"] if match.departures else []
    label = f"difference{footnotes.mark(departures)}"
    yield label, first.dataset, "", *setting, *differences


def _describe_method(match: Match, footnotes: Footnotes) -> str:
    """Return for example `paper: TRADES+ours, α 2 (T1, T6)`."""
    row = match.paper_rows[0].row
    reasons = [
        paper.reasons[name]
        for paper in match.paper_rows
        for name in ("defense", "alpha_train")
        if name in paper.reasons
    ]
    marks = footnotes.mark(dict.fromkeys(reasons))
    alpha = "" if row.alpha_train is None else f", α {format_number(row.alpha_train)}"
    return f"paper: {row.defense}{alpha}{marks} ({', '.join(match.tables)})"


def _format_printed(accuracy: PrintedAccuracy, footnotes: Footnotes) -> str:
    text = " or ".join(f"{value:.2f}" for value in accuracy.values) or "-"
    return text + footnotes.mark(accuracy.reasons)


def _format_difference(match: Match, name: str) -> str:
    difference = match.difference(name)
    return "-" if difference is None else format_signed(*difference)


def matches_to_csv(matches: Iterable[Match]) -> str:
    """Return a CSV row per accuracy, as fractions."""
    rows = [
        _list_csv_values(match, name)
        for match in matches
        for name in ACCURACIES
        if _is_comparable(match, name)
    ]
    return csv_text(MATCH_CSV_HEADINGS, rows)


def _list_csv_values(match: Match, name: str) -> list[Any]:
    record = match.row.record
    estimate = match.row.accuracy(name)
    assert estimate is not None  # see `_is_comparable`
    printed = match.accuracies[name]
    tables = dict.fromkeys(table for names in printed.values.values() for table in names)
    return [
        row_name(match.row),
        record.checkpoint.defense,
        record.checkpoint.alpha_train,
        record.dataset.name,
        record.threat.eps,
        attack_name(record),
        name,
        match.row.alpha_test,
        estimate.value,
        estimate.low,
        estimate.high,
        printed.value,
        " ".join(tables),
        *(match.difference(name) or (None, None, None)),
        "; ".join(printed.reasons),
        "; ".join(match.setting_differences),
        "; ".join(match.departures),
    ]


def _is_comparable(match: Match, name: str) -> bool:
    """Whether the row has this accuracy and the paper has a value or a reason without one."""
    printed = match.accuracies[name]
    return match.row.accuracy(name) is not None and bool(printed.values or printed.reasons)


def matches_to_json(matches: Iterable[Match]) -> list[dict[str, Any]]:
    """Return the matches for JSON, with the ids of each row's records."""
    return [
        {
            "run": row_name(match.row),
            "ids": [record.id for record in match.row.records],
            "alpha_test": match.row.alpha_test,
            "tables": match.tables,
            "departures": list(match.setting_differences),
            "departs_in": list(match.departures),
            **{name: _accuracy_to_json(match, name) for name in ACCURACIES},
        }
        for match in matches
    ]


def _accuracy_to_json(match: Match, name: str) -> dict[str, Any] | None:
    estimate = match.row.accuracy(name)
    if estimate is None or not _is_comparable(match, name):
        return None
    printed = match.accuracies[name]
    values = {
        table: round(value / 100, 6) for value, tables in printed.values.items() for table in tables
    }
    difference = match.difference(name)
    return {
        "value": estimate.value,
        "paper": values,
        "difference": None
        if difference is None
        else dict(zip(("value", "low", "high"), difference, strict=True)),
        "notes": list(printed.reasons),
    }
