"""Distributions over the images: their margins, and the attacker's weights.

The weight histograms correspond to the paper's Figures 5 to 7.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ...measures import WeightedAccuracy, normalized_weights
from ...measures.accuracy import Floats
from ...spec import format_number
from .data import ComparableGroup, FigureData, FigureModel, SeedResult
from .layout import (
    POOLED_SEEDS,
    Facts,
    FigureOrSkip,
    NamedFigure,
    extra_label_height,
    grid_shape,
    legend_entry,
    make_figure,
    paginate,
    set_panel_title,
    unique_models,
)
from .look import FigureLook
from .style import A_SA, ALPHA_TEST, CORRECT_COLOUR, FAINT, INK, WRONG_COLOUR, hide_axes

MARGIN_ROW_HEIGHT = 2.3
# margins at which the distribution is drawn: file sizes do not grow with the images
MARGIN_GRID = np.arange(-400, 401) / 400

MARGIN_NOTE = "fraction of images with at most this margin; at 0: the misclassified images"
NEEDED_MARGIN_ROWS = {"clean/margin", "uniform/margin"}


def make_margin_figures(data: FigureData) -> Iterator[FigureOrSkip]:
    """Yield a figure per dataset: a panel for clean images, and one per attack and radius."""
    for groups in data.groups_by_dataset():
        drawable = [
            group.keep(lambda result: result.rows.keys() >= NEEDED_MARGIN_ROWS) for group in groups
        ]
        # the first panel of each page shows the clean images
        panels = [group for group in drawable if group.models]
        facts = [group.facts for group in panels]
        for page in paginate(panels, data.look.panels_per_page - 1):
            yield NamedFigure(
                f"margins-{page[0].dataset}", _make_margin_page(page, facts, data.look)
            )


def cumulative_fractions(margins: Floats) -> Floats:
    """Return the fraction of images at or below each margin of the grid."""
    return np.searchsorted(np.sort(margins), MARGIN_GRID, side="right") / len(margins)


def _make_margin_page(
    groups: Sequence[ComparableGroup], all_facts: Sequence[Facts], look: FigureLook
) -> Figure:
    """Draw a page; `all_facts` are those of the attacked panels of all pages."""
    models = unique_models(groups)
    rows, columns = grid_shape(len(groups) + 1, look.columns)
    entries = [legend_entry(model.style, model.label) for model in models]
    facts = [{**facts, "side": ""} for facts in all_facts]
    note = MARGIN_NOTE
    if any(group.has_several_seeds for group in groups):
        note += POOLED_SEEDS
    figure = make_figure(
        look.width, MARGIN_ROW_HEIGHT * rows, facts, entries, note, has_heading=look.has_heading
    )
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    panels = list(grid.flat)
    draw_margins(panels[0], models, "clean")
    panels[0].set_title("clean")
    clean_facts = {**facts[0], "side": "clean"}
    for axes, group in zip(panels[1:], groups, strict=False):
        draw_margins(axes, group.models, "uniform")
        # a single attack has nothing else that distinguishes it from the clean panel
        side = "attacked" if len(facts) == 1 else ""
        set_panel_title(axes, {**group.facts, "side": side}, [*facts, clean_facts])
    for number, axes in enumerate(panels):
        if number > len(groups):
            hide_axes(axes)
        elif number + columns > len(groups):
            axes.set_xlabel("margin")
            axes.tick_params(labelbottom=True)
    for axes in grid[:, 0]:
        axes.set_ylabel("images (%)")
    return figure


def draw_margins(axes: Axes, models: Sequence[FigureModel], prefix: str) -> None:
    """Draw a line per model; the images of several seeds are pooled."""
    for model in models:
        margins = np.concatenate([seed.rows[f"{prefix}/margin"] for seed in model.seeds])
        percent = 100 * cumulative_fractions(margins)
        axes.plot(MARGIN_GRID, percent, **model.style.sparse_markers, label=model.label)
    axes.axvline(0, color=FAINT, linewidth=0.6)
    axes.set_xlim(-1, 1)
    axes.set_xticks([-1, -0.5, 0, 0.5, 1], ["−1", "−0.5", "0", "0.5", "1"])
    axes.set_ylim(0, 100)


MODELS_PER_PAGE = 8
MAX_ALPHAS = 4
BINS = 30
# smaller weights are counted in the first bin: even together they are negligible
SMALLEST_BIN_EDGE = 1e-4

WEIGHT_LINE_WIDTH = 0.9
# the stacked parts of a histogram: name, colour, hatch
PARTS = (("correct", CORRECT_COLOUR, ""), ("misclassified", WRONG_COLOUR, "//////"))

WEIGHT_NOTE = (
    f"histograms of the weights behind {A_SA}; line: the weight of each bin; "
    "dashed: equal weights; ESS: effective sample size"
)
CLIPPED_WEIGHT_NOTE = f"; weights below {SMALLEST_BIN_EDGE:g} are in the first bin"


@dataclass(frozen=True)
class WeightDistribution:
    """A model's weights at one alpha, in units of the equal weight, and their relative ESS."""

    correct: Floats
    misclassified: Floats
    ess: float

    @property
    def all_weights(self) -> Floats:
        return np.concatenate([self.correct, self.misclassified])

    def counts(self, edges: Floats) -> tuple[Floats, Floats]:
        """Return correct and misclassified images per bin, in percent of all images."""
        percent = 100 / len(self.all_weights)
        return (
            percent * _histogram(self.correct, edges),
            percent * _histogram(self.misclassified, edges),
        )

    def weight_per_bin(self, edges: Floats) -> Floats:
        """Return the weight of each bin, in percent of the total weight."""
        weights = self.all_weights
        return 100 / len(weights) * _histogram(weights, edges, weights)


