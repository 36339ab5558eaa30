"""Worst case over all weights in a χ² ball, against its radius: the paper's Figure 4.

The worst case is computed exactly from the stored losses, on a fine grid of radii.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ... import measures
from ...measures import RHOS
from ...measures.accuracy import Floats
from .data import ComparableGroup, FigureData, SeedResult, SkippedFigure
from .layout import (
    MEAN_OVER_SEEDS,
    Facts,
    FigureOrSkip,
    NamedFigure,
    legend_entry,
    make_figure,
    paginate,
    set_panel_title,
    share_y_axis,
    split_single_points,
    unique_models,
)
from .look import FigureLook
from .style import RHO

CURVE_POINTS = 61
ROWS_PER_PAGE = 6
ROW_HEIGHT = 2.2
# side by side for each group
PANELS = 3
LOSS_NAMES = {"ce": "cross-entropy", "margin": "negative logit margin", "zero-one": "zero-one loss"}


@dataclass(frozen=True)
class WorstCaseCurve:
    """Worst case at every radius, (R,) each; accuracies as fractions."""

    # the largest mean loss over the ball
    loss: Floats
    # the accuracy under the weights that maximise the loss
    accuracy: Floats
    # the lowest accuracy over the ball
    lowest_accuracy: Floats


def make_figures(data: FigureData) -> Iterator[FigureOrSkip]:
    """Yield a figure per dataset: a row of panels per attack and radius, a line per model."""
    for groups in data.groups_by_dataset():
        for result in (result for group in groups for result in group.results):
            if reason := why_no_worst_case(result):
                yield SkippedFigure(f"{result.description}: {reason}; worst case not drawn")
        drawable = [group.keep(lambda result: not why_no_worst_case(result)) for group in groups]
        rows = [part for group in drawable for part in _split_by_loss(group)]
        drawn, left_out = split_single_points(rows, lambda group: len(radii(group)[1]))
        for group in left_out:
            description = group.results[0].description
            yield SkippedFigure(f"{description}: a single rho; worst case not drawn")
        facts = [group.facts for group in drawn]
        # a group of panels below each other fills a page
        size = ROWS_PER_PAGE if data.look.columns_of(PANELS) == PANELS else 1
        for page in paginate(drawn, size):
            yield NamedFigure(f"worst-case-{page[0].dataset}", _make_page(page, facts, data.look))


def why_no_worst_case(result: SeedResult) -> str:
    """Return the reason why a worst case cannot be drawn; empty where it can."""
    loss = loss_of(result)
    losses = measures.attacked_losses(result.rows, loss)
    if losses is None:
        if "uniform/prediction" in result.rows:
            return "the attack does not store losses"
        return "the record has no attack"
    if result.record.attack.of is not None and loss != "zero-one":
        # of several attacks the image of lowest margin is stored
        return "the image of lowest margin need not be that of largest loss"
    if not np.isfinite(losses).all():
        return "a loss is not finite"
    return ""


def loss_of(result: SeedResult) -> str:
    """Return the loss whose worst case the record is about."""
    record = result.record
    loss = record.dro[0].attack_loss if record.dro else record.config.get("dro_loss")
    # a record without DRO numbers may come from a config without the setting
    return loss if loss in LOSS_NAMES else "ce"


def worst_case_curve(result: SeedResult, rhos: Sequence[float]) -> WorstCaseCurve:
    """Compute the exact worst case at each radius."""
    losses = measures.attacked_losses(result.rows, loss_of(result))
    assert losses is not None
    correct = measures.is_correct(result.rows, "uniform")
    cases = list(measures.worst_cases(losses, rhos))
    return WorstCaseCurve(
        loss=np.array([case.value for case in cases]),
        accuracy=np.array([case.accuracy(correct) for case in cases]),
        lowest_accuracy=np.array([measures.worst_accuracy(correct, rho) for rho in rhos]),
    )


def radii(group: ComparableGroup) -> tuple[list[float], list[float]]:
    """Return the radii of the records, or the paper's, and a fine grid between them."""
    # zero has no place on a log axis
    stored = {row.rho for result in group.results for row in result.record.dro if row.rho > 0}
    named = sorted(stored) or list(RHOS)
    return named, sorted({*named, *np.geomspace(named[0], named[-1], CURVE_POINTS).tolist()})


def _split_by_loss(group: ComparableGroup) -> Iterator[ComparableGroup]:
    """Split a group so that different losses do not share a panel."""
    for loss in dict.fromkeys(loss_of(result) for result in group.results):
        part = group.keep(partial(_has_loss, loss))
        yield replace(part, facts={**group.facts, "loss": f"loss: {LOSS_NAMES[loss]}"})


def _has_loss(loss: str, result: SeedResult) -> bool:
    return loss_of(result) == loss


def _make_page(
    groups: Sequence[ComparableGroup], facts: Sequence[Facts], look: FigureLook
) -> Figure:
    """Draw a page; `facts` are those of the panels of all pages."""
    entries = [legend_entry(model.style, model.label) for model in unique_models(groups)]
    note = MEAN_OVER_SEEDS if any(group.has_several_seeds for group in groups) else ""
    columns = look.columns_of(PANELS)
    rows = PANELS * len(groups) // columns
    figure = make_figure(
        look.width, ROW_HEIGHT * rows, facts, entries, note, has_heading=look.has_heading
    )
    grid = figure.subplots(rows, columns, squeeze=False).reshape(-1, PANELS)
    # both others are accuracies, and the lowest is never above the other
    share_y_axis(list(grid[:, 1:].flat))
    loss_axes: dict[str, list[Axes]] = {}
    for axes, group in zip(grid[:, 0], groups, strict=True):
        loss_axes.setdefault(group.facts["loss"], []).append(axes)
    for same_loss in loss_axes.values():
        share_y_axis(same_loss)
    for row, group in zip(grid, groups, strict=True):
        draw_row(list(row), group)
        set_panel_title(row[0], group.facts, facts, spans_row=True)
    # after all rows: a limit ends the scaling of an axis, which all accuracies share
    grid[0, 1].set_ylim(bottom=0)
    for axes in grid[-1] if columns == PANELS else grid.flat:
        axes.set_xlabel(f"radius {RHO}")
    return figure


def draw_row(row: Sequence[Axes], group: ComparableGroup) -> None:
    """Draw loss, accuracy under its weights, and lowest accuracy; markers at the named radii."""
    loss_axes, accuracy_axes, lowest_axes = row
    named, fine = radii(group)
    marked = [fine.index(rho) for rho in named]
    for model in group.models:
        curves = [worst_case_curve(seed, fine) for seed in model.seeds]
        by_panel = {
            loss_axes: np.array([curve.loss for curve in curves]),
            accuracy_axes: np.array([100 * curve.accuracy for curve in curves]),
            lowest_axes: np.array([100 * curve.lowest_accuracy for curve in curves]),
        }
        line = {**model.style.line, "marker": model.style.marker, "markevery": marked}
        for axes, values in by_panel.items():
            # not clipped: the first and the last marker are on the edge
            axes.plot(fine, values.mean(axis=0), **line, label=model.label, clip_on=False)
            if len(values) > 1:
                for seed_values in values:
                    axes.plot(fine, seed_values, **model.style.seed_line)
    for axes in row:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda rho, _: f"{rho:g}")
    loss_axes.set_ylabel("worst-case loss")
    accuracy_axes.set_ylabel("accuracy under\nits weights (%)")
    lowest_axes.set_ylabel("lowest accuracy\nin the ball (%)")
