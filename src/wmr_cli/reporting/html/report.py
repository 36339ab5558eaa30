"""The interactive report: one HTML file that opens from disk and needs no network."""

import base64
import re
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import msgspec

from ... import __version__
from ...errors import BadFile
from ...storage.records import Record
from ..radii import group_radii
from ..rows import make_rows
from ..scoring import list_caveats
from ..tables import main
from ..tables.details import make_detail_tables
from ..tables.escaping import printable
from ..tables.text_table import TextTable
from .payload import ReportPanel, build_payload, compress_to_base64, group_into_panels

# joined to one script in this order
SCRIPTS = (
    "metrics.js",
    "data.js",
    "models.js",
    "controls.js",
    "drawing.js",
    "saving.js",
    "curves.js",
    "points.js",
    "table.js",
    "card.js",
    "live.js",
)

SLOT = re.compile(r"\{\{(\w+)\}\}")
NOSCRIPT = (
    '<noscript><p class="notice">The sliders and plots need JavaScript. '
    "All recorded numbers are below.</p></noscript>\n"
)
SOURCE_COLUMNS = (
    "run",
    "model",
    "trained with",
    "checkpoint",
    "attack seed",
    "device",
    "made",
    "wmr",
    "record",
)

# the training settings are below the run's name; all else is in the heading of the panel
MAIN_COLUMNS: tuple[str, ...] = (
    "run",
    "A_nat",
    "A_rob",
    "α_test",
    "A_sa",
    "A_cal",
    "A_tr",
    "ESS",
    "T",
)
# columns of this measure are left out unless a record has it
CALIBRATED_COLUMNS = ("A_cal", "T")

# columns that do not depend on α: one cell spans all rows of a record
MERGED_COLUMNS = ("run", "A_nat", "A_rob")

INTERVAL = re.compile(r"( \[[^\]]*\])")


class PagePart(NamedTuple):
    """A part of the page that works without script: its heading, and the text of its link."""

    heading: str
    link: str


PAGE_PARTS = {
    "radii": PagePart("Accuracy against ε", "accuracy against ε"),
    "recorded": PagePart("Recorded numbers", "recorded numbers"),
    "comparison": PagePart("Comparisons", "comparison tables"),
}


def render_report(
    found: Sequence[tuple[Path, Record]], comparisons: Sequence[TextTable] = ()
) -> tuple[str, list[BadFile]]:
    """Return the page and the row files that could not be read.

    `found` holds each record with its file; `comparisons` are tables for the end of the page. A
    record without rows keeps its recorded numbers, and the page gives the reason.
    """
    panels = group_into_panels(found)
    payload = build_payload(panels)
    parts = {
        "radii": _render_radii(found),
        "recorded": [_render_panel(number, panel) for number, panel in enumerate(panels)],
        "comparison": [
            _render_details(table, is_open=number == 0) for number, table in enumerate(comparisons)
        ],
    }
    skip_links = [
        f'<a class="skip" href="#{name}">Skip to the {PAGE_PARTS[name].link}</a>\n'
        for name, contents in parts.items()
        if contents
    ]
    slots = {
        "title": escape_html(_page_title(found)),
        "lead": escape_html(_page_lead(found, panels)),
        "style": _read_static("page.css"),
        "skips": "".join(skip_links),
        "noscript": NOSCRIPT if panels else "",
        "radii": _render_part("radii", parts["radii"]),
        "recorded": _render_part("recorded", parts["recorded"]),
        "comparison": _render_part("comparison", parts["comparison"]),
        "data": encode_json({"panels": payload.panels, "arrays": payload.arrays.descriptions}),
        "arrays": payload.arrays.to_base64(),
        "plotly": "",
        "licences": "",
        "script": "\n".join(_read_static(name) for name in SCRIPTS),
        "version": escape_html(__version__),
    }
    # plotly.js is most of the page, so that a page without plots omits it
    if payload.has_plots:
        slots |= _plotly_slots()
    return _fill_slots(_read_static("page.html"), slots), payload.problems


def encode_json(value: object) -> str:
    """Encode JSON for a script element: no text in it can end the element."""
    text = msgspec.json.encode(value).decode()
    # U+2028 and U+2029 end a line in older JavaScript
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _fill_slots(template: str, slots: Mapping[str, str]) -> str:
    """Fill all slots in one pass, so that a user's text cannot name a slot."""
    return SLOT.sub(lambda slot: slots[slot[1]], template)


def _read_static(name: str) -> str:
    return (resources.files(__package__) / "static" / name).read_text(encoding="utf-8")


def _plotly_slots() -> dict[str, str]:
    """Return plotly.js and its licence, for a page with plots."""
    script, notice = _load_plotly()
    return {
        "plotly": f'<script type="text/plain" id="plotly">{script}</script>\n',
        "licences": _fill_slots(
            _read_static("licences.html"), {"plotly_notice": escape_html(notice)}
        ),
    }


