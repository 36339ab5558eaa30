"""How far images are from the other side: the distribution of margins, clean and attacked."""

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...measures.weights import Floats
from .layout import POOLED, Drawing, Made, entry, framed, members_of, pages, shape, title
from .material import Group, Material, Member
from .style import FAINT, WIDTH, blank

PANELS = 12
GRID = np.arange(-400, 401) / 400
"""Margins at which the share is taken: files do not grow with the images."""
NOTE = "share of images with at most this margin: at 0, that of wrong images"


def figures(material: Material) -> Iterator[Made]:
    """A figure for each data set: a panel for clean images, one for each attack and radius, a line for each model."""
    for groups in material.by_dataset():
        attacked = [group.keeping(lambda one: {"clean/margin", "uniform/margin"} <= one.rows.keys()) for group in groups]
        for page in pages([group for group in attacked if group.members], PANELS - 1):
            yield Drawing(f"margins-{page[0].dataset}", _figure(page))


def distribution(margins: Floats) -> Floats:
    """The share of images at or below each margin of the grid."""
    return np.searchsorted(np.sort(margins), GRID, side="right") / len(margins)


def _figure(groups: Sequence[Group]) -> Figure:
    members = members_of(groups)
    rows, columns = shape(len(groups) + 1)
    facts = [{**group.facts, "side": ""} for group in groups]
    note = NOTE + (POOLED if any(group.has_seeds for group in groups) else "")
    figure = framed(WIDTH, 2.3 * rows, facts, [entry(member.look, member.label) for member in members], note)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    panels = list(grid.flat)
    draw(panels[0], members, "clean")
    panels[0].set_title("clean")
    for axes, group in zip(panels[1:], groups, strict=False):
        draw(axes, group.members, "uniform")
        title(axes, {**group.facts, "side": "attacked" if len(groups) == 1 else ""}, [*facts, {**facts[0], "side": "clean"}])
    for number, axes in enumerate(panels):
        if number > len(groups):
            blank(axes)
        elif number + columns > len(groups):
            axes.set_xlabel("margin")
            axes.tick_params(labelbottom=True)
    for axes in grid[:, 0]:
        axes.set_ylabel("images (%)")
    return figure


def draw(axes: Axes, members: Sequence[Member], prefix: str) -> None:
    """A line for each model, of several seeds with all of their images."""
    for member in members:
        margins = np.concatenate([seed.rows[f"{prefix}/margin"] for seed in member.seeds])
        axes.plot(GRID, 100 * distribution(margins), **member.look.marked, label=member.label)
    axes.axvline(0, color=FAINT, linewidth=0.6)
    axes.set_xlim(-1, 1)
    axes.set_xticks([-1, -0.5, 0, 0.5, 1], ["−1", "−0.5", "0", "0.5", "1"])
    axes.set_ylim(0, 100)
