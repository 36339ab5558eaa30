"""The interactive report: one HTML file that needs no network and opens from the disk."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import msgspec

from ... import __version__
from ...errors import BadFile
from ...storage.records import Record
from ..doubts import doubts
from ..extras import extras
from ..sheets import Sheet
from . import markup
from .arrays import packed
from .contents import collected
from .markup import plain
from .panels import Panel, grouped

SCRIPTS = tuple(
    f"{name}.js"
    for name in ("metrics", "data", "models", "controls", "drawing", "saving", "curves", "points", "table", "card", "live")
)
"""In this order they are one script."""

SLOT = re.compile(r"\{\{(\w+)\}\}")
NOSCRIPT = (
    '<noscript><p class="notice">Without JavaScript there are no sliders and no plots. '
    "The recorded numbers are all here.</p></noscript>\n"
)
FACTS = ("run", "model", "trained with", "checkpoint", "attack seed", "device", "made", "wmr", "record")


class Part(NamedTuple):
    """A part of the page that needs no script: its heading, and what a link to it says."""

    heading: str
    target: str


PARTS = {"recorded": Part("As recorded", "recorded numbers"), "beside": Part("In comparison", "tables in comparison")}


def page(found: Sequence[tuple[Path, Record]]) -> str:
    """Tables, plots and sliders over these records and the rows beside them."""
    return drawn(found)[0]


def drawn(found: Sequence[tuple[Path, Record]], beside: Sequence[Sheet] = ()) -> tuple[str, list[BadFile]]:
    """The page with the sheets that stand beside the records, and the rows that could not be read.

    Records without rows have no live numbers, and the page says why.
    """
    shown = grouped(found)
    made = collected(shown)
    parts = {
        "recorded": [_section(number, panel) for number, panel in enumerate(shown)],
        "beside": [_folded(sheet, is_open=sheet is beside[0]) for sheet in beside],
    }
    filled = [name for name in parts if parts[name]]
    text = _filled(
        _own("page.html"),
        {
            "title": plain(_title(found)),
            "lead": plain(_lead(found, shown)),
            "style": _own("page.css"),
            "skips": "".join(f'<a class="skip" href="#{name}">Skip to the {PARTS[name].target}</a>\n' for name in filled),
            "noscript": NOSCRIPT if shown else "",
            **{name: _part(name, contents) for name, contents in parts.items()},
            "data": json_text({"panels": made.panels, "arrays": made.arrays.described}),
            "arrays": made.arrays.text(),
            **(_plotting() if made.is_plotted else {"plotly": "", "licences": ""}),
            "script": "\n".join(_own(name) for name in SCRIPTS),
            "version": plain(__version__),
        },
    )
    return text, made.problems


def json_text(value: object) -> str:
    """JSON that no text in it can end: it stands in a script element."""
    text = msgspec.json.encode(value).decode()
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _filled(template: str, slots: Mapping[str, str]) -> str:
    """The template with every slot filled, in one pass: no text can name a slot."""
    return SLOT.sub(lambda slot: slots[slot[1]], template)


def _own(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _plotting() -> dict[str, str]:
    """What a page with plots carries: the script that draws them, and its licence."""
    script, notice = _plotly()
    return {
        "plotly": f'<script type="text/plain" id="plotly">{script}</script>\n',
        "licences": _filled(_own("licences.html"), {"plotly_notice": plain(notice)}),
    }


@cache
def _plotly() -> tuple[str, str]:
    """plotly.js as the package `plotly` brings it, whole and packed, and what its first comment says of itself."""
    script = (resources.files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    comment = script[:2000].decode("utf-8", "replace").partition("*/")[0]
    return packed(script), ". ".join(line.strip("/* \t") for line in comment.splitlines() if line.strip("/* \t"))


def _title(found: Sequence[tuple[Path, Record]]) -> str:
    names = list(dict.fromkeys(record.dataset.name for _, record in found))
    return f"wmr report: {', '.join(names)}" if names else "wmr report"


def _lead(found: Sequence[tuple[Path, Record]], shown: Sequence[Panel]) -> str:
    if not found:
        return "the paper's own numbers"
    checkpoints = {record.checkpoint.sha256 for _, record in found}
    days = sorted({record.created[:10] for _, record in found})
    parts = [
        _counted(len(found), "evaluation"),
        _counted(len(checkpoints), "checkpoint"),
        _counted(len(shown), "attack") if len(shown) != 1 else shown[0].title,
        " to ".join(dict.fromkeys(days[:1] + days[-1:])),
    ]
    return " · ".join(part for part in parts if part)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _section(number: int, panel: Panel) -> str:
    """The recorded numbers of one panel, and where they come from."""
    more = "".join(_folded(sheet) for sheet in (*extras(panel.records), _sources(panel)))
    told = "".join(
        f"<li>{plain(f'{name}: {text}')}</li>"
        for name, record in zip(panel.names, panel.records, strict=True)
        for text in doubts(record)
    )
    doubted = f'<ul class="doubts">{told}</ul>\n' if told else ""
    heading = f'<h3 id="panel-{number}">{plain(panel.title)}</h3>\n'
    recorded = markup.main_table(panel.names, panel.records, "accuracies as recorded")
    return f'<section class="panel" aria-labelledby="panel-{number}">\n{heading}{recorded}{doubted}{more}</section>\n'


def _part(name: str, contents: Sequence[str]) -> str:
    """A part of the page below its heading, where there is anything in it."""
    if not contents:
        return ""
    heading = f'<h2 id="{name}-heading">{PARTS[name].heading}</h2>\n'
    opening = f'<section id="{name}" aria-labelledby="{name}-heading" tabindex="-1">\n{heading}'
    return opening + "".join(contents) + "</section>"


def _folded(sheet: Sheet, *, is_open: bool = False) -> str:
    opening = "<details open>" if is_open else "<details>"
    return f"{opening}<summary>{plain(sheet.title)}</summary>{markup.table(sheet)}</details>\n"


def _sources(panel: Panel) -> Sheet:
    rows = [tuple(_source(name, record)) for name, record in zip(panel.names, panel.records, strict=True)]
    return Sheet(FACTS, rows, "checkpoint: the first digits of its hash", "where the numbers come from", texts=FACTS)


def _source(name: str, record: Record) -> Iterator[str]:
    checkpoint = record.checkpoint
    yield from (name, checkpoint.model, f"{checkpoint.defense}, kernel {checkpoint.kernel}, seed {checkpoint.seed}")
    yield from (checkpoint.sha256[:12], str(record.attack.seed), record.device)
    yield from (record.created[:19].replace("T", " "), record.wmr, record.id)
