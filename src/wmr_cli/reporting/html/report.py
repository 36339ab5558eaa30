"""The interactive report: one HTML file that opens from disk and needs no network."""

import base64
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import msgspec

from ... import __version__
from ...errors import BadFile
from ...storage.records import Record
from ..comparison import ResampledAccuracies
from ..radii import group_radii
from ..rows import make_rows, merge_unweighted_rows
from ..scoring import list_caveats
from ..tables import main
from ..tables.details import make_detail_tables
from ..tables.escaping import printable
from ..tables.text_table import TextTable
from .legend import list_terms
from .payload import (
    TRAINING_COLUMNS,
    ReportPanel,
    build_payload,
    compress_to_base64,
    group_into_panels,
)

# joined to one script in this order
SCRIPTS = (
    "metrics.js",
    "data.js",
    "models.js",
    "methods.js",
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

# columns of the main table that are equal in a whole panel: its heading has them
PANEL_COLUMNS = ("data", "attack", "attack_seed", "ε", "kernel_test", "n")

# columns that do not depend on α: one cell spans all rows of a method
MERGED_COLUMNS = ("run", *TRAINING_COLUMNS, "A_nat", "A_rob", "T")

INTERVAL = re.compile(r"( \[[^\]]*\])")

# the legend explains these once for the whole page
LEGEND_NOTES = (main.CALIBRATED_NOTE, main.TRAINING_SEEDS_NOTE, main.BOLD_NOTE)


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
    found: Sequence[tuple[Path, Record]],
    comparisons: Sequence[TextTable] = (),
    resampled: ResampledAccuracies | None = None,
) -> tuple[str, list[BadFile]]:
    """Return the page and the row files that could not be read.

    `found` holds each record with its file; `comparisons` are tables for the end of the page. A
    record without rows keeps its recorded numbers, and the page gives the reason. Without
    `resampled`, recorded accuracies are compared by their intervals, as in the tables.
    """
    resampled = resampled or {}
    panels = group_into_panels(found)
    payload = build_payload(panels, resampled)
    parts = {
        "radii": _render_radii(found),
        "recorded": [
            _render_panel(number, panel, resampled) for number, panel in enumerate(panels)
        ],
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
        "legend": _render_legend(list_terms(panels, payload)) if panels else "",
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


def _render_legend(terms: Mapping[str, str]) -> str:
    """Render what the page's symbols mean."""
    entries = "".join(
        f"<div><dt>{escape_html(term)}</dt><dd>{escape_html(text)}</dd></div>\n"
        for term, text in terms.items()
    )
    return f'<dl id="legend" aria-label="Legend">\n{entries}</dl>\n'


def _render_panel(number: int, panel: ReportPanel, resampled: ResampledAccuracies) -> str:
    """Render the recorded numbers of a panel, with caveats, details and sources."""
    named = list(zip(panel.names, panel.records, strict=True))
    tables = [render_table(_make_method_table(panel, resampled), MERGED_COLUMNS)]
    if panel.has_several_seeds:
        by_seed = render_table(_make_seed_table(panel), MERGED_COLUMNS)
        tables.append(_fold("accuracies of every seed", by_seed, kind="seeds"))
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
        f"{''.join(tables)}{caveat_list}{''.join(details)}</section>\n"
    )


def _make_method_table(panel: ReportPanel, resampled: ResampledAccuracies) -> TextTable:
    """Make the main table of a report for the methods of a panel, without the legend's notes."""
    table = main.make_ranked_table([panel.group], resampled)
    notes = [note for note in table.notes if note not in LEGEND_NOTES]
    if any(record.repeats for record in panel.records):
        notes.append(main.ATTACK_SEEDS_NOTE)
    named = [(method.name, len(method.rows)) for method in panel.methods]
    return replace(
        _select_columns(table, named), title="accuracies as recorded", notes=tuple(notes)
    )


def _make_seed_table(panel: ReportPanel) -> TextTable:
    """Make the main table with each record by itself; nothing is ranked."""
    named = [
        (name, len(list(merge_unweighted_rows(make_rows([record])))))
        for name, record in zip(panel.names, panel.records, strict=True)
    ]
    table = _select_columns(main.make_table(panel.records), named)
    return replace(table, title="accuracies of every seed", notes=())


