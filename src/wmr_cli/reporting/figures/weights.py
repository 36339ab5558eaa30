"""How the attacker's weights spread over the images: the paper's Figures 5 to 7."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ...measures import WeightedAccuracy, normalized_weights
from ...measures.weights import Floats
from ...spec import exact
from .layout import Drawing, Made, extra, framed, pages
from .material import Group, Material, Member
from .style import FAINT, RIGHT, WIDTH, WRONG, blank
from .words import ALPHA_TEST

ROWS, COLUMNS, BINS = 8, 4, 30
PARTS = (("right", RIGHT, ""), ("wrong", WRONG, "//////"))
NOTE = "histograms of the weights behind $A_\\mathrm{sa}$; dashed: equal weights; ESS: effective sample size"


@dataclass(frozen=True)
class Spread:
    """A model's weights at one alpha in units of an equal share, of right images and of wrong ones, and what they amount to."""

    right: Floats
    wrong: Floats
    ess: float

    @property
    def largest(self) -> float:
        return float(max(self.right.max(initial=0.0), self.wrong.max(initial=0.0)))

    def heights(self, edges: Floats) -> tuple[Floats, Floats]:
        """Both parts in percent of all images, bin by bin."""
        each = 100 / (len(self.right) + len(self.wrong))
        return each * np.histogram(self.right, edges)[0], each * np.histogram(self.wrong, edges)[0]


def figures(material: Material) -> Iterator[Made]:
    """A figure for each group: a row for each model, a column for each alpha_test."""
    for whole in material.groups:
        group = whole.keeping(lambda member: not member.obstacle and bool(member.alphas))
        alphas = chosen(sorted({alpha for member in group.members for alpha in member.alphas}))
        for members in pages(group.members, ROWS):
            yield Drawing(f"weights-{group.name}", _figure(Group(group.facts, tuple(members)), alphas))


def chosen(alphas: Sequence[float]) -> list[float]:
    """As many as there are columns, evenly among them, with the smallest and the largest."""
    if len(alphas) <= COLUMNS:
        return list(alphas)
    return [alphas[place] for place in np.linspace(0, len(alphas) - 1, COLUMNS).round().astype(int)]


def spread(member: Member, alpha: float) -> Spread | None:
    """The weights behind A_sa; none where they are not known."""
    outcome = member.sampled(alpha)
    if outcome is None or outcome.log_weights is None:
        return None
    weights = len(outcome.correct) * normalized_weights(outcome.log_weights)
    ess = WeightedAccuracy.of(outcome.log_weights, outcome.correct).ess / len(weights)
    return Spread(weights[outcome.correct], weights[~outcome.correct], ess)


def _figure(group: Group, alphas: Sequence[float]) -> Figure:
    entries = [(_patch(colour, hatch), f"{name} images") for name, colour, hatch in PARTS]
    tall = [1.45 + extra(member.label) for member in group.members]
    tall[-1] += 0.18  # the name of the axis
    figure = framed(WIDTH, sum(tall), [group.facts], entries, NOTE)
    found = [[spread(member, alpha) for alpha in alphas] for member in group.members]
    edges = [_edges([row[place] for row in found]) for place in range(len(alphas))]
    tallest = max(float(np.add(*one.heights(bins)).max()) for row in found for one, bins in zip(row, edges, strict=True) if one)
    rows = figure.subfigures(len(group.members), 1, squeeze=False, height_ratios=tall)[:, 0]
    for part, member, spreads in zip(rows, group.members, found, strict=True):
        part.suptitle(member.label, x=0.01, ha="left")
        row = part.subplots(1, len(alphas), squeeze=False, sharey=True)[0]
        for axes, one, bins, alpha in zip(row, spreads, edges, alphas, strict=True):
            _panel(axes, one, bins, alpha)
        row[0].set_ylim(0, 1.06 * tallest)
        row[0].set_ylabel("images (%)")
        for axes in row if part is rows[-1] else ():
            axes.set_xlabel("weight / equal weight")
    return figure


def _patch(colour: str, hatch: str) -> Patch:
    return Patch(facecolor=colour, hatch=hatch, edgecolor="white", linewidth=0)


def _edges(spreads: Sequence[Spread | None]) -> Floats:
    """The same bins for all models at one alpha; equal weights have room on both sides."""
    largest = max((one.largest for one in spreads if one), default=1.0)
    return np.linspace(0, 1.01 * max(largest, 2.0), BINS + 1)


def _panel(axes: Axes, one: Spread | None, edges: Floats, alpha: float) -> None:
    if one is None:
        blank(axes)
        return
    draw(axes, one, edges)
    axes.set_title(f"{ALPHA_TEST} = {exact(alpha)}, ESS {100 * one.ess:.0f} %", fontsize=8)


def draw(axes: Axes, one: Spread, edges: Floats) -> None:
    """Right images, and wrong ones on top of them."""
    below = np.zeros(len(edges) - 1)
    for heights, (name, colour, hatch) in zip(one.heights(edges), PARTS, strict=True):
        look: dict[str, Any] = {"color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0}
        axes.bar(edges[:-1], heights, np.diff(edges), below, align="edge", label=name, **look)
        below = below + heights
    axes.axvline(1, color=FAINT, linewidth=0.6, linestyle=(0, (2, 2)))
    axes.set_xlim(0, edges[-1])
