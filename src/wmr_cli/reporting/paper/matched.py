"""A user's lines with the paper's below them and the difference, as a sheet, as CSV and for JSON."""

from collections.abc import Iterable, Sequence
from typing import Any

from ...spec import exact
from ..csvs import csv_text
from ..lines import SHARES, attack_name, line_name
from ..percents import signed
from ..sheets import Sheet
from ..tables import share_text
from .beside import Match, Printed, named
from .corrections import Footnotes
from .printed import cell

CAPTION = (
    "percent. The interval of a difference is that of your own number: the paper gives none."
    " At 10,000 images its numbers have a standard error of up to half a point, too"
)
PER_MATCH = 3
CSV_HEADINGS = (
    "run", "defense", "alpha_train", "dataset", "eps", "attack", "share", "alpha_test", "value", "low", "high", "paper", "tables",
    "difference", "difference_low", "difference_high", "notes", "departures",
)  # fmt: skip


def sheet(matches: Sequence[Match]) -> Sheet:
    """Three rows per line: yours, the paper's, and the difference."""
    footnotes = Footnotes()
    rows = [row for match in matches for row in _rows(match, footnotes)]
    departures = dict.fromkeys(named(match) for match in matches if match.departures)
    return Sheet(
        headings=("run", "data set", "attack", "ε", "α_test", *SHARES.values()),
        rows=rows,
        caption=CAPTION,
        title="beside the paper",
        texts=("run", "data set", "attack"),
        facts=("data set", "ε", "α_test"),
        shares=tuple(SHARES.values()),
        ends=frozenset(range(PER_MATCH - 1, len(rows), PER_MATCH)),
        notes=(*footnotes.notes(), *departures),
    )


def _rows(match: Match, footnotes: Footnotes) -> Iterable[tuple[str, ...]]:
    first, alpha = match.rows[0], match.line.alpha_test
    attack = cell(first, "attack", footnotes)
    facts = (exact(first.row.eps_test), "-" if alpha is None else exact(alpha))
    own = (match.line.record.dataset.name, attack_name(match.line.record), *facts)
    yield line_name(match.line), *own, *(share_text(match.line, name) for name in SHARES)
    yield _method(match, footnotes), first.dataset, attack, *facts, *(_printed(match.shares[name], footnotes) for name in SHARES)
    differences = (match.difference(name) for name in SHARES)
    yield "difference", first.dataset, "", *facts, *("-" if found is None else signed(*found) for found in differences)


def _method(match: Match, footnotes: Footnotes) -> str:
    """`paper: TRADES+ours, α 2 (T1, T6)`."""
    row, reasons = match.rows[0].row, [made.reasons for made in match.rows]
    marks = footnotes.mark(dict.fromkeys(one[name] for one in reasons for name in ("defense", "alpha_train") if name in one))
    alpha = "" if row.alpha_train is None else f", α {exact(row.alpha_train)}"
    return f"paper: {row.defense}{alpha}{marks} ({', '.join(match.tables)})"


def _printed(share: Printed, footnotes: Footnotes) -> str:
    shown = " or ".join(f"{value:.2f}" for value in share.values) or "-"
    return shown + footnotes.mark(share.reasons)


def comma_separated(matches: Iterable[Match]) -> str:
    """A line per share, as fractions."""
    return csv_text(CSV_HEADINGS, (_values(match, name) for match in matches for name in SHARES if _is_there(match, name)))


def _values(match: Match, name: str) -> list[Any]:
    record, share, printed = match.line.record, match.line.share(name), match.shares[name]
    tables = dict.fromkeys(table for where in printed.values.values() for table in where)
    return [
        line_name(match.line), record.checkpoint.defense, record.checkpoint.alpha_train, record.dataset.name, record.threat.eps,
        attack_name(record), name, match.line.alpha_test, *((share.value, share.low, share.high) if share else ()), printed.value,
        " ".join(tables), *(match.difference(name) or (None,) * 3), "; ".join(printed.reasons), "; ".join(match.departures),
    ]  # fmt: skip


def _is_there(match: Match, name: str) -> bool:
    """Whether both the line and the paper have something to say of a share."""
    return match.line.share(name) is not None and bool(match.shares[name].values or match.shares[name].reasons)


def as_data(matches: Iterable[Match]) -> list[dict[str, Any]]:
    """The same for JSON."""
    return [
        {
            "run": line_name(match.line),
            "ids": [record.id for record in match.line.records],
            "alpha_test": match.line.alpha_test,
            "tables": match.tables,
            "departures": list(match.departures),
            **{name: _data(match, name) for name in SHARES},
        }
        for match in matches
    ]


def _data(match: Match, name: str) -> dict[str, Any] | None:
    printed, share, difference = match.shares[name], match.line.share(name), match.difference(name)
    if share is None or not _is_there(match, name):
        return None
    values = {table: round(value / 100, 6) for value, tables in printed.values.items() for table in tables}
    parts = None if difference is None else dict(zip(("value", "low", "high"), difference, strict=True))
    return {"value": share.value, "paper": values, "difference": parts, "notes": list(printed.reasons)}