@cache
def _load_plotly() -> tuple[str, str]:
    """Return plotly.js from the package `plotly`, compressed, and the notice it starts with."""
    # from the installed package: nothing is downloaded, now or by the page
    script = (resources.files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    comment = script[:2000].decode("utf-8", "replace").partition("*/")[0]
    lines = [line.strip("/* \t") for line in comment.splitlines()]
    return compress_to_base64(script), ". ".join(line for line in lines if line)


def _page_title(found: Sequence[tuple[Path, Record]]) -> str:
    names = list(dict.fromkeys(record.dataset.name for _, record in found))
    return f"wmr report: {', '.join(names)}" if names else "wmr report"


def _page_lead(found: Sequence[tuple[Path, Record]], panels: Sequence[ReportPanel]) -> str:
    """Return for example `4 evaluations · 2 checkpoints · 2 attacks · 2026-10-03`."""
    if not found:
        return "numbers of the paper"
    checkpoints = {record.checkpoint.sha256 for _, record in found}
    days = sorted({record.created[:10] for _, record in found})
    parts = [
        _count(len(found), "evaluation"),
        _count(len(checkpoints), "checkpoint"),
        panels[0].title if len(panels) == 1 else _count(len(panels), "attack"),
        " to ".join(dict.fromkeys([days[0], days[-1]])),
    ]
    return " · ".join(part for part in parts if part)


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _render_panel(number: int, panel: ReportPanel) -> str:
    """Render the recorded numbers of a panel, with caveats, details and sources."""
    named = list(zip(panel.names, panel.records, strict=True))
    main_table = render_main_table(panel.names, panel.records, "accuracies as recorded")
    caveats = [
        f"<li>{escape_html(f'{name}: {text}')}</li>"
        for name, record in named
        for text in list_caveats(record)
    ]
    caveat_list = f'<ul class="caveats">{"".join(caveats)}</ul>\n' if caveats else ""
    # folded away, because they are many
    details = [_render_details(table) for table in make_detail_tables(panel.records)]
    details.append(_render_details(_source_table(panel)))
    return (
        f'<section class="panel" aria-labelledby="panel-{number}">\n'
        f'<h3 id="panel-{number}">{escape_html(panel.title)}</h3>\n'
        f"{main_table}{caveat_list}{''.join(details)}</section>\n"
    )


def _render_radii(found: Sequence[tuple[Path, Record]]) -> list[str]:
    """Render the figures of models that were measured at several radii."""
    if not group_radii(found):
        return []
    # imported here: other pages do not need matplotlib
    from ..figures import render_svgs

    return [
        '<img class="figure" alt="A_rob and A_sa against ε, and histograms of the critical ε; the '
        'numbers are in the tables below" src="data:image/svg+xml;base64,'
        f'{base64.b64encode(svg).decode("ascii")}">\n'
        for svg in render_svgs(found, ("radii", "critical-eps"))
    ]


def _render_part(name: str, contents: Sequence[str]) -> str:
    """Render a part of the page below its heading; nothing without contents."""
    if not contents:
        return ""
    return (
        f'<section id="{name}" aria-labelledby="{name}-heading" tabindex="-1">\n'
        f'<h2 id="{name}-heading">{PAGE_PARTS[name].heading}</h2>\n'
        f"{''.join(contents)}</section>"
    )


def _render_details(table: TextTable, *, is_open: bool = False) -> str:
    """Render a table that the reader can fold away."""
    opening = "<details open>" if is_open else "<details>"
    summary = f"<summary>{escape_html(table.title)}</summary>"
    return f"{opening}{summary}{render_table(table)}</details>\n"


def _source_table(panel: ReportPanel) -> TextTable:
    return TextTable(
        SOURCE_COLUMNS,
        [_source_row(*named) for named in zip(panel.names, panel.records, strict=True)],
        "checkpoint: first digits of the SHA-256",
        "sources of the numbers",
        text_columns=SOURCE_COLUMNS,
    )


def _source_row(name: str, record: Record) -> tuple[str, ...]:
    checkpoint = record.checkpoint
    return (
        name,
        checkpoint.model,
        f"{checkpoint.defense}, kernel {checkpoint.kernel}, seed {checkpoint.seed}",
        checkpoint.sha256[:12],
        str(record.attack.seed),
        record.device,
        record.created[:19].replace("T", " "),
        record.wmr,
        record.id,
    )


def escape_html(text: str) -> str:
    """Escape text for HTML; invisible and direction-changing characters become codes."""
    return escape(printable(text))


def render_main_table(names: Sequence[str], records: Sequence[Record], caption: str) -> str:
    """Render the main table of comparable records: a body per record, a row per alpha."""
    columns = MAIN_COLUMNS
    notes = [main.make_caption(records)]
    if any(record.calibration for record in records):
        notes.append(main.CALIBRATED_NOTE)
    else:
        columns = tuple(name for name in MAIN_COLUMNS if name not in CALIBRATED_COLUMNS)
    tables = [
        _record_table(name, record, columns) for name, record in zip(names, records, strict=True)
    ]
    bodies = [
        f"<tbody>{_render_rows(table, MERGED_COLUMNS, _training_facts(record))}</tbody>"
        for table, record in zip(tables, records, strict=True)
    ]
    return _render(tables[0], "".join(bodies), caption, *notes)


def render_table(table: TextTable) -> str:
    """Render any other table: a body per part between rules, and its notes below."""
    bodies = "".join(f"<tbody>{_render_rows(part)}</tbody>" for part in table.split_at_rules())
    return _render(table, bodies, table.title, table.caption, *table.notes)


def _record_table(name: str, record: Record, columns: tuple[str, ...]) -> TextTable:
    cells = [{**main.format_row(row), "run": name} for row in make_rows([record])]
    rows = [tuple(row[column] for column in columns) for row in cells]
    return TextTable(
        columns,
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
    # screen readers announce the heading of a cell by its scope
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
