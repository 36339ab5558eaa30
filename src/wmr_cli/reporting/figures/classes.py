"""Every class by itself: A_nat, A_rob and A_sa with their intervals."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from ... import measures
from ...measures import Estimate, Outcome
from ...spec import exact
from .layout import Drawing, Made, extra, framed, pages
from .material import Group, Material, Measured, Member
from .style import INK, SHADES, WIDTH
from .words import A_NAT, A_ROB, A_SA, wrapped

ROWS, CLASSES = 6, 20
"""Models on a page, and classes side by side: of more, the ones that fare worst."""
NOTE = "with 95 % intervals of each class by itself"


@dataclass(frozen=True)
class Bars:
    """One measured share of every class."""

    name: str
    shade: str
    shares: list[Estimate | None]


def figures(material: Material) -> Iterator[Made]:
    """A figure for each group, a panel for each model."""
    for group in material.groups:
        labels = worst_classes(group)
        for members in pages(group.members, ROWS):
            yield Drawing(f"classes-{group.name}", _figure(Group(group.facts, tuple(members)), labels))


def bars(member: Member, labels: Sequence[int]) -> list[Bars]:
    """What was measured of these classes; A_sa at the largest alpha."""
    alpha = max(member.alphas, default=None)
    at = "" if alpha is None else rf" at $\alpha$ = {exact(alpha)}"
    measured: dict[str, Callable[[Measured], Outcome | None]] = {
        A_NAT: lambda seed: measures.plain_outcome(seed.rows, "clean"),
        A_ROB: lambda seed: measures.plain_outcome(seed.rows, "uniform"),
        A_SA + at: lambda seed: seed.sampled(alpha),
    }
    found = zip(measured.items(), SHADES, strict=True)
    shown = [Bars(name, shade, [member.share(partial(_among, of, label)) for label in labels]) for (name, of), shade in found]
    return [part for part in shown if any(part.shares)]


def worst_classes(group: Group) -> list[int]:
    """The classes in their order; of many, those that all models together get right least."""
    labels = np.unique(group.measured[0].rows["label"])
    if len(labels) <= CLASSES:
        return [int(label) for label in labels]
    right = np.mean([measures.correct(one.rows, _judged(one)) for one in group.measured], axis=0)
    scores = [right[group.measured[0].rows["label"] == label].mean() for label in labels]
    return sorted(int(labels[place]) for place in np.argsort(scores, kind="stable")[:CLASSES])


def _judged(one: Measured) -> str:
    return "uniform" if "uniform/prediction" in one.rows else "clean"


def _among(of: Callable[[Measured], Outcome | None], label: int, one: Measured) -> Outcome | None:
    """What was measured of one class; none where nothing was, or nothing has weight."""
    whole = of(one)
    if whole is None:
        return None
    part = whole.among(one.rows["label"] == label)
    has_weight = part.log_weights is None or bool((part.log_weights > -np.inf).any())
    return part if len(part.correct) and has_weight else None


def _figure(group: Group, labels: Sequence[int]) -> Figure:
    kinds = {part.name: part.shade for member in group.members for part in bars(member, labels)}
    total = len(np.unique(group.measured[0].rows["label"]))
    note = NOTE + (f"; the {len(labels)} worst of {total} classes" if total > len(labels) else "")
    note += "\nmeans over the seeds of a training" if group.has_seeds else ""
    entries = [(Patch(facecolor=shade), name) for name, shade in kinds.items()]
    height = 0.2 + sum(1.35 + extra(member.label) for member in group.members)
    figure = framed(WIDTH, height, [group.facts], entries, note)
    grid = figure.subplots(len(group.members), 1, squeeze=False, sharex=True, sharey=True)[:, 0]
    for axes, member in zip(grid, group.members, strict=True):
        draw(axes, bars(member, labels))
        axes.set_title(member.label, loc="left")
        axes.set_ylabel("accuracy (%)")
    _name(grid[-1], group, labels)
    return figure


def draw(axes: Axes, parts: Sequence[Bars]) -> None:
    """Bars beside each other, a class at each whole number."""
    width = 0.8 / len(parts)
    for place, part in enumerate(parts):
        found = [(number, share) for number, share in enumerate(part.shares) if share is not None]
        value, low, high = (np.array([100 * getattr(share, end) for _, share in found]) for end in ("value", "low", "high"))
        at = np.array([number for number, _ in found]) + width * (place - (len(parts) - 1) / 2)
        axes.bar(at, value, width, color=part.shade, label=part.name)
        bars = axes.errorbar(at, value, yerr=(value - low, high - value), fmt="none", ecolor=INK, elinewidth=0.6)
        bars.lines[2][0].set_path_effects([withStroke(linewidth=1.8, foreground="white")])  # seen on dark bars, too
    axes.set_ylim(0, 102)
    axes.set_xlim(-0.6, len(parts[0].shares) - 0.4)
    axes.tick_params(axis="x", length=0)


def _name(axes: Axes, group: Group, labels: Sequence[int]) -> None:
    """Classes by their names where a record knows them."""
    names = {row.label: row.name for member in group.members for row in member.record.per_class}
    texts = [wrapped(names.get(label) or str(label), 16) for label in labels]
    longest = max(len(line) for text in texts for line in text.split("\n"))
    axes.set_xticks(range(len(labels)), texts, rotation=0 if longest * len(labels) < 100 else 90)
    axes.set_xlabel("class")
