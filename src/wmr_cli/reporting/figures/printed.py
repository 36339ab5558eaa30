"""Series that were printed elsewhere, redrawn: the paper's own Figures 3 and 4."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from . import style
from .layout import Entry, entry, framed, shape
from .style import INK, WIDTH, Look
from .words import literal

RING = {"markersize": 8.5, "markerfacecolor": "none", "markeredgecolor": INK, "markeredgewidth": 0.8}
SUSPECT: dict[str, Any] = {"linestyle": "", "marker": "o", **RING}


@dataclass(frozen=True)
class Series:
    """A line of points, (N,) each; `suspect` holds the x of points that cannot be right."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    suspect: Sequence[float] = ()


@dataclass(frozen=True)
class Panel:
    """Series on the same axes. Labels of axes are ours and may hold formulas; title and series' labels are taken literally."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    is_log: bool = False


@dataclass(frozen=True)
class Picture:
    """A figure that was printed: what it shows, and its panels."""

    title: str
    panels: Sequence[Panel]


def redraw(picture: Picture, folder: Path, name: str) -> list[Path]:
    """The picture in our style as PNG, SVG and PDF; suspect points are ringed."""
    with style.styled():
        return style.save(figure(picture), folder, name)


def figure(picture: Picture) -> Figure:
    """The same, not yet written."""
    looks = _looks(picture)
    rows, columns = shape(len(picture.panels))
    made = framed(WIDTH if columns > 1 else 4.6, 2.3 * rows, [{"title": literal(picture.title)}], _entries(picture, looks))
    for number, axes in enumerate(made.subplots(rows, columns, squeeze=False).flat):
        if number >= len(picture.panels):
            style.blank(axes)
        else:
            draw(axes, picture.panels[number], looks)
    return made


def draw(axes: Axes, panel: Panel, looks: dict[str, Look]) -> None:
    """Points joined by lines; a ring around each that is suspect."""
    for series in panel.series:
        look = looks[series.label]
        axes.plot(series.x, series.y, **look.line, marker=look.marker, label=series.label)
        ringed = [(x, y) for x, y in zip(series.x, series.y, strict=True) if x in series.suspect]
        if ringed:
            axes.plot(*zip(*ringed, strict=True), **SUSPECT, label=f"suspect: {series.label}")
    if panel.is_log:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_title(literal(panel.title))
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)


def _looks(picture: Picture) -> dict[str, Look]:
    """The same label looks the same in every panel."""
    labels = dict.fromkeys(series.label for panel in picture.panels for series in panel.series)
    return {label: Look(number) for number, label in enumerate(labels)}


def _entries(picture: Picture, looks: dict[str, Look]) -> list[Entry]:
    entries: list[Entry] = [entry(look, literal(label)) for label, look in looks.items()]
    if any(series.suspect for panel in picture.panels for series in panel.series):
        entries.append((Line2D([], [], **SUSPECT), "suspect point"))
    return entries