def _histogram(values: Floats, edges: Floats, weights: Floats | None = None) -> Floats:
    """Count or sum values per bin; values below the first bin are counted in it."""
    clipped = values.clip(edges[0], edges[-1])
    return np.asarray(np.histogram(clipped, edges, weights=weights)[0], dtype=np.float64)


def make_weight_figures(data: FigureData) -> Iterator[FigureOrSkip]:
    """Yield a figure per group: a row per model, a column per alpha_test."""
    for whole in data.groups:
        group = whole.keep(lambda result: not result.why_no_a_sa and bool(result.alphas))
        alphas = choose_alphas(
            sorted({alpha for model in group.models for alpha in model.alphas}),
            min(MAX_ALPHAS, data.look.small_columns),
        )
        rows = [
            (model, [weight_distribution(model, alpha) for alpha in alphas])
            for model in group.models
        ]
        scales = _shared_scales([row for _, row in rows], alphas)
        for page in paginate(rows, MODELS_PER_PAGE):
            yield NamedFigure(
                f"weights-{group.name}", _make_weight_page(group, page, scales, data.look)
            )


def choose_alphas(alphas: Sequence[float], most: int = MAX_ALPHAS) -> list[float]:
    """Choose at most `most`, evenly spaced, with the smallest and the largest."""
    if len(alphas) <= most:
        return list(alphas)
    places = np.linspace(0, len(alphas) - 1, most).round().astype(int)
    return [alphas[place] for place in places]


def weight_distribution(model: FigureModel, alpha: float) -> WeightDistribution | None:
    """Return the weights behind A_sa, pooled over seeds; None where no seed has them."""
    found = [_distribution_of_seed(seed, alpha) for seed in model.seeds]
    seeds = [distribution for distribution in found if distribution is not None]
    if not seeds:
        return None
    return WeightDistribution(
        correct=np.concatenate([seed.correct for seed in seeds]),
        misclassified=np.concatenate([seed.misclassified for seed in seeds]),
        # the ESS of pooled images would hide a seed with few
        ess=min(seed.ess for seed in seeds),
    )


def _distribution_of_seed(seed: SeedResult, alpha: float) -> WeightDistribution | None:
    outcome = seed.weighted_outcome(alpha)
    if outcome is None or outcome.log_weights is None:
        return None
    # in units of the equal weight, so that test sets of any size share an axis
    weights = len(outcome.correct) * normalized_weights(outcome.log_weights)
    ess = WeightedAccuracy.of(outcome.log_weights, outcome.correct).ess / len(weights)
    return WeightDistribution(weights[outcome.correct], weights[~outcome.correct], ess)


@dataclass(frozen=True)
class HistogramScales:
    """Scales that all pages of a group share."""

    alphas: list[float]
    # bin edges at each alpha
    edges: list[Floats]
    top: float
    # whether a weight is below the first bin
    is_clipped: bool


def _shared_scales(
    rows: Sequence[Sequence[WeightDistribution | None]], alphas: list[float]
) -> HistogramScales:
    edges = [_bin_edges([row[column] for row in rows]) for column in range(len(alphas))]
    tallest = 0.0
    smallest = np.inf
    for row in rows:
        for distribution, bins in zip(row, edges, strict=True):
            if distribution is not None:
                bars = np.add(*distribution.counts(bins))
                line = distribution.weight_per_bin(bins)
                tallest = max(tallest, float(bars.max()), float(line.max()))
                smallest = min(smallest, float(distribution.all_weights.min()))
    top = 1.06 * (tallest or 1.0)
    return HistogramScales(alphas, edges, top, is_clipped=smallest < SMALLEST_BIN_EDGE)


