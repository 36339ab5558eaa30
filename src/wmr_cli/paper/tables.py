"""The paper's tables, and a user's rows beside the paper's, as text tables, CSV and JSON."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec

from ..reporting.rows import ACCURACIES, attack_name, row_name
from ..reporting.tables.escaping import csv_text
from ..reporting.tables.formatting import signed
from ..reporting.tables.main import format_accuracy
from ..reporting.tables.text_table import TextTable
from ..spec import format_number
from .errata import CorrectedRow, Footnotes, load_corrected_rows
from .matching import Match, PrintedAccuracy, describe_setting_differences
from .results import SHARES, PaperTable, Results, figure, load_results

HEADINGS = {
    "defense": "defense", "attack": "attack", "inv_lambda": "1/λ", "eps_train": "ε_train", "eps_test": "ε_test",
    "alpha_train": "α_train", "alpha_test": "α_test", "a_nat": "A_nat", "a_rob": "A_rob", "a_sa": "A_sa", "a_tr": "A_tr",
}  # fmt: skip
CAPTION = "percent, from arXiv:{}; single runs without intervals"
MATCH_CAPTION = (
    "percent. The interval of a difference is that of your own number: the paper gives none."
    " At 10,000 images its numbers have a standard error of up to half a point, too"
)
ROWS_PER_MATCH = 3
MATCH_CSV_HEADINGS = (
    "run", "defense", "alpha_train", "dataset", "eps", "attack", "share", "alpha_test", "value", "low", "high", "paper", "tables",
    "difference", "difference_low", "difference_high", "notes", "departures",
)  # fmt: skip


def make_paper_tables() -> Iterator[TextTable]:
    """All twelve tables, misprints corrected and marked."""
    rows = groupby(load_corrected_rows(), key=lambda made: made.table)
    for table, (_, made) in zip(load_results().tables, rows, strict=True):
        yield _make_paper_table(table, list(made))


def _make_paper_table(table: PaperTable, rows: list[CorrectedRow]) -> TextTable:
    footnotes = Footnotes()
    shown = [name for name in HEADINGS if name in table.columns]
    given = (
        {attack for made in rows if (attack := made.row.attack)}
        if "attack" not in table.columns
        else set()
    )
    balls = (
        {format_number(made.row.eps_test) for made in rows}
        if "eps_test" not in table.columns
        else set()
    )
    facts = (*(f"{attack}" for attack in sorted(given)), *(f"ε {eps}" for eps in sorted(balls)))
    return TextTable(
        headings=tuple(HEADINGS[name] for name in shown),
        rows=[tuple(format_cell(made, name, footnotes) for name in shown) for made in rows],
        caption=CAPTION.format(load_results().arxiv),
        title=", ".join([f"{table.name}: {table.about}", *facts]),
        text_columns=("defense", "attack"),
        notes=footnotes.notes(),
    )


def format_cell(made: CorrectedRow, name: str, footnotes: Footnotes) -> str:
    """A value of a row, with the mark of its footnote."""
    value = getattr(made.row, name)
    if value is None:
        shown = "-"
    elif name in SHARES:
        shown = f"{value:.2f}"
    else:
        shown = value if isinstance(value, str) else format_number(value)
    return shown + footnotes.mark([made.reasons[name]] if name in made.reasons else [])


def paper_to_csv() -> str:
    """All rows in one table, corrected, as fractions; `notes` says what was printed."""
    names = ("table", "dataset", "line", *HEADINGS, "notes")
    return csv_text(
        names,
        (
            [made.table, made.dataset, *fractions(made).values(), _notes(made)]
            for made in load_corrected_rows()
        ),
    )


def _notes(made: CorrectedRow) -> str:
    return "; ".join(f"{name} {reason}" for name, reason in made.reasons.items())


def fractions(made: CorrectedRow) -> dict[str, Any]:
    """The row as plain data, shares between 0 and 1."""
    row = {name: getattr(made.row, name) for name in ("line", *HEADINGS)}
    return {
        name: round(value / 100, 6) if name in SHARES and value is not None else value
        for name, value in row.items()
    }


def paper_to_json() -> dict[str, Any]:
    """Tables, figures and what is wrong with them, for JSON; shares are fractions."""
    found: Results = load_results()
    rows = {
        name: list(made)
        for name, made in groupby(load_corrected_rows(), key=lambda made: made.table)
    }
    return {
        "title": found.title,
        "arxiv": found.arxiv,
        "tables": [
            {
                "name": table.name,
                "dataset": table.dataset,
                "about": table.about,
                "rows": [{**fractions(made), "notes": made.reasons} for made in rows[table.name]],
            }
            for table in found.tables
        ],
        "figures": [msgspec.to_builtins(figure(one.name)) for one in found.figures],
        **{
            name: msgspec.to_builtins(getattr(found, name))
            for name in ("errata", "disputed", "suspect_points")
        },
    }


def make_match_table(matches: Sequence[Match]) -> TextTable:
    """Three rows per line: yours, the paper's, and the difference."""
    footnotes = Footnotes()
    rows = [row for match in matches for row in _match_rows(match, footnotes)]
    departures = dict.fromkeys(
        describe_setting_differences(match) for match in matches if match.setting_differences
    )
    return TextTable(
        headings=("run", "data set", "attack", "ε", "α_test", *ACCURACIES.values()),
        rows=rows,
        caption=MATCH_CAPTION,
        title="beside the paper",
        text_columns=("run", "data set", "attack"),
        shared_columns=("data set", "ε", "α_test"),
        interval_columns=tuple(ACCURACIES.values()),
        rules_after=frozenset(range(ROWS_PER_MATCH - 1, len(rows), ROWS_PER_MATCH)),
        notes=(*footnotes.notes(), *departures),
    )


