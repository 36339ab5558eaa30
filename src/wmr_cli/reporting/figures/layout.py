"""What figures of several panels share: pages, the heading, titles, and the legend below."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from .material import Group, Member, Undrawn
from .style import FAINT, WIDTH, Look, new_figure
from .words import wrapped

T = TypeVar("T")
Entry = tuple[Artist, str]
"""A line of the legend."""
Facts = Mapping[str, str]
PER_INCH, LINE, ROW = 17, 0.19, 0.16
"""Letters that fit side by side in an inch; the height of a line of text, and of a row of the legend."""
SEEDS = "\nmeans over the seeds of a training; thin lines: each seed"
POOLED = "\nall seeds of a training together"
FORMULA = re.compile(r"(?<!\\)\$.*?(?<!\\)\$")
STOP = re.compile(r"(?<=[,;]) ")


@dataclass(frozen=True)
class Drawing:
    """A figure and what its files are called."""

    name: str
    figure: Figure


Made = Drawing | Undrawn
"""What a maker of figures has to say."""


def pages(parts: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """At most `size` of them at a time."""
    return (parts[first : first + size] for first in range(0, len(parts), size))


def shape(panels: int) -> tuple[int, int]:
    """Rows and columns for so many panels."""
    columns = 2 if panels == 4 else min(3, panels)
    return -(-panels // columns), columns


def framed(width: float, height: float, facts: Sequence[Facts], entries: Sequence[Entry], note: str = "") -> Figure:
    """A figure with so much room for panels: what all of them share and how to read them stands above, the legend below."""
    columns, below = _legend_shape(entries, width)
    shared = ", ".join(text for name, text in facts[0].items() if text and len({other[name] for other in facts}) == 1)
    above = [line for text in (shared, *note.split("\n")) for line in _folded(text, int(width * PER_INCH))]
    figure = new_figure(width, height + LINE * (len(above) + 1) + below)
    figure.suptitle("\n".join(above), color=FAINT)
    if entries:
        handles, texts = zip(*entries, strict=True)
        figure.legend(handles, texts, loc="outside lower center", ncols=columns, columnspacing=1.6, labelspacing=0.3)
    return figure


def title(axes: Axes, own: Facts, facts: Sequence[Facts], *, wide: bool = False) -> None:
    """What tells a panel from the others on the page; a wide one stands over a whole row."""
    said = ", ".join(text for name, text in own.items() if text and len({other[name] for other in facts}) > 1)
    letters = int(PER_INCH * (WIDTH if wide else axes.bbox.width / axes.figure.dpi))
    axes.set_title("\n".join(_folded(said, letters)), loc="left" if wide else "center")


def members_of(groups: Iterable[Group]) -> list[Member]:
    """Every model once, where most of its seeds are."""
    found: dict[int, Member] = {}
    for member in (member for group in groups for member in group.members):
        number = member.look.number
        found[number] = max(found.get(number, member), member, key=lambda one: len(one.seeds))
    return [found[number] for number in sorted(found)]


def entry(look: Look, label: str) -> Entry:
    """A model in the legend."""
    return Line2D([], [], **look.line, marker=look.marker), label


def extra(label: str) -> float:
    """The height of a label's lines after the first."""
    return LINE * label.count("\n")


def _folded(text: str, letters: int) -> list[str]:
    """Text on lines of about so many letters, broken after a comma or semicolon, or anywhere in a part that is longer."""
    lines: list[str] = []
    for part in STOP.split(text) if text else ():
        if not FORMULA.search(part) and len(part) > letters:
            lines += wrapped(part.replace(r"\$", "$"), letters).split("\n")
        elif lines and _length(f"{lines[-1]} {part}") <= letters:
            lines[-1] += f" {part}"
        else:
            lines.append(part)
    return lines


def _length(text: str) -> int:
    """How many letters are seen, about."""
    return max(len(line) for line in FORMULA.sub("sign", text).split("\n"))


def _legend_shape(entries: Sequence[Entry], width: float) -> tuple[int, float]:
    """Columns that the longest name leaves room for, and the height of the tallest."""
    if not entries:
        return 1, 0.0
    longest = max(_length(text) for _, text in entries)
    columns = max(1, min(len(entries), int(width * PER_INCH) // (longest + 9)))
    rows = -(-len(entries) // columns)  # a column is filled before the next
    heights = [LINE * (text.count("\n") + 1) if "\n" in text else ROW for _, text in entries]
    return columns, max(sum(heights[first : first + rows]) for first in range(0, len(entries), rows))
