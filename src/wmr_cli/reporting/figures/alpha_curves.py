"""A_sa against alpha_test, with A_tr where its attack was run: the paper's Figure 3.

Below each panel is the effective sample size (ESS) behind A_sa.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...measures import Estimate
from ..rows import ReportRow
from .data import ComparableGroup, FigureData, FigureModel, SeedResult, SkippedFigure
from .layout import (
    MEAN_OVER_SEEDS,
    Facts,
    FigureOrSkip,
    NamedFigure,
    grid_shape,
    legend_entry,
    make_figure,
    paginate,
    set_panel_title,
    share_y_axis,
    split_single_points,
    unique_models,
)
from .look import FigureLook
from .style import A_SA, A_TR, ALPHA_TEST, band_opacity, hide_axes

CURVE_POINTS = 81
ROW_HEIGHT = 3.3
ONE_PANEL_WIDTH = 4.6
MAX_MODELS_IN_NARROW_LEGEND = 6
# the end of the axis where no record names an alpha
PAPER_MAX_ALPHA = 2.0

# points overlap where their intervals are closer than this, in percent
OVERLAP_DISTANCE = 2.5

NOTE = (
    f"lines: {A_SA}; points with bars: {A_TR}; with 95 % intervals; "
    f"ESS: effective sample size behind {A_SA}"
)
SHIFTED_NOTE = f"; points that would overlap are shifted beside their {ALPHA_TEST}"


def make_figures(data: FigureData) -> Iterator[FigureOrSkip]:
    """Yield a figure per dataset: a panel per attack and radius, a line per model."""
    for groups in data.groups_by_dataset():
        for result in (result for group in groups for result in group.results):
            if result.why_no_a_sa:
                yield SkippedFigure(f"{result.description}: {result.why_no_a_sa}; A_sa not drawn")
        drawable = [group.keep(lambda result: not result.why_no_a_sa) for group in groups]
        panels, left_out = split_single_points(
            [group for group in drawable if group.models], _count_points
        )
        for group in left_out:
            yield SkippedFigure(f"{group.results[0].description}: a single alpha; A_sa not drawn")
        facts = [group.facts for group in panels]
        for page in paginate(panels, data.look.panels_per_page):
            yield NamedFigure(f"curves-{page[0].dataset}", _make_page(page, facts, data.look))


def a_sa_curve(model: FigureModel, max_alpha: float) -> list[tuple[float, Estimate]]:
    """Return A_sa on a fine grid from 0, or at the alphas whose weights are stored."""
    alphas = sorted({*np.linspace(0.0, max_alpha, CURVE_POINTS).tolist(), *model.alphas})
    curve = []
    for alpha in alphas:
        estimate = model.estimate(partial(SeedResult.weighted_outcome, alpha=alpha))
        if estimate is not None:
            curve.append((alpha, estimate))
    return curve


def _count_points(group: ComparableGroup) -> int:
    max_alpha = _max_alpha(group)
    return max(len(a_sa_curve(model, max_alpha)) for model in group.models)


def _make_page(
    groups: Sequence[ComparableGroup], facts: Sequence[Facts], look: FigureLook
) -> Figure:
    """Draw a page; `facts` are those of the panels of all pages."""
    rows, columns = grid_shape(len(groups), look.columns)
    entries = [legend_entry(model.style, model.label) for model in unique_models(groups)]
    is_narrow = columns == 1 and len(entries) <= MAX_MODELS_IN_NARROW_LEGEND
    figure = make_figure(
        look.narrow_width(ONE_PANEL_WIDTH) if is_narrow else look.width,
        ROW_HEIGHT * rows,
        facts,
        entries,
        _page_note(groups),
        has_heading=look.has_heading,
    )
    grid = figure.subplots(
        2 * rows, columns, squeeze=False, sharex=True, height_ratios=[3, 1] * rows
    )
    share_y_axis(list(grid[::2].flat))
    share_y_axis(list(grid[1::2].flat))
    for place in range(rows * columns):
        row, column = divmod(place, columns)
        accuracy_axes = grid[2 * row, column]
        ess_axes = grid[2 * row + 1, column]
        if place >= len(groups):
            hide_axes(accuracy_axes)
            hide_axes(ess_axes)
            continue
        draw_panel(accuracy_axes, ess_axes, groups[place])
        set_panel_title(accuracy_axes, groups[place].facts, facts)
        ess_axes.set_xlabel(ALPHA_TEST)
        if place + columns >= len(groups):
            # a shared axis has tick labels in the last row only, which may be empty here
            ess_axes.tick_params(labelbottom=True)
        if column == 0:
            accuracy_axes.set_ylabel("accuracy (%)")
            ess_axes.set_ylabel("ESS (%)")
        else:
            accuracy_axes.tick_params(labelleft=False)
            ess_axes.tick_params(labelleft=False)
    return figure


def _page_note(groups: Sequence[ComparableGroup]) -> str:
    points = [
        point for group in groups for points in a_tr_points(group).values() for point in points
    ]
    note = NOTE
    if any(point.x != point.alpha for point in points):
        note += SHIFTED_NOTE
    if any(group.has_several_seeds for group in groups):
        note += MEAN_OVER_SEEDS
    return note


def draw_panel(accuracy_axes: Axes, ess_axes: Axes, group: ComparableGroup) -> None:
    """Draw the accuracies of a group and the ESS behind them, as a percentage of the images."""
    max_alpha = _max_alpha(group)
    points = a_tr_points(group)
    opacity = band_opacity(len(group.models))
    for number, model in enumerate(group.models):
        # `keep` left only models with at least one point
        alphas, estimates = zip(*a_sa_curve(model, max_alpha), strict=True)
        line = model.style.sparse_markers
        # a kernel with stored weights has points at its recorded alphas only
        if len(alphas) < CURVE_POINTS:
            line["markevery"] = 1
        values = [100 * estimate.value for estimate in estimates]
        accuracy_axes.plot(alphas, values, label=model.label, **line)
        if len(model.seeds) > 1:
            _draw_seed_lines(accuracy_axes, model, max_alpha)
        accuracy_axes.fill_between(
            alphas,
            [100 * estimate.low for estimate in estimates],
            [100 * estimate.high for estimate in estimates],
            color=model.style.colour,
            alpha=opacity,
            linewidth=0,
        )
        images = model.record.dataset.n
        ess = [100 * (estimate.ess or 0.0) / images for estimate in estimates]
        ess_axes.plot(alphas, ess, label=model.label, **line)
        if number in points:
            _draw_a_tr(accuracy_axes, model, points[number])
    # at alpha 0 the ESS is 100 %, and its marker must not be cut
    ess_axes.set_ylim(0, 105)
    ess_axes.set_yticks([0, 50, 100])


def _draw_seed_lines(axes: Axes, model: FigureModel, max_alpha: float) -> None:
    for seed in model.seeds:
        curve = a_sa_curve(replace(model, seeds=(seed,)), max_alpha)
        alphas = [alpha for alpha, _ in curve]
        values = [100 * estimate.value for _, estimate in curve]
        axes.plot(alphas, values, **model.style.seed_line)


def _max_alpha(group: ComparableGroup) -> float:
    alphas = [alpha for model in group.models for alpha in model.alphas]
    # an axis needs a length, also if the only alpha is 0
    return max(alphas, default=0.0) or PAPER_MAX_ALPHA


@dataclass(frozen=True)
class ATrPoint:
    """A_tr in percent at one alpha, and the x where it is drawn."""

    alpha: float
    value: float
    low: float
    high: float
    x: float


def a_tr_points(group: ComparableGroup) -> dict[int, list[ATrPoint]]:
    """Return the A_tr points of each model that has some, by its number in the group.

    Points that would overlap are shifted a little beside their alpha.
    """
    max_alpha = _max_alpha(group)
    axis_alphas = {0.0, max_alpha, *(alpha for model in group.models for alpha in model.alphas)}
    smallest_gap = float(np.diff(sorted(axis_alphas)).min())
    # a shifted point stays nearer to its own alpha than to the next
    step = min(0.015 * max_alpha, 0.5 * smallest_gap / len(group.models))
    placed: dict[int, list[ATrPoint]] = {}
    for alpha, points in sorted(_measured_a_tr(group).items()):
        for overlapping in _split_by_overlap(points):
            width = step * (len(overlapping) - 1)
            first = min(max(alpha - width / 2, 0.0), max_alpha - width)
            for place, (number, point) in enumerate(sorted(overlapping, key=lambda pair: pair[0])):
                x = alpha if len(overlapping) == 1 else first + step * place
                placed.setdefault(number, []).append(replace(point, x=x))
    return placed


def _measured_a_tr(group: ComparableGroup) -> dict[float, list[tuple[int, ATrPoint]]]:
    """Return the A_tr of all models by alpha, each with the number of its model."""
    measured: dict[float, list[tuple[int, ATrPoint]]] = {}
    for number, model in enumerate(group.models):
        for alpha in model.alphas:
            records = tuple(seed.record for seed in model.seeds if alpha in seed.alphas)
            share = ReportRow(records, alpha).accuracy("a_tr")
            if share is not None:
                point = ATrPoint(
                    alpha=alpha,
                    value=100 * share.value,
                    low=100 * share.low,
                    high=100 * share.high,
                    x=alpha,
                )
                measured.setdefault(alpha, []).append((number, point))
    return measured


def _split_by_overlap(
    points: Sequence[tuple[int, ATrPoint]],
) -> list[list[tuple[int, ATrPoint]]]:
    """Split the points at one alpha into clusters whose intervals overlap."""
    clusters: list[list[tuple[int, ATrPoint]]] = []
    top = -np.inf
    for number, point in sorted(points, key=lambda pair: pair[1].low):
        if point.low - OVERLAP_DISTANCE < top:
            clusters[-1].append((number, point))
        else:
            clusters.append([(number, point)])
        # intervals may be nested, so that the last one need not reach highest
        top = max(top, point.high)
    return clusters


def _draw_a_tr(axes: Axes, model: FigureModel, points: Sequence[ATrPoint]) -> None:
    axes.errorbar(
        [point.x for point in points],
        [point.value for point in points],
        yerr=(
            [point.value - point.low for point in points],
            [point.high - point.value for point in points],
        ),
        **model.style.point,
        elinewidth=0.8,
        label=model.label,
    )
