"""A_nat, A_rob and A_sa of every class, with intervals."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from ... import measures
from ...measures import Estimate, Outcome
from ...spec import format_number
from .data import ComparableGroup, FigureData, FigureModel, SeedResult
from .layout import (
    FigureOrSkip,
    NamedFigure,
    extra_label_height,
    make_figure,
    paginate,
    width_in_inches,
)
from .look import FigureLook
from .style import A_NAT, A_ROB, A_SA, ACCURACY_SHADES, INK, wrap_text

MODELS_PER_PAGE = 6
# of more classes, those of lowest accuracy are drawn
MAX_CLASSES = 20

# width of all bars of a class; the next class is at distance 1
BARS_WIDTH = 0.8

# class names are rotated if they would need more letters than this side by side
LETTERS_PER_INCH_FOR_LEVEL_NAMES = 14

NOTE = "95 % intervals for each class on its own"
SEEDS_NOTE = "\nmeans over training seeds"

OutcomeOf = Callable[[SeedResult], Outcome | None]


@dataclass(frozen=True)
class ClassBars:
    """One accuracy of every class; None for a class without it."""

    name: str
    shade: str
    estimates: list[Estimate | None]


def make_figures(data: FigureData) -> Iterator[FigureOrSkip]:
    """Yield a figure per group, with a panel per model."""
    for group in data.groups:
        labels = worst_classes(group)
        for models in paginate(group.models, MODELS_PER_PAGE):
            page = ComparableGroup(group.facts, tuple(models))
            yield NamedFigure(f"classes-{group.name}", _make_page(page, labels, data.look))


def class_bars(model: FigureModel, labels: Sequence[int]) -> list[ClassBars]:
    """Return the accuracies that were measured of these classes; A_sa at the largest alpha."""
    # the largest alpha shows the differences between classes best
    alpha = max(model.alphas, default=None)
    at_alpha = "" if alpha is None else rf" at $\alpha$ = {format_number(alpha)}"
    outcomes: dict[str, OutcomeOf] = {
        A_NAT: lambda seed: measures.plain_outcome(seed.rows, "clean"),
        A_ROB: lambda seed: measures.plain_outcome(seed.rows, "uniform"),
        A_SA + at_alpha: lambda seed: seed.weighted_outcome(alpha),
    }
    bars = []
    for (name, outcome_of), shade in zip(outcomes.items(), ACCURACY_SHADES, strict=True):
        estimates = [
            model.estimate(partial(_outcome_of_class, outcome_of, label)) for label in labels
        ]
        if any(estimates):
            bars.append(ClassBars(name, shade, estimates))
    return bars


def worst_classes(group: ComparableGroup) -> list[int]:
    """Return all labels, or the `MAX_CLASSES` of lowest mean accuracy over the models."""
    row_labels = group.results[0].rows["label"]
    labels = np.unique(row_labels)
    if len(labels) <= MAX_CLASSES:
        return [int(label) for label in labels]
    # (models, images) to the mean correctness of each image
    correct = np.mean([_correct(result) for result in group.results], axis=0)
    accuracies = [correct[row_labels == label].mean() for label in labels]
    worst = np.argsort(accuracies, kind="stable")[:MAX_CLASSES]
    return sorted(int(labels[place]) for place in worst)


def _correct(result: SeedResult) -> NDArray[np.bool_]:
    is_attacked = "uniform/prediction" in result.rows
    return measures.is_correct(result.rows, "uniform" if is_attacked else "clean")


def _outcome_of_class(outcome_of: OutcomeOf, label: int, result: SeedResult) -> Outcome | None:
    """Restrict an outcome to one class; None without images or with weights of zero only."""
    outcome = outcome_of(result)
    if outcome is None:
        return None
    of_class = outcome.among(result.rows["label"] == label)
    if not len(of_class.correct):
        return None
    if of_class.log_weights is not None and not (of_class.log_weights > -np.inf).any():
        return None
    return of_class


def _make_page(group: ComparableGroup, labels: Sequence[int], look: FigureLook) -> Figure:
    bars = [class_bars(model, labels) for model in group.models]
    shades = {part.name: part.shade for parts in bars for part in parts}
    entries = [(Patch(facecolor=shade), name) for name, shade in shades.items()]
    total = len(np.unique(group.results[0].rows["label"]))
    note = NOTE
    if total > len(labels):
        note += f"; the {len(labels)} worst of {total} classes"
    if group.has_several_seeds:
        note += SEEDS_NOTE
    height = 0.2 + sum(1.35 + extra_label_height(model.label) for model in group.models)
    figure = make_figure(
        look.width, height, [group.facts], entries, note, has_heading=look.has_heading
    )
    column = figure.subplots(len(group.models), 1, squeeze=False, sharex=True, sharey=True)[:, 0]
    for axes, model, parts in zip(column, group.models, bars, strict=True):
        draw_panel(axes, parts)
        axes.set_title(model.label, loc="left")
        axes.set_ylabel("accuracy (%)")
    _name_classes(column[-1], group, labels)
    return figure


def draw_panel(axes: Axes, parts: Sequence[ClassBars]) -> None:
    """Draw the bars of each class side by side; class number i is at x = i."""
    width = BARS_WIDTH / len(parts)
    for place, part in enumerate(parts):
        numbered = [
            (number, estimate)
            for number, estimate in enumerate(part.estimates)
            if estimate is not None
        ]
        shift = width * (place - (len(parts) - 1) / 2)
        x = [number + shift for number, _ in numbered]
        value = np.array([100 * estimate.value for _, estimate in numbered])
        low = np.array([100 * estimate.low for _, estimate in numbered])
        high = np.array([100 * estimate.high for _, estimate in numbered])
        axes.bar(x, value, width, color=part.shade, label=part.name)
        intervals = axes.errorbar(
            x, value, yerr=(value - low, high - value), fmt="none", ecolor=INK, elinewidth=0.6
        )
        # a white outline keeps the interval visible on a dark bar
        outline = withStroke(linewidth=1.8, foreground="white")
        intervals.lines[2][0].set_path_effects([outline])
    # room for the interval caps at 100
    axes.set_ylim(0, 102)
    axes.set_xlim(-0.6, len(parts[0].estimates) - 0.4)
    axes.tick_params(axis="x", length=0)


def _name_classes(axes: Axes, group: ComparableGroup, labels: Sequence[int]) -> None:
    names = {row.label: row.name for model in group.models for row in model.record.per_class}
    texts = [wrap_text(names.get(label) or str(label), 16) for label in labels]
    longest = max(len(line) for text in texts for line in text.split("\n"))
    fitting = LETTERS_PER_INCH_FOR_LEVEL_NAMES * width_in_inches(axes.figure)
    is_level = longest * len(labels) < fitting
    axes.set_xticks(range(len(labels)), texts, rotation=0 if is_level else 90)
    axes.set_xlabel("class")
