"""Rows of values as CSV: numbers in full, an empty cell for what is not there.

Names and paths in a record may come from anyone, and a spreadsheet runs a cell that begins with `=`, `+`, `-` or `@` as a
formula. Such text gets an apostrophe in front, which spreadsheets do not show. Control characters are written as escapes.
"""

import csv
import io
import re
from collections.abc import Iterable, Sequence

from .markup import printable

# Spreadsheets skip spaces and quotes before a formula. Some read `;` as the end of a cell. The last four are full-width.
_FORMULA = re.compile(r"(^|;)(?=[\s\"']*[=+\-@\uff1d\uff0b\uff0d\uff20])")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def csv_text(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """One table with one line of headings."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(map(_cell, headings))
    writer.writerows(map(_cell, row) for row in rows)
    return stream.getvalue()


def inert_text(text: str) -> str:
    """Return text that no spreadsheet runs as a formula; a number stays as it is."""
    if _NUMBER.fullmatch(text):
        return text
    # a tab or carriage return in front also starts a formula in some spreadsheets; as an escape it does not
    return _FORMULA.sub(r"\1'", printable(text))


def _cell(value: object) -> object:
    if value is None:
        return ""
    return value if isinstance(value, int | float) else inert_text(str(value))
