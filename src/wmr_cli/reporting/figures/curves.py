"""A_sa against alpha_test, with A_tr where its attack was run: the paper's Figure 3, with intervals and what they rest on."""

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...measures import Estimate
from ...measures.weights import Floats
from .layout import Drawing, Made, entry, framed, members_of, pages, shape, title
from .material import Group, Material, Member, Undrawn
from .style import WIDTH, blank, opacity
from .words import A_SA, A_TR, ALPHA_TEST

POINTS, PANELS = 81, 12
NARROW, CROWD = 4.6, 6
"""The width of a single panel, and how many models are too many for it."""
UP_TO = 2.0
"""The largest alpha where no record names one: the paper's."""
NOTE = f"lines: {A_SA}; points: {A_TR}; with 95 % intervals; ESS: effective sample size behind {A_SA}"


def figures(material: Material) -> Iterator[Made]:
    """A figure for each data set, a panel for each attack and radius, a line for each model."""
    for groups in material.by_dataset():
        for member in (member for group in groups for member in group.members if member.obstacle):
            yield Undrawn(f"{member.name}: {member.obstacle}, so there is no A_sa to draw")
        drawn = [group.keeping(lambda member: not member.obstacle) for group in groups]
        for page in pages([group for group in drawn if group.members], PANELS):
            yield Drawing(f"curves-{page[0].dataset}", _figure(page))


def curve(member: Member, up_to: float) -> list[tuple[float, Estimate]]:
    """A_sa on a fine grid from 0, or at the alphas whose weights are stored."""
    alphas = sorted({*np.linspace(0.0, up_to, POINTS).tolist(), *member.alphas})
    outcomes = ((alpha, member.sampled(alpha)) for alpha in alphas)
    return [(alpha, outcome.estimate()) for alpha, outcome in outcomes if outcome is not None]


def _figure(groups: Sequence[Group]) -> Figure:
    rows, columns = shape(len(groups))
    facts = [group.facts for group in groups]
    entries = [entry(member.look, member.label) for member in members_of(groups)]
    is_small = columns == 1 and len(entries) <= CROWD
    figure = framed(NARROW if is_small else WIDTH, 3.3 * rows, facts, entries, NOTE)
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
    up_to = max((alpha for member in group.members for alpha in member.alphas), default=0.0) or UP_TO
    shifts = _shifts(group, up_to)
    for member, shift in zip(group.members, shifts, strict=True):
        alphas, estimates = zip(*curve(member, up_to), strict=True)
        value, low, high = (100 * np.array([getattr(share, part) for share in estimates]) for part in ("value", "low", "high"))
        above.plot(alphas, value, label=member.label, **member.look.line, marker="" if len(alphas) >= POINTS else ".")
        above.fill_between(alphas, low, high, color=member.look.colour, alpha=opacity(len(group.members)), linewidth=0)
        shares = [100 * (share.ess or 0.0) / member.record.dataset.n for share in estimates]
        below.plot(alphas, shares, label=member.label, **member.look.line)
        _crafted(above, member, shift)
    below.set_ylim(0, 105)
    below.set_yticks([0, 50, 100])


def _shifts(group: Group, up_to: float) -> Floats:
    """How far aside each model's points stand: apart from each other, and nearer to their own alpha than to the next."""
    named = sorted({0.0, up_to, *(alpha for member in group.members for alpha in member.alphas)})
    step = min(0.025 * up_to, 0.5 * float(np.diff(named).min()) / len(group.members))
    return np.asarray(step * (np.arange(len(group.members)) - (len(group.members) - 1) / 2))


def _crafted(axes: Axes, member: Member, shift: float) -> None:
    """A_tr as points with bars, moved a little aside so that those of several models are seen."""
    measured = [(row.alpha_test, row.a_tr) for row in member.record.by_alpha if row.alpha_test is not None and row.a_tr]
    if measured:
        value, low, high = (np.array([100 * getattr(share, part) for _, share in measured]) for part in ("value", "low", "high"))
        axes.errorbar(
            np.array([alpha for alpha, _ in measured]) + shift,
            value,
            yerr=(value - low, high - value),
            **member.look.point,
            elinewidth=0.8,
            label=member.label,
        )
