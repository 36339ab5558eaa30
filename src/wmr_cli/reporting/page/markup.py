"""Sheets to HTML tables. Whatever came from a user is text."""

import re
from collections.abc import Sequence
from html import escape

from ...storage.records import Record
from .. import tables
from ..lines import lines as lines_of
from ..markup import printable
from ..sheets import Sheet

SHOWN = ("run", "A_nat", "A_rob", "α_test", "A_sa", "A_tr", "ESS")
"""Columns of the main table. How the run was trained stands below its name, all else in the heading of the panel."""

MERGED = ("run", "A_nat", "A_rob")
"""Those that do not depend on α: once per record, beside all its rows."""

INTERVAL = re.compile(r"( \[[^\]]*\])")


def plain(text: str) -> str:
    """Text in HTML: no markup, and what cannot be seen or would turn the line around is written as its code."""
    return escape(printable(text))


def main_table(names: Sequence[str], records: Sequence[Record], caption: str) -> str:
    """The main table of records that were attacked alike: a body per record, a row per alpha."""
    bodies = [_body(name, record) for name, record in zip(names, records, strict=True)]
    return _table(bodies[0][0], "".join(text for _, text in bodies), caption, tables.caption(records))


def _body(name: str, record: Record) -> tuple[Sheet, str]:
    """The rows of one record below each other, with what they share beside them."""
    lines = [tables.cells(line) for line in lines_of([record])]
    kernel = [] if record.checkpoint.kernel in tables.USUAL["kernel_train"] else [f"kernel {record.checkpoint.kernel}"]
    alpha = [] if record.checkpoint.alpha_train is None else [f"α_train {lines[0]['α_train']}"]
    facts = ", ".join([lines[0]["defense"], *kernel, *alpha])
    rows = [tuple({**line, "run": name}[heading] for heading in SHOWN) for line in lines]
    sheet = Sheet(SHOWN, rows, "", texts=tables.TEXTS, shares=tables.SHARES)
    return sheet, f"<tbody>{_rows(sheet, MERGED, facts)}</tbody>"


def table(sheet: Sheet) -> str:
    """Any other sheet: a body per part between rules, and its notes below."""
    bodies = "".join(f"<tbody>{_rows(part)}</tbody>" for part in sheet.parts())
    return _table(sheet, bodies, sheet.title, sheet.caption, *sheet.notes)


def _table(sheet: Sheet, bodies: str, caption: str, *notes: str) -> str:
    heads = "".join(f'<th scope="col"{_kind(sheet, heading)}>{plain(heading)}</th>' for heading in sheet.headings)
    below = "".join(f'<p class="note">{plain(note)}</p>\n' for note in notes)
    return (
        f'<div class="scroll" role="region" aria-label="{plain(caption)}" tabindex="0">'
        f"<table><caption>{plain(caption)}</caption><thead><tr>{heads}</tr></thead>{bodies}</table></div>\n{below}"
    )


def _rows(sheet: Sheet, merged: Sequence[str] = (), facts: str = "") -> str:
    """Every row; a merged column has one cell beside all of them, and `facts` stand below the first name."""
    made = []
    for number, row in enumerate(sheet.rows):
        cells = [
            _cell(sheet, heading, text, len(sheet.rows) if heading in merged else 1, facts)
            for heading, text in zip(sheet.headings, row, strict=True)
            if number == 0 or heading not in merged
        ]
        made.append(f"<tr>{''.join(cells)}</tr>")
    return "\n".join(made)


def _cell(sheet: Sheet, heading: str, text: str, span: int, facts: str) -> str:
    shown = _share(text) if heading in sheet.shares else plain(text)
    rows = f' rowspan="{span}"' if span > 1 else ""
    if heading != sheet.headings[0]:
        return f"<td{rows}{_kind(sheet, heading)}>{shown}</td>"
    below = f'<span class="facts">{plain(facts)}</span>' if facts else ""
    return f'<th scope="{"rowgroup" if span > 1 else "row"}"{rows}{_kind(sheet, heading)}>{shown}{below}</th>'


def _share(text: str) -> str:
    """A value, its interval in small print, and what else is said of it on lines of its own."""
    first, *others = (INTERVAL.sub(r'<span class="interval">\1</span>', part) for part in map(plain, text.split("; ")))
    return first + "".join(f'<span class="facts">{part}</span>' for part in others)


def _kind(sheet: Sheet, heading: str) -> str:
    return ' class="text"' if heading in sheet.texts else ""