def _bin_edges(distributions: Sequence[WeightDistribution | None]) -> Floats:
    """Return logarithmic bins for all models at one alpha, with the equal weight well inside."""
    present = [one.all_weights for one in distributions if one is not None]
    smallest = min((float(weights.min()) for weights in present), default=1.0)
    largest = max((float(weights.max()) for weights in present), default=1.0)
    # the margins of 1 % keep the extreme weights inside the bins in spite of rounding
    first = min(0.99 * max(smallest, SMALLEST_BIN_EDGE), 0.5)
    return np.geomspace(first, max(1.01 * largest, 2.0), BINS + 1)


def _make_weight_page(
    group: ComparableGroup,
    rows: Sequence[tuple[FigureModel, list[WeightDistribution | None]]],
    scales: HistogramScales,
    look: FigureLook,
) -> Figure:
    entries: list[tuple[Artist, str]] = [
        (Patch(facecolor=colour, hatch=hatch, edgecolor="white", linewidth=0), f"{name} images")
        for name, colour, hatch in PARTS
    ]
    entries.append((Line2D([], [], color=INK, linewidth=WEIGHT_LINE_WIDTH), "weight"))
    heights = [1.45 + extra_label_height(model.label) for model, _ in rows]
    heights[-1] += 0.18  # the label of the x axis, in inches
    note = WEIGHT_NOTE
    if scales.is_clipped:
        note += CLIPPED_WEIGHT_NOTE
    if group.has_several_seeds:
        note += POOLED_SEEDS
    figure = make_figure(
        look.width, sum(heights), [group.facts], entries, note, has_heading=look.has_heading
    )
    subfigures = figure.subfigures(len(rows), 1, squeeze=False, height_ratios=heights)[:, 0]
    for subfigure, (model, distributions) in zip(subfigures, rows, strict=True):
        subfigure.suptitle(model.label, x=0.01, ha="left")
        panels = subfigure.subplots(1, len(scales.alphas), squeeze=False, sharey=True)[0]
        columns = zip(panels, distributions, scales.edges, scales.alphas, strict=True)
        for axes, distribution, edges, alpha in columns:
            if distribution is None:
                hide_axes(axes)
                continue
            draw_weights(axes, distribution, edges)
            ess = f"ESS {100 * distribution.ess:.0f} %"
            axes.set_title(f"{ALPHA_TEST} = {format_number(alpha)}, {ess}", fontsize=8)
        panels[0].set_ylim(0, scales.top)
        panels[0].set_ylabel("percent")
    for axes in panels:
        axes.set_xlabel("weight / equal weight")
    return figure


def draw_weights(axes: Axes, distribution: WeightDistribution, edges: Floats) -> None:
    """Stack misclassified on correct images, with the weight of both as a line."""
    below = np.zeros(len(edges) - 1)
    for counts, (name, colour, hatch) in zip(distribution.counts(edges), PARTS, strict=True):
        axes.bar(
            edges[:-1],
            counts,
            np.diff(edges),
            below,
            align="edge",
            label=name,
            color=colour,
            hatch=hatch,
            edgecolor="white",
            linewidth=0,
        )
        below = below + counts
    weight = distribution.weight_per_bin(edges)
    axes.stairs(weight, edges, color=INK, linewidth=WEIGHT_LINE_WIDTH, label="weight")
    axes.axvline(1, color=FAINT, linewidth=0.6, linestyle=(0, (2, 2)))
    axes.set_xscale("log")
    axes.set_xlim(edges[0], edges[-1])
    axes.set_xticks(_log_ticks(edges[0], edges[-1]))
    axes.xaxis.set_major_formatter(lambda weight, _: f"{weight:g}")
    axes.minorticks_off()


def _log_ticks(low: float, high: float) -> list[float]:
    """Return round numbers on a log axis: 1, 2, 5 over about one decade, else powers of ten."""
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    digits: tuple[int, ...] = (1, 2, 5)
    stride = 1
    if high >= 20 * low:
        digits = (1,)
        stride = -(-len(decades) // 5)  # at most five or so
    ticks = [digit * 10.0**decade for decade in decades if decade % stride == 0 for digit in digits]
    return [tick for tick in ticks if low <= tick <= high]
