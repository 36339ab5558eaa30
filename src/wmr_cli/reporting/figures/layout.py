"""Layout shared by figures of several panels: pages, heading, panel titles, legend."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D

from .data import ComparableGroup, FigureModel, SkippedFigure
from .style import FAINT, LineStyle, new_figure, wrap_text

T = TypeVar("T")
LegendEntry = tuple[Artist, str]
# texts by kind that describe a panel, such as its dataset and attack; "" where it has none
Facts = Mapping[str, str]

LETTERS_PER_INCH = 17
LINE_HEIGHT = 0.19
LEGEND_ROW_HEIGHT = 0.16
# room for a legend's handle and the gap to the next column, in letters
LEGEND_HANDLE_LETTERS = 9

MEAN_OVER_SEEDS = "\nmeans over training seeds; thin lines: each seed"
POOLED_SEEDS = "\nall training seeds pooled"
FORMULA = re.compile(r"(?<!\\)\$.*?(?<!\\)\$")
PUNCTUATION = re.compile(r"(?<=[,;]) ")
WORD = re.compile(rf"(?:{FORMULA.pattern}|\S)+")


@dataclass(frozen=True)
class NamedFigure:
    """A figure with the name of its files."""

    name: str
    figure: Figure


FigureOrSkip = NamedFigure | SkippedFigure


def paginate(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield at most `size` items at a time."""
    return (items[first : first + size] for first in range(0, len(items), size))


def grid_shape(panels: int, most: int = 3) -> tuple[int, int]:
    """Return rows and columns for this number of panels, at most `most` side by side."""
    # four panels as two rows of two, because three and one leave a gap
    columns = 2 if panels == 4 and most == 3 else min(most, panels)
    return -(-panels // columns), columns


def split_single_points(
    panels: Sequence[T], count_points: Callable[[T], int]
) -> tuple[list[T], list[T]]:
    """Return the panels to draw, and those left out because they would show a single point.

    If all panels are single points, all are drawn.
    """
    drawn = [panel for panel in panels if count_points(panel) > 1]
    if not drawn:
        return list(panels), []
    return drawn, [panel for panel in panels if count_points(panel) <= 1]


def share_y_axis(axes: Sequence[Axes]) -> None:
    """Give panels of the same quantity the same y axis."""
    for other in axes[1:]:
        other.sharey(axes[0])


def make_figure(
    width: float,
    height: float,
    facts: Sequence[Facts],
    entries: Sequence[LegendEntry],
    note: str = "",
    *,
    has_heading: bool = True,
) -> Figure:
    """Return a figure with `width` by `height` inches for panels.

    The heading above holds the facts that all panels share, and the note; the legend is below.
    """
    columns, legend_height = _legend_shape(entries, width)
    letters = int(width * LETTERS_PER_INCH)
    heading: list[str] = []
    if has_heading:
        heading = _fold(_join_facts(facts[0], facts, shared=True), letters)
        for line in note.split("\n"):
            heading += _fold(line, letters)
    figure = new_figure(width, height + LINE_HEIGHT * (len(heading) + 1) + legend_height)
    if heading:
        figure.suptitle("\n".join(heading), color=FAINT)
    if entries:
        handles, texts = zip(*entries, strict=True)
        figure.legend(
            handles,
            texts,
            loc="outside lower center",
            ncols=columns,
            columnspacing=1.6,
            labelspacing=0.3,
        )
    return figure


def set_panel_title(
    axes: Axes, own: Facts, facts: Sequence[Facts], *, spans_row: bool = False
) -> None:
    """Set the title to those of its own facts that differ between the panels of a page."""
    text = _join_facts(own, facts, shared=False)
    panel_width = axes.bbox.width / axes.figure.dpi
    width = width_in_inches(axes.figure) if spans_row else panel_width
    lines = _fold(text, int(LETTERS_PER_INCH * width))
    axes.set_title("\n".join(lines), loc="left" if spans_row else "center")


def width_in_inches(figure: Figure | SubFigure) -> float:
    """Return the width of a figure or of a part of one."""
    return float(figure.bbox.width / figure.dpi)


def unique_models(groups: Iterable[ComparableGroup]) -> list[FigureModel]:
    """Return every model once, from the group where it has most seeds."""
    by_number: dict[int, FigureModel] = {}
    for group in groups:
        for model in group.models:
            known = by_number.setdefault(model.style.number, model)
            # a group may lack the rows of some seeds
            if len(model.seeds) > len(known.seeds):
                by_number[model.style.number] = model
    return [by_number[number] for number in sorted(by_number)]


def legend_entry(style: LineStyle, label: str) -> LegendEntry:
    """Return the legend entry of a model."""
    return Line2D([], [], **style.line, marker=style.marker), label


def extra_label_height(label: str) -> float:
    """Return the height of a label's lines after the first, in inches."""
    return LINE_HEIGHT * label.count("\n")


def _join_facts(own: Facts, facts: Sequence[Facts], *, shared: bool) -> str:
    """Join those facts of a panel that all panels share, or those that differ between them."""
    return ", ".join(
        text
        for kind, text in own.items()
        if text and (len({other[kind] for other in facts}) == 1) == shared
    )


def _fold(text: str, letters: int) -> list[str]:
    """Break text into lines of about this many letters.

    Lines break after a comma or semicolon; a part that is too long breaks anywhere, but not within
    a formula.
    """
    if not text:
        return []
    lines: list[str] = []
    for part in PUNCTUATION.split(text):
        if not FORMULA.search(part) and len(part) > letters:
            # `wrap_text` escapes dollars, so that they must not be escaped before
            lines += wrap_text(part.replace(r"\$", "$"), letters).split("\n")
            continue
        pieces = [part] if _visible_length(part) <= letters else WORD.findall(part)
        for piece in pieces:
            if lines and _visible_length(f"{lines[-1]} {piece}") <= letters:
                lines[-1] += f" {piece}"
            else:
                lines.append(piece)
    return lines


def _visible_length(text: str) -> int:
    """Estimate the letters of the longest line; a formula counts as four."""
    return max(len(line) for line in FORMULA.sub("sign", text).split("\n"))


def _legend_shape(entries: Sequence[LegendEntry], width: float) -> tuple[int, float]:
    """Return the columns that the longest label leaves room for, and the legend's height."""
    if not entries:
        return 1, 0.0
    longest = max(_visible_length(text) for _, text in entries)
    fitting = int(width * LETTERS_PER_INCH) // (longest + LEGEND_HANDLE_LETTERS)
    columns = max(1, min(len(entries), fitting))
    rows = -(-len(entries) // columns)
    heights = [
        LINE_HEIGHT * (text.count("\n") + 1) if "\n" in text else LEGEND_ROW_HEIGHT
        for _, text in entries
    ]
    # matplotlib fills one column before the next
    column_heights = [sum(column) for column in paginate(heights, rows)]
    return columns, max(column_heights)