def _select_columns(table: TextTable, named: Sequence[tuple[str, int]]) -> TextTable:
    """Drop the columns of the panel's heading; `named` has names of runs and their row counts."""
    kept = [position for position, name in enumerate(table.headings) if name not in PANEL_COLUMNS]
    names = [name for name, count in named for _ in range(count)]
    ends = itertools.accumulate(count for _, count in named)
    # the run's name is the first column
    rows = [
        (name, *(row[position] for position in kept[1:]))
        for name, row in zip(names, table.rows, strict=True)
    ]
    headings = tuple(table.headings[position] for position in kept)
    return replace(
        table,
        headings=headings,
        rows=rows,
        caption="",
        rules_after=frozenset(end - 1 for end in ends),
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
    return _fold(table.title, render_table(table), is_open=is_open)


def _fold(title: str, content: str, *, is_open: bool = False, kind: str = "") -> str:
    attributes = (f' class="{kind}"' if kind else "") + (" open" if is_open else "")
    summary = f"<summary>{escape_html(title)}</summary>"
    return f"<details{attributes}>{summary}{content}</details>\n"


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


def render_table(table: TextTable, merged: Sequence[str] = ()) -> str:
    """Render a table: a body per part between rules, and its caption and notes below.

    Equal cells of a `merged` column are one cell in each body.
    """
    bodies = "".join(
        f"<tbody>{_render_rows(part, merged)}</tbody>" for part in table.split_at_rules()
    )
    title = escape_html(table.title)
    heads = "".join(
        f'<th scope="col"{_class_of(table, heading)}>{escape_html(heading)}</th>'
        for heading in table.headings
    )
    notes = [note for note in (table.caption, *table.notes) if note]
    below = "".join(f'<p class="note">{escape_html(note)}</p>\n' for note in notes)
    # a region that takes focus can be scrolled by keyboard
    return (
        f'<div class="scroll" role="region" aria-label="{title}" tabindex="0">'
        f"<table><caption>{title}</caption><thead><tr>{heads}</tr></thead>{bodies}</table></div>\n"
        f"{below}"
    )


def _render_rows(table: TextTable, merged: Sequence[str]) -> str:
    """Render all rows; a merged column has one cell if all of its cells are equal."""
    columns = [
        [table.split_cell(number, position) for number in range(len(table.rows))]
        for position in range(len(table.headings))
    ]
    spans = [
        len(cells) if heading in merged and len(set(cells)) == 1 else 1
        for heading, cells in zip(table.headings, columns, strict=True)
    ]
    return "\n".join(
        "<tr>"
        + "".join(
            _render_cell(table, position, cells[number], span)
            for position, (cells, span) in enumerate(zip(columns, spans, strict=True))
            if number % span == 0
        )
        + "</tr>"
        for number in range(len(table.rows))
    )


def _render_cell(
    table: TextTable, position: int, cell: tuple[str, str, bool], row_span: int
) -> str:
    content = _render_value(*cell)
    attributes = _class_of(table, table.headings[position])
    if row_span > 1:
        attributes = f' rowspan="{row_span}"{attributes}'
    if position:
        return f"<td{attributes}>{content}</td>"
    # screen readers announce the heading of a cell by its scope
    scope = "rowgroup" if row_span > 1 else "row"
    return f'<th scope="{scope}"{attributes}>{content}</th>'


def _render_value(value: str, rest: str, is_bold: bool) -> str:
    """Render a value with its interval in small print, and remarks on lines of their own."""
    interval, *remarks = (escape(part) for part in rest.split("; "))
    shown = f"<b>{escape(value)}</b>" if is_bold else escape(value)
    below = [f'<span class="facts">{remark}</span>' for remark in remarks]
    return INTERVAL.sub(r'<span class="interval">\1</span>', "".join([shown + interval, *below]))


def _class_of(table: TextTable, heading: str) -> str:
    return ' class="text"' if heading in table.text_columns else ""
