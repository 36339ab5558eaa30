"""How the attacker's weights spread over the images: the paper's Figures 5 to 7."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ...measures import WeightedAccuracy, normalized_weights
from ...measures.weights import Floats
from ...spec import exact
from .layout import POOLED, Drawing, Made, extra, framed, pages
from .material import Group, Material, Measured, Member
from .style import FAINT, INK, RIGHT, WIDTH, WRONG, blank
from .words import A_SA, ALPHA_TEST

ROWS, COLUMNS, BINS = 8, 4, 30
PARTS = (("right", RIGHT, ""), ("wrong", WRONG, "//////"))
FLOOR = 1e-4
"""Smaller weights stand in the first bin: even all of them together are next to nothing."""
CARRIED = 0.9
NOTE = f"histograms of the weights behind {A_SA}; line: the weight of each bin; dashed: equal weights; ESS: effective sample size"
CUT = f"; weights below {FLOOR:g} are in the first bin"


@dataclass(frozen=True)
class Spread:
    """A model's weights at one alpha in units of an equal share, of right images and of wrong ones, and what they amount to."""

    right: Floats
    wrong: Floats
    ess: float

    @property
    def ends(self) -> tuple[float, float]:
        """The smallest weight that is shown as it is, and the largest."""
        everything = np.concatenate([self.right, self.wrong])
        return max(float(everything.min()), FLOOR), float(everything.max())

    def heights(self, edges: Floats) -> tuple[Floats, Floats]:
        """Both parts in percent of all images, bin by bin."""
        each = 100 / (len(self.right) + len(self.wrong))
        return each * _binned(self.right, edges), each * _binned(self.wrong, edges)

    def carried(self, edges: Floats) -> Floats:
        """The weight of each bin, in percent of all weight."""
        everything = np.concatenate([self.right, self.wrong])
        return 100 / len(everything) * _binned(everything, edges, everything)


def _binned(values: Floats, edges: Floats, weights: Floats | None = None) -> Floats:
    """Counts or sums in every bin; what lies below the first is in the first."""
    return np.asarray(np.histogram(values.clip(edges[0], edges[-1]), edges, weights=weights)[0], dtype=np.float64)


def figures(material: Material) -> Iterator[Made]:
    """A figure for each group: a row for each model, a column for each alpha_test."""
    for whole in material.groups:
        group = whole.keeping(lambda one: not one.obstacle and bool(one.alphas))
        alphas = chosen(sorted({alpha for member in group.members for alpha in member.alphas}))
        found = [[spread(member, alpha) for alpha in alphas] for member in group.members]
        scales = _scales(found, len(alphas))
        for rows in pages(list(zip(group.members, found, strict=True)), ROWS):
            yield Drawing(f"weights-{group.name}", _figure(group, rows, alphas, scales))


def chosen(alphas: Sequence[float]) -> list[float]:
    """As many as there are columns, evenly among them, with the smallest and the largest."""
    if len(alphas) <= COLUMNS:
        return list(alphas)
    return [alphas[place] for place in np.linspace(0, len(alphas) - 1, COLUMNS).round().astype(int)]


def spread(member: Member, alpha: float) -> Spread | None:
    """The weights behind A_sa, of several seeds all together; none where they are not known."""
    found = [one for seed in member.seeds if (one := _weights(seed, alpha)) is not None]
    if not found:
        return None
    right, wrong = (np.concatenate([getattr(one, part) for one in found]) for part in ("right", "wrong"))
    return Spread(right, wrong, min(one.ess for one in found))


def _weights(one: Measured, alpha: float) -> Spread | None:
    outcome = one.sampled(alpha)
    if outcome is None or outcome.log_weights is None:
        return None
    weights = len(outcome.correct) * normalized_weights(outcome.log_weights)
    ess = WeightedAccuracy.of(outcome.log_weights, outcome.correct).ess / len(weights)
    return Spread(weights[outcome.correct], weights[~outcome.correct], ess)


@dataclass(frozen=True)
class Scales:
    """What all pages of a group share: bins at each alpha, the height of the axis, and whether a weight is below the bins."""

    edges: list[Floats]
    top: float
    is_cut: bool


