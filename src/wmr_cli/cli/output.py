"""Records on stdout, or in a file, in the format the user wants."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..errors import BadFile
from ..reporting import tables
from ..reporting.extras import extras
from ..storage.files import write_text
from ..storage.records import Record, rows_path
from .console import as_text, show, width, write


def put(found: Sequence[tuple[Path, Record]], output: str, out: Path | None = None) -> list[BadFile]:
    """Print records with their files, or write them to `out`; what could not be read for it is returned."""
    records, problems = [record for _, record in found], list[BadFile]()
    sheets = [tables.sheet(records), *extras(records)]
    if output == "table" and out is None:
        for sheet in sheets:
            show(sheet.table(width()))
        return problems
    if output == "table":
        text = "".join(as_text(sheet.table()) for sheet in sheets)
    elif output == "markdown":
        text = "\n".join(sheet.markdown() for sheet in sheets)
    elif output == "csv":
        text = tables.comma_separated(records)
    elif output == "html":
        from ..reporting.page import drawn

        text, problems = drawn(found)
    else:
        text = json_list(found)
    if out is None:
        write(text)
    else:
        write_text(out, text)
    return problems


def json_list(found: Sequence[tuple[Path, Record]]) -> str:
    """Records as JSON, each with the absolute path of its rows."""
    listed = [{**msgspec.to_builtins(record), "rows": str(rows_path(file).absolute())} for file, record in found]
    return msgspec.json.format(msgspec.json.encode(listed), indent=1).decode() + "\n"
