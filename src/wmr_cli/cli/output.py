"""Results on stdout, or in a file, in the format the user wants."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from ..errors import BadFile, BadInput
from ..reporting import tables
from ..reporting.documents import Document, listed
from ..reporting.extras import extras
from ..reporting.latex import NEEDS, latex
from ..reporting.notebooks import as_text
from ..reporting.sheets import Sheet
from ..storage.files import write_output
from ..storage.records import Record
from .console import show, width, write

ENDINGS = {
    ".md": "markdown", ".tex": "latex", ".csv": "csv", ".json": "json", ".html": "html", ".htm": "html",
    ".txt": "table", "": "table",
}  # fmt: skip
"""What a file is when its name alone says it."""


def format_of(out: Path | None) -> str:
    """The format that the ending of a file says, in capitals or not."""
    ending = "" if out is None else out.suffix.lower()
    if ending not in ENDINGS:
        known = ", ".join(ending for ending in ENDINGS if ending)
        raise BadInput(f"the ending of {out} says no format", hint=f"end it in {known}, or say --format")
    return ENDINGS[ending]


def put(found: Sequence[tuple[Path, Record]], output: str) -> None:
    """Print records as they were measured: a row each, nothing ranked."""
    records = [record for _, record in found]
    if output in ("table", "markdown"):
        _draw([tables.sheet(records), *extras(records)], output, None)
    else:
        write(tables.comma_separated(records) if output == "csv" else _json(listed(found)))


def put_document(
    document: Document, output: str, out: Path | None, write_file: Callable[[Path, str], None] = write_output
) -> list[BadFile]:
    """Print a report, or write it to `out`; what could not be read for it is returned."""
    leave = partial(_leave, out=out, write_file=write_file)
    problems: list[BadFile] = []
    if output == "csv":
        leave(document.comma_separated())
    elif output == "html":
        from ..reporting.page import drawn

        text, problems = drawn(document.found, document.beside())
        leave(text)
    elif output == "json":
        leave(_json(document.as_data()))
    else:
        _draw(document.sheets(), output, out, leave)
    return problems


def _draw(sheets: Sequence[Sheet], output: str, out: Path | None, leave: Callable[[str], None] = write) -> None:
    if output == "table" and out is None:
        for number, table in enumerate(table for sheet in sheets for table in sheet.tables(width())):
            if number:
                write("")
            show(table)
    elif output == "table":
        leave("\n".join(as_text([sheet.table()]) for sheet in sheets))
    elif output == "markdown":
        leave("\n".join(sheet.markdown() for sheet in sheets))
    else:
        leave(NEEDS + "\n".join(latex(sheet) for sheet in sheets))


def _leave(text: str, *, out: Path | None, write_file: Callable[[Path, str], None]) -> None:
    if out is None:
        write(text)
    else:
        write_file(out, text)


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=1).decode() + "\n"
