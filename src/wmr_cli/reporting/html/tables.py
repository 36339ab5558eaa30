"""Tables as HTML. All user text is escaped."""

import re
from collections.abc import Sequence
from html import escape

from ...storage.records import Record
from ..rows import make_rows
from ..tables import main
from ..tables.escaping import printable
from ..tables.text_table import TextTable

MAIN_COLUMNS = ("run", "A_nat", "A_rob", "α_test", "A_sa", "A_tr", "ESS")
"""The training settings are below the run's name; all else is in the heading of the panel."""

MERGED_COLUMNS = ("run", "A_nat", "A_rob")
"""Columns that do not depend on α: one cell spans all rows of a record."""

INTERVAL = re.compile(r"( \[[^\]]*\])")


def escape_html(text: str) -> str:
    """Escape text for HTML; invisible and direction-changing characters become codes."""
    return escape(printable(text))


def render_main_table(names: Sequence[str], records: Sequence[Record], caption: str) -> str:
    """Render the main table of comparable records: a body per record, a row per alpha."""
    tables = [_record_table(name, record) for name, record in zip(names, records, strict=True)]
    bodies = [
        f"<tbody>{_render_rows(table, MERGED_COLUMNS, _training_facts(record))}</tbody>"
        for table, record in zip(tables, records, strict=True)
    ]
    return _render(tables[0], "".join(bodies), caption, main.caption(records))


def render_table(table: TextTable) -> str:
    """Render any other table: a body per part between rules, and its notes below."""
    bodies = "".join(f"<tbody>{_render_rows(part)}</tbody>" for part in table.split_at_rules())
    return _render(table, bodies, table.title, table.caption, *table.notes)


def _record_table(name: str, record: Record) -> TextTable:
    cells = [{**main.format_row(row), "run": name} for row in make_rows([record])]
    rows = [tuple(row[column] for column in MAIN_COLUMNS) for row in cells]
    return TextTable(
        MAIN_COLUMNS,
        rows,
        "",
        text_columns=main.TEXT_COLUMNS,
        interval_columns=main.ACCURACY_HEADINGS,
    )


def _training_facts(record: Record) -> str:
    """Return for example `trades, kernel tilt, α_train 2`."""
    cells = main.format_row(next(iter(make_rows([record]))))
    facts = [cells["defense"]]
    if record.checkpoint.kernel not in main.DEFAULT_VALUES["kernel_train"]:
        facts.append(f"kernel {record.checkpoint.kernel}")
    if record.checkpoint.alpha_train is not None:
        facts.append(f"α_train {cells['α_train']}")
    return ", ".join(facts)


def _render(table: TextTable, bodies: str, caption: str, *notes: str) -> str:
    title = escape_html(caption)
    heads = "".join(
        f'<th scope="col"{_class_of(table, heading)}>{escape_html(heading)}</th>'
        for heading in table.headings
    )
    below = "".join(f'<p class="note">{escape_html(note)}</p>\n' for note in notes)
    # a region that takes focus can be scrolled by keyboard
    return (
        f'<div class="scroll" role="region" aria-label="{title}" tabindex="0">'
        f"<table><caption>{title}</caption><thead><tr>{heads}</tr></thead>{bodies}</table></div>\n"
        f"{below}"
    )


def _render_rows(table: TextTable, merged: Sequence[str] = (), facts: str = "") -> str:
    """Render all rows; a merged column has one cell, and `facts` are below the first name."""
    rendered = []
    for number, row in enumerate(table.rows):
        cells = []
        for heading, text in zip(table.headings, row, strict=True):
            if heading not in merged:
                cells.append(_render_cell(table, heading, text, 1, facts))
            elif number == 0:
                cells.append(_render_cell(table, heading, text, len(table.rows), facts))
        rendered.append(f"<tr>{''.join(cells)}</tr>")
    return "\n".join(rendered)


def _render_cell(table: TextTable, heading: str, text: str, row_span: int, facts: str) -> str:
    is_accuracy = heading in table.interval_columns
    content = _render_accuracy(text) if is_accuracy else escape_html(text)
    attributes = _class_of(table, heading)
    if row_span > 1:
        attributes = f' rowspan="{row_span}"{attributes}'
    if heading != table.headings[0]:
        return f"<td{attributes}>{content}</td>"
    scope = "rowgroup" if row_span > 1 else "row"
    below = f'<span class="facts">{escape_html(facts)}</span>' if facts else ""
    return f'<th scope="{scope}"{attributes}>{content}{below}</th>'


def _render_accuracy(text: str) -> str:
    """Render a value with its interval in small print, and remarks on lines of their own."""
    parts = [escape_html(part) for part in text.split("; ")]
    parts = [INTERVAL.sub(r'<span class="interval">\1</span>', part) for part in parts]
    remarks = [f'<span class="facts">{part}</span>' for part in parts[1:]]
    return parts[0] + "".join(remarks)


def _class_of(table: TextTable, heading: str) -> str:
    return ' class="text"' if heading in table.text_columns else ""