def _match_rows(match: Match, footnotes: Footnotes) -> Iterable[tuple[str, ...]]:
    first, alpha = match.rows[0], match.line.alpha_test
    attack = format_cell(first, "attack", footnotes)
    facts = (format_number(first.row.eps_test), "-" if alpha is None else format_number(alpha))
    own = (match.line.record.dataset.name, attack_name(match.line.record), *facts)
    yield row_name(match.line), *own, *(format_accuracy(match.line, name) for name in ACCURACIES)
    yield (
        _describe_method(match, footnotes),
        first.dataset,
        attack,
        *facts,
        *(_format_printed(match.shares[name], footnotes) for name in ACCURACIES),
    )
    differences = (match.difference(name) for name in ACCURACIES)
    yield (
        "difference",
        first.dataset,
        "",
        *facts,
        *("-" if found is None else signed(*found) for found in differences),
    )


def _describe_method(match: Match, footnotes: Footnotes) -> str:
    """`paper: TRADES+ours, α 2 (T1, T6)`."""
    row, reasons = match.rows[0].row, [made.reasons for made in match.rows]
    marks = footnotes.mark(
        dict.fromkeys(
            one[name] for one in reasons for name in ("defense", "alpha_train") if name in one
        )
    )
    alpha = "" if row.alpha_train is None else f", α {format_number(row.alpha_train)}"
    return f"paper: {row.defense}{alpha}{marks} ({', '.join(match.tables)})"


def _format_printed(share: PrintedAccuracy, footnotes: Footnotes) -> str:
    shown = " or ".join(f"{value:.2f}" for value in share.values) or "-"
    return shown + footnotes.mark(share.reasons)


def matches_to_csv(matches: Iterable[Match]) -> str:
    """A line per share, as fractions."""
    return csv_text(
        MATCH_CSV_HEADINGS,
        (
            _csv_values(match, name)
            for match in matches
            for name in ACCURACIES
            if _is_comparable(match, name)
        ),
    )


def _csv_values(match: Match, name: str) -> list[Any]:
    record = match.line.record
    share = match.line.accuracy(name)
    printed = match.shares[name]
    tables = dict.fromkeys(table for where in printed.values.values() for table in where)
    estimate = (share.value, share.low, share.high) if share else ()
    return [
        row_name(match.line),
        record.checkpoint.defense,
        record.checkpoint.alpha_train,
        record.dataset.name,
        record.threat.eps,
        attack_name(record),
        name,
        match.line.alpha_test,
        *estimate,
        printed.value,
        " ".join(tables),
        *(match.difference(name) or (None,) * 3),
        "; ".join(printed.reasons),
        "; ".join(match.setting_differences),
    ]


def _is_comparable(match: Match, name: str) -> bool:
    """Whether both the line and the paper have something to say of a share."""
    return match.line.accuracy(name) is not None and bool(
        match.shares[name].values or match.shares[name].reasons
    )


def matches_to_json(matches: Iterable[Match]) -> list[dict[str, Any]]:
    """The same for JSON."""
    return [
        {
            "run": row_name(match.line),
            "ids": [record.id for record in match.line.records],
            "alpha_test": match.line.alpha_test,
            "tables": match.tables,
            "departures": list(match.setting_differences),
            **{name: _accuracy_to_json(match, name) for name in ACCURACIES},
        }
        for match in matches
    ]


def _accuracy_to_json(match: Match, name: str) -> dict[str, Any] | None:
    printed, share, difference = (
        match.shares[name],
        match.line.accuracy(name),
        match.difference(name),
    )
    if share is None or not _is_comparable(match, name):
        return None
    values = {
        table: round(value / 100, 6) for value, tables in printed.values.items() for table in tables
    }
    parts = (
        None if difference is None else dict(zip(("value", "low", "high"), difference, strict=True))
    )
    return {
        "value": share.value,
        "paper": values,
        "difference": parts,
        "notes": list(printed.reasons),
    }
