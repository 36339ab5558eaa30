"""Tables where Python shows them: as text in a terminal, as HTML or Markdown in a notebook."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from ..storage.records import Record
from . import tables
from .extras import extras
from .sheets import Sheet

WIDE = 10_000
"""Off a terminal nothing is cut or wrapped."""


def sheets(record: Record) -> list[Sheet]:
    """The tables of one record: those that `wmr evaluate` prints."""
    return [tables.sheet([record]), *extras([record])]


def drawn(record: Record, width: int | None = None) -> Iterator[Table]:
    """For a terminal of this width, or without a limit."""
    for sheet in sheets(record):
        yield from sheet.tables(width)


def as_text(made: Sequence[Table], width: int = WIDE) -> str:
    """Tables as plain text, one below the other, whatever FORCE_COLOR says of terminals."""
    stream = io.StringIO()
    console = Console(file=stream, emoji=False, highlight=False, width=width, force_terminal=False, color_system=None)
    for table in made:
        console.print(table)
    return stream.getvalue()


def printed(record: Record) -> str:
    """As wide as the terminal, where there is one."""
    terminal = Console()
    limit = terminal.width if terminal.is_terminal else None
    return as_text(list(drawn(record, limit)), limit or WIDE).rstrip("\n")


def markdown(record: Record) -> str:
    """Pipe tables."""
    return "\n".join(sheet.markdown() for sheet in sheets(record))


def html(record: Record) -> str:
    """HTML tables; what all rows share stands above them."""
    from .page import markup

    return "".join(markup.table(_shortened(sheet)) for sheet in sheets(record))


def _shortened(sheet: Sheet) -> Sheet:
    """The sheet with what all its rows share in its title."""
    shown, shared = sheet.unshared()
    return replace(
        sheet,
        title=sheet.said(shared),
        headings=tuple(sheet.headings[position] for position in shown),
        rows=[tuple(row[position] for position in shown) for row in sheet.rows],
    )
