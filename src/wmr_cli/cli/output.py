"""Records on stdout, or in a file, in the format the user wants."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..reporting import tables
from ..storage.files import write_text
from ..storage.records import Record, rows_path
from .console import as_text, show, width, write


def put(found: Sequence[tuple[Path, Record]], output: str, out: Path | None = None) -> None:
    """Print records with their files, or write them to `out`."""
    records = [record for _, record in found]
    if output == "table" and out is None:
        show(tables.table(records, width()))
        for record in records:
            if record.checks:
                show(tables.checks(record))
        return
    if output == "table":
        text = as_text(tables.table(records))
    elif output == "markdown":
        text = tables.markdown(records)
    elif output == "csv":
        text = tables.comma_separated(records)
    else:
        text = json_list(found)
    if out is None:
        write(text)
    else:
        write_text(out, text)


def json_list(found: Sequence[tuple[Path, Record]]) -> str:
    """Records as JSON, each with the absolute path of its rows."""
    listed = [{**msgspec.to_builtins(record), "rows": str(rows_path(file).absolute())} for file, record in found]
    return msgspec.json.format(msgspec.json.encode(listed), indent=1).decode() + "\n"
