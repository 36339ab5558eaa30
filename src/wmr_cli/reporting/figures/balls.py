"""The worst case over all weights in a ball, against its radius: the paper's Figure 4, exactly and on a fine grid."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ... import measures
from ...measures import RHOS
from ...measures.weights import Floats
from .layout import SEEDS, Drawing, Made, entry, framed, members_of, pages, title
from .material import Group, Material, Measured, Undrawn
from .style import WIDTH
from .words import RHO

POINTS, ROWS = 61, 6
LOSSES = {"ce": "cross-entropy", "margin": "minus logit margin", "zero-one": "zero-one loss"}

AXES = ("worst-case loss", "accuracy under\nits weights (%)", "least accuracy\nin the ball (%)")


@dataclass(frozen=True)
class Worst:
    """At every radius: the largest mean loss, the accuracy under its weights, and the least accuracy in the ball."""

    rho: Floats
    loss: Floats
    accuracy: Floats
    least: Floats


def figures(material: Material) -> Iterator[Made]:
    """A figure for each data set, a row of panels for each attack and radius of it, a line for each model."""
    for groups in material.by_dataset():
        for one in (one for group in groups for one in group.measured):
            if why := obstacle(one):
                yield Undrawn(f"{one.name}: {why}, so there is no worst case in a ball to draw")
        drawn = [group.keeping(lambda one: not obstacle(one)) for group in groups]
        for page in pages([part for group in drawn for part in _by_loss(group)], ROWS):
            yield Drawing(f"worst-case-{page[0].dataset}", _figure(page))


def obstacle(one: Measured) -> str:
    """Why there is no worst case to draw; empty where there is one."""
    losses = measures.attacked_losses(one.rows, loss_of(one))
    if losses is None:
        return "the attack leaves no losses" if "uniform/prediction" in one.rows else "nothing was attacked"
    if one.record.attack.of is not None and loss_of(one) != "zero-one":
        return "the image of lowest margin need not be that of largest loss"
    return "" if np.isfinite(losses).all() else "a loss is not finite"


def loss_of(one: Measured) -> str:
    """The loss that the record's worst case is about."""
    asked = one.record.config.get("dro_loss")
    stored = one.record.dro[0].attack_loss if one.record.dro else asked
    return stored if stored in LOSSES else "ce"


def worst(one: Measured, rhos: Sequence[float]) -> Worst:
    """The exact worst case of a network at each radius."""
    losses, right = measures.attacked_losses(one.rows, loss_of(one)), measures.correct(one.rows, "uniform")
    assert losses is not None
    cases = list(measures.worst_cases(losses, rhos))
    return Worst(
        rho=np.array(rhos),
        loss=np.array([case.value for case in cases]),
        accuracy=np.array([case.accuracy(right) for case in cases]),
        least=np.array([measures.worst_accuracy(right, rho) for rho in rhos]),
    )


def radii(group: Group) -> tuple[list[float], list[float]]:
    """The radii that records name, or the paper's, and a fine grid among them. Zero has no place on a log axis."""
    named = sorted({row.rho for one in group.measured for row in one.record.dro if row.rho > 0}) or list(RHOS)
    return named, sorted({*named, *np.geomspace(named[0], named[-1], POINTS).tolist()})


def _by_loss(group: Group) -> Iterator[Group]:
    """Different losses do not share a panel."""
    for loss in dict.fromkeys(map(loss_of, group.measured)):
        chosen = group.keeping(partial(_is_about, loss))
        yield replace(chosen, facts={**group.facts, "loss": f"loss: {LOSSES[loss]}"})


def _is_about(loss: str, one: Measured) -> bool:
    return loss_of(one) == loss


def _figure(groups: Sequence[Group]) -> Figure:
    facts = [group.facts for group in groups]
    entries = [entry(member.look, member.label) for member in members_of(groups)]
    figure = framed(WIDTH, 2.2 * len(groups), facts, entries, SEEDS if any(group.has_seeds for group in groups) else "")
    grid = figure.subplots(len(groups), 3, squeeze=False, sharex="row")
    for axes, group in zip(grid, groups, strict=True):
        draw(axes, group)
        title(axes[0], group.facts, facts, wide=True)
    for axes in grid[-1]:
        axes.set_xlabel(f"radius {RHO}")
    return figure


def draw(axes: Sequence[Axes], group: Group) -> None:
    """Loss, accuracy under its weights, and least accuracy; markers stand at the radii that records name."""
    named, fine = radii(group)
    marked = [fine.index(rho) for rho in named]
    for member in group.members:
        found = [worst(seed, fine) for seed in member.seeds]
        for panel, (name, unit) in zip(axes, {"loss": 1, "accuracy": 100, "least": 100}.items(), strict=True):
            values = unit * np.array([getattr(each, name) for each in found])
            look = {**member.look.line, "marker": member.look.marker, "markevery": marked}
            panel.plot(fine, values.mean(axis=0), **look, label=member.label, clip_on=False)
            for line in values if len(values) > 1 else ():
                panel.plot(fine, line, **member.look.thin)
    for panel, name in zip(axes, AXES, strict=True):
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter(lambda rho, _: f"{rho:g}")
        panel.set_ylabel(name)
    axes[2].sharey(axes[1])
    axes[1].set_ylim(bottom=0)