def _scales(found: Sequence[Sequence[Spread | None]], columns: int) -> Scales:
    edges = [_edges([row[place] for row in found]) for place in range(columns)]
    there = [(one, bins) for row in found for one, bins in zip(row, edges, strict=True) if one]
    tallest = max((max(np.add(*one.heights(bins)).max(), one.carried(bins).max()) for one, bins in there), default=1.0)
    is_cut = any(min(one.right.min(initial=np.inf), one.wrong.min(initial=np.inf)) < FLOOR for one, _ in there)
    return Scales(edges, 1.06 * float(tallest), is_cut)


def _figure(group: Group, found: Sequence[tuple[Member, list[Spread | None]]], alphas: Sequence[float], scales: Scales) -> Figure:
    entries: list[tuple[Artist, str]] = [(_patch(colour, hatch), f"{name} images") for name, colour, hatch in PARTS]
    entries.append((Line2D([], [], color=INK, linewidth=CARRIED), "weight"))
    tall = [1.45 + extra(member.label) for member, _ in found]
    tall[-1] += 0.18  # the name of the axis
    note = NOTE + (CUT if scales.is_cut else "") + (POOLED if group.has_seeds else "")
    figure = framed(WIDTH, sum(tall), [group.facts], entries, note)
    rows = figure.subfigures(len(found), 1, squeeze=False, height_ratios=tall)[:, 0]
    for part, (member, spreads) in zip(rows, found, strict=True):
        part.suptitle(member.label, x=0.01, ha="left")
        row = part.subplots(1, len(alphas), squeeze=False, sharey=True)[0]
        for axes, one, bins, alpha in zip(row, spreads, scales.edges, alphas, strict=True):
            _panel(axes, one, bins, alpha)
        row[0].set_ylim(0, scales.top)
        row[0].set_ylabel("percent")
        for axes in row if part is rows[-1] else ():
            axes.set_xlabel("weight / equal weight")
    return figure


def _patch(colour: str, hatch: str) -> Patch:
    return Patch(facecolor=colour, hatch=hatch, edgecolor="white", linewidth=0)


def _edges(spreads: Sequence[Spread | None]) -> Floats:
    """The same bins for all models at one alpha, each wider than the last by one ratio; equal weights have room on both sides."""
    ends = [one.ends for one in spreads if one]
    least, largest = min((low for low, _ in ends), default=1.0), max((high for _, high in ends), default=1.0)
    return np.geomspace(min(0.99 * least, 0.5), max(1.01 * largest, 2.0), BINS + 1)


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers on a log axis, 1 among them: 1, 2 and 5 of about one decade, of more some powers of ten."""
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    steps, every = ((1, 2, 5), 1) if high < 20 * low else ((1,), -(-len(decades) // 5))
    found = [digit * 10.0**decade for decade in decades if decade % every == 0 for digit in steps]
    return [tick for tick in found if low <= tick <= high]


def _panel(axes: Axes, one: Spread | None, edges: Floats, alpha: float) -> None:
    if one is None:
        blank(axes)
        return
    draw(axes, one, edges)
    axes.set_title(f"{ALPHA_TEST} = {exact(alpha)}, ESS {100 * one.ess:.0f} %", fontsize=8)


def draw(axes: Axes, one: Spread, edges: Floats) -> None:
    """Right images, wrong ones on top of them, and the weight of both as a line."""
    below = np.zeros(len(edges) - 1)
    for heights, (name, colour, hatch) in zip(one.heights(edges), PARTS, strict=True):
        look: dict[str, Any] = {"color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0}
        axes.bar(edges[:-1], heights, np.diff(edges), below, align="edge", label=name, **look)
        below = below + heights
    axes.stairs(one.carried(edges), edges, color=INK, linewidth=CARRIED, label="weight")
    axes.axvline(1, color=FAINT, linewidth=0.6, linestyle=(0, (2, 2)))
    axes.set_xscale("log")
    axes.set_xlim(edges[0], edges[-1])
    axes.set_xticks(_ticks(edges[0], edges[-1]))
    axes.xaxis.set_major_formatter(lambda weight, _: f"{weight:g}")
    axes.minorticks_off()
