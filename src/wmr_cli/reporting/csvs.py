"""Rows of values as CSV: numbers in full, an empty cell for what is not there."""

import csv
import io
from collections.abc import Iterable, Sequence


def csv_text(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """One table with one line of headings."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(headings)
    writer.writerows(["" if value is None else value for value in row] for row in rows)
    return stream.getvalue()
