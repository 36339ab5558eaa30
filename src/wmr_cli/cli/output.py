"""Results on stdout, or in a file, in the format the user wants."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from ..errors import BadFile, BadInput
from ..reporting.report import Report, records_to_json
from ..reporting.tables import main
from ..reporting.tables.details import make_detail_tables
from ..reporting.tables.latex import PREAMBLE, render_latex
from ..reporting.tables.text_table import TextTable, render_text
from ..storage.atomic import write_output
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
        raise BadInput(
            f"the ending of {out} says no format", hint=f"end it in {known}, or say --format"
        )
    return ENDINGS[ending]


def put(found: Sequence[tuple[Path, Record]], output: str) -> None:
    """Print records as they were measured: a row each, nothing ranked."""
    records = [record for _, record in found]
    if output in ("table", "markdown"):
        _draw([main.make_table(records), *make_detail_tables(records)], output, None)
    else:
        write(main.to_csv(records) if output == "csv" else _json(records_to_json(found)))


def put_document(
    document: Report,
    output: str,
    out: Path | None,
    write_file: Callable[[Path, str], None] = write_output,
) -> list[BadFile]:
    """Print a report, or write it to `out`; what could not be read for it is returned."""
    leave = partial(_leave, out=out, write_file=write_file)
    problems: list[BadFile] = []
    if output == "csv":
        leave(document.to_csv())
    elif output == "html":
        from ..reporting.html.report import render_report

        text, problems = render_report(document.found, document.comparison_tables())
        leave(text)
    elif output == "json":
        leave(_json(document.to_json()))
    else:
        _draw(document.tables(), output, out, leave)
    return problems


def _draw(
    sheets: Sequence[TextTable], output: str, out: Path | None, leave: Callable[[str], None] = write
) -> None:
    if output == "table" and out is None:
        for number, table in enumerate(
            table for sheet in sheets for table in sheet.to_rich_tables(width())
        ):
            if number:
                write("")
            show(table)
    elif output == "table":
        leave("\n".join(render_text([sheet.to_rich_table()]) for sheet in sheets))
    elif output == "markdown":
        leave("\n".join(sheet.to_markdown() for sheet in sheets))
    else:
        leave(PREAMBLE + "\n".join(render_latex(sheet) for sheet in sheets))


def _leave(text: str, *, out: Path | None, write_file: Callable[[Path, str], None]) -> None:
    if out is None:
        write(text)
    else:
        write_file(out, text)


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=1).decode() + "\n"
