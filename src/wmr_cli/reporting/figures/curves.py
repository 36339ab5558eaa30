"""A_sa against alpha_test, with A_tr where its attack was run: the paper's Figure 3, with intervals and what they rest on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...measures import Estimate
from ..lines import Line
from .layout import SEEDS, Drawing, Made, entry, framed, members_of, pages, shape, title
from .material import Group, Material, Measured, Member, Undrawn
from .style import WIDTH, blank, opacity
from .words import A_SA, A_TR, ALPHA_TEST

POINTS, PANELS = 81, 12
NARROW, CROWD = 4.6, 6
"""The width of a single panel, and how many models are too many for it."""
UP_TO = 2.0
"""The largest alpha where no record names one: the paper's."""
NOTE = f"lines: {A_SA}; points with bars: {A_TR}; with 95 % intervals; ESS: effective sample size behind {A_SA}"
ASIDE = f"; points that would overlap stand beside their {ALPHA_TEST}"
NEAR = 2.5
"""Points whose bars are closer than this, in percent, would overlap."""


def figures(material: Material) -> Iterator[Made]:
    """A figure for each data set, a panel for each attack and radius, a line for each model."""
    for groups in material.by_dataset():
        for one in (one for group in groups for one in group.measured if one.obstacle):
            yield Undrawn(f"{one.name}: {one.obstacle}, so there is no A_sa to draw")
        drawn = [group.keeping(lambda one: not one.obstacle) for group in groups]
        for page in pages([group for group in drawn if group.members], PANELS):
            yield Drawing(f"curves-{page[0].dataset}", _figure(page))


def curve(member: Member, up_to: float) -> list[tuple[float, Estimate]]:
    """A_sa on a fine grid from 0, or at the alphas whose weights are stored."""
    alphas = sorted({*np.linspace(0.0, up_to, POINTS).tolist(), *member.alphas})
    shares = ((alpha, member.share(partial(Measured.sampled, alpha=alpha))) for alpha in alphas)
    return [(alpha, share) for alpha, share in shares if share is not None]


def _figure(groups: Sequence[Group]) -> Figure:
    rows, columns = shape(len(groups))
    facts = [group.facts for group in groups]
    entries = [entry(member.look, member.label) for member in members_of(groups)]
    is_small = columns == 1 and len(entries) <= CROWD
    is_aside = any(point.alpha != point.at for group in groups for points in crafted(group).values() for point in points)
    note = NOTE + (ASIDE if is_aside else "") + (SEEDS if any(group.has_seeds for group in groups) else "")
    figure = framed(NARROW if is_small else WIDTH, 3.3 * rows, facts, entries, note)
    grid = figure.subplots(2 * rows, columns, squeeze=False, sharex=True, sharey="row", height_ratios=[3, 1] * rows)
    for place in range(rows * columns):
        row, column = divmod(place, columns)
        above, below = grid[2 * row, column], grid[2 * row + 1, column]
        if place >= len(groups):
            blank(above)
            blank(below)
            continue
        draw(above, below, groups[place])
        title(above, groups[place].facts, facts)
        below.set_xlabel(ALPHA_TEST)
        if column == 0:
            above.set_ylabel("accuracy (%)")
            below.set_ylabel("ESS (%)")
    return figure


def draw(above: Axes, below: Axes, group: Group) -> None:
    """The accuracies of a group and, below, the effective sample size behind them as a share of the images."""
    up_to, points = _up_to(group), crafted(group)
    for number, member in enumerate(group.members):
        alphas, estimates = zip(*curve(member, up_to), strict=True)
        value, low, high = (100 * np.array([getattr(share, part) for share in estimates]) for part in ("value", "low", "high"))
        look = member.look.marked if len(alphas) >= POINTS else member.look.marked | {"markevery": 1}
        above.plot(alphas, value, label=member.label, **look)
        for seed in member.seeds if len(member.seeds) > 1 else ():
            alone = curve(replace(member, seeds=(seed,)), up_to)
            above.plot([alpha for alpha, _ in alone], [100 * share.value for _, share in alone], **member.look.thin)
        above.fill_between(alphas, low, high, color=member.look.colour, alpha=opacity(len(group.members)), linewidth=0)
        shares = [100 * (share.ess or 0.0) / member.record.dataset.n for share in estimates]
        below.plot(alphas, shares, label=member.label, **look)
        if number in points:
            _mark(above, member, points[number])
    below.set_ylim(0, 105)
    below.set_yticks([0, 50, 100])


def _up_to(group: Group) -> float:
    return max((alpha for member in group.members for alpha in member.alphas), default=0.0) or UP_TO


@dataclass(frozen=True)
class Point:
    """A_tr in percent at its alpha, and where it stands."""

    alpha: float
    value: float
    low: float
    high: float
    at: float


def crafted(group: Group) -> dict[int, list[Point]]:
    """A_tr of each member that has it, by its number: at its alpha, or a little beside where points would overlap."""
    measured: dict[float, list[tuple[int, Point]]] = {}
    for number, member in enumerate(group.members):
        for alpha in member.alphas:
            share = Line(tuple(seed.record for seed in member.seeds if alpha in seed.alphas), alpha).share("a_tr")
            if share is not None:
                value, low, high = (100 * end for end in (share.value, share.low, share.high))
                measured.setdefault(alpha, []).append((number, Point(alpha, value, low, high, alpha)))
    up_to = _up_to(group)
    named = sorted({0.0, up_to, *(alpha for member in group.members for alpha in member.alphas)})
    # nearer to their own alpha than to the next
    step = min(0.015 * up_to, 0.5 * float(np.diff(named).min()) / len(group.members))
    found: dict[int, list[Point]] = {}
    for alpha in sorted(measured):
        for crowd in _crowds(measured[alpha]):
            width = step * (len(crowd) - 1)
            first = min(max(alpha - width / 2, 0.0), up_to - width)
            for place, (number, point) in enumerate(sorted(crowd, key=lambda one: one[0])):
                at = alpha if len(crowd) == 1 else first + step * place
                found.setdefault(number, []).append(replace(point, at=at))
    return found


def _crowds(points: Sequence[tuple[int, Point]]) -> list[list[tuple[int, Point]]]:
    """Points at one alpha in crowds that lie on each other."""
    crowds: list[list[tuple[int, Point]]] = []
    top = -np.inf
    for number, point in sorted(points, key=lambda one: one[1].low):
        if point.low - NEAR < top:
            crowds[-1].append((number, point))
        else:
            crowds.append([(number, point)])
        top = max(top, point.high)
    return crowds


def _mark(axes: Axes, member: Member, points: Sequence[Point]) -> None:
    """A_tr as points with bars."""
    at, value, low, high = (np.array([getattr(point, part) for point in points]) for part in ("at", "value", "low", "high"))
    axes.errorbar(at, value, yerr=(value - low, high - value), **member.look.point, elinewidth=0.8, label=member.label)
