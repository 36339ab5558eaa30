"""Records to one line per alpha_test, and lines to a rich table, markdown or CSV."""

import csv
import io
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.markup import escape
from rich.table import Table

from ..measures import Estimate
from ..spec import exact
from ..storage.records import Record

HEADINGS = ("run", "defense", "α_train", "attack", "ε", "α_test", "A_nat", "A_rob", "A_sa", "A_tr", "n", "ESS")
FACTS = tuple(HEADINGS.index(name) for name in ("run", "defense", "α_train", "attack", "ε", "n"))
TEXTS = tuple(HEADINGS.index(name) for name in ("run", "defense", "attack"))
CAPTION = "percent, with 95 % intervals over test images; ESS is the effective sample size behind A_sa"


@dataclass(frozen=True)
class Line:
    """One row of the table: a record at one alpha_test."""

    record: Record
    alpha_test: float | None
    a_sa: Estimate | None
    a_tr: Estimate | None


def lines(records: Iterable[Record]) -> Iterator[Line]:
    """A line per alpha; one line for a record without any."""
    for record in records:
        for row in record.by_alpha:
            yield Line(record, row.alpha_test, row.a_sa, row.a_tr)
        if not record.by_alpha:
            yield Line(record, None, None, None)


def percent(share: Estimate | None) -> str:
    """`57.2 [53.1, 61.1]`, with no more digits than the interval supports."""
    if share is None:
        return "-"
    if share.degenerate:
        return "100 (all right)" if share.value else "0 (all wrong)"
    half = 50 * (share.high - share.low)
    digits = min(3, max(0, 1 - math.floor(math.log10(half))))
    value, low, high = (f"{100 * number:.{digits}f}" for number in (share.value, share.low, share.high))
    return f"{value} [{low}, {high}]"


def run_name(record: Record) -> str:
    """The run's folder, and the file where it is not the last checkpoint."""
    path = Path(record.checkpoint.path)
    folder = path.absolute().parent.name
    return folder if path.name == "last.safetensors" else f"{folder}/{path.name}"


def cells(line: Line) -> tuple[str, ...]:
    """The texts of one line, in the order of the headings."""
    record = line.record
    ess = next((share.ess for share in (line.a_sa, line.a_tr) if share is not None and share.ess is not None), None)
    norm = "" if record.threat.norm == "linf" else f" {record.threat.norm}"
    return (
        run_name(record),
        record.checkpoint.defense,
        _plain(record.checkpoint.alpha_train),
        record.attack.spec if record.attack.of is None else "worst of all",
        exact(record.threat.eps) + norm,
        _plain(line.alpha_test),
        percent(record.a_nat),
        percent(record.a_rob),
        percent(line.a_sa),
        percent(line.a_tr),
        str(record.dataset.n),
        "-" if ess is None else f"{ess:.0f}",
    )


def table(records: Iterable[Record], width: int | None = None) -> Table:
    """A table for the terminal. What comes from users is text, not markup.

    Where it would not fit, what all lines share moves into the title, and then intervals go below their values.
    """
    rows = [cells(line) for line in lines(records)]
    shown, shared = list(range(len(HEADINGS))), list[int]()
    if not _fits(rows, shown, width):
        shared = [position for position in FACTS if len({row[position] for row in rows}) == 1]
        shown = [position for position in shown if position not in shared]
    breaks = "\n[" if not _fits(rows, shown, width) else " ["
    made = Table(box=box.SIMPLE_HEAD, caption=CAPTION, caption_justify="left", title_justify="left", pad_edge=False)
    if shared:
        made.title = escape(" · ".join(f"{HEADINGS[position]} {rows[0][position]}" for position in shared))
    for position in shown:
        made.add_column(HEADINGS[position], justify="left" if position in TEXTS else "right", overflow="fold")
    for row in rows:
        made.add_row(*(escape(row[position].replace(" [", breaks)) for position in shown))
    return made


def checks(record: Record) -> Table:
    """The checks of one record, with their numbers and verdicts."""
    made = Table(box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    made.title = escape(f"checks of {run_name(record)} under {record.attack.spec}")
    for heading in ("check", "number", "verdict", "what it is"):
        made.add_column(heading, justify="right" if heading == "number" else "left", overflow="fold")
    colours = {"pass": "green", "fail": "bold red", "note": "dim"}
    for check in record.checks:
        verdict = f"[{colours[check.verdict]}]{check.verdict}[/]"
        made.add_row(escape(check.name), f"{check.value:.4g}", verdict, escape(check.text))
    return made


def _fits(rows: list[tuple[str, ...]], shown: list[int], width: int | None) -> bool:
    """Whether these columns fit side by side, three characters between them."""
    columns = [[HEADINGS[position], *(row[position] for row in rows)] for position in shown]
    return width is None or sum(3 + max(map(len, column)) for column in columns) <= width


def markdown(records: Iterable[Record]) -> str:
    """A pipe table."""
    rows = [HEADINGS, ["---"] * len(HEADINGS), *(cells(line) for line in lines(records))]
    return "\n".join("| " + " | ".join(_markdown_text(cell) for cell in row) + " |" for row in rows) + f"\n\n{CAPTION}\n"


def comma_separated(records: Iterable[Record]) -> str:
    """Fractions in full, every interval in columns of its own."""
    columns = [
        "run",
        "id",
        "defense",
        "alpha_train",
        "kernel",
        "dataset",
        "split",
        "n",
        "norm",
        "eps",
        "attack",
        "alpha_test",
        "ess",
    ]
    shares = ["a_nat", "a_rob", "a_sa", "a_tr"]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*columns, *(f"{share}{part}" for share in shares for part in ("", "_low", "_high"))])
    for line in lines(records):
        record = line.record
        ess = next((share.ess for share in (line.a_sa, line.a_tr) if share is not None), None)
        facts = [
            run_name(record), record.id, record.checkpoint.defense, record.checkpoint.alpha_train, record.kernel,
            record.dataset.name, record.dataset.split, record.dataset.n, record.threat.norm, record.threat.eps,
            record.attack.spec, line.alpha_test, ess,
        ]  # fmt: skip
        measured = [
            None if share is None else getattr(share, part)
            for share in (record.a_nat, record.a_rob, line.a_sa, line.a_tr)
            for part in ("value", "low", "high")
        ]
        writer.writerow(["" if value is None else value for value in [*facts, *measured]])
    return stream.getvalue()


def _plain(value: float | None) -> str:
    return "-" if value is None else exact(value)


def _markdown_text(text: str) -> str:
    """User text stays text: no cell may end the row, open a tag or start emphasis."""
    for char in "\\`*_[]<>|":
        text = text.replace(char, "\\" + char)
    return " ".join(text.split())
