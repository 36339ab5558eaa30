"""A_rob and A_sa against eps, and histograms of the critical eps of images."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ... import measures
from ...measures import Estimate, Outcome
from ...measures.accuracy import Floats
from ...spec import format_number
from ...storage.records import Record
from ..radii import find_attack_kind, name_attack_kind
from .data import ComparableGroup, FigureData, FigureModel, SeedResult, SkippedFigure
from .layout import (
    MEAN_OVER_SEEDS,
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
from .style import (
    A_NAT,
    A_ROB,
    A_SA,
    ALPHA_TEST,
    CORRECT_COLOUR,
    EPS,
    NORM_SYMBOLS,
    WRONG_COLOUR,
    band_opacity,
    escape_text,
    hide_axes,
)

ROWS_PER_PAGE = 5
ROW_HEIGHT = 2.3
HISTOGRAM_HEIGHT = 1.9
MAX_TICKS = 10
"""With more bars, every n-th one has a label."""
CURVE_NOTE = f"with 95 % intervals; at {EPS} = 0: {A_NAT}"
HISTOGRAM_NOTE = (
    f"critical {EPS}: the smallest measured {EPS} at which an image is misclassified, also at "
    "every larger one; clean: misclassified without an attack; last bar: correct at every radius"
)
OutcomeOf = Callable[[SeedResult], Outcome | None]


@dataclass(frozen=True)
class RadiusPanel:
    """Comparable groups that differ in eps only, by increasing eps."""

    facts: Facts
    groups: tuple[ComparableGroup, ...]

    @property
    def radii(self) -> list[float]:
        """The radii, increasing."""
        return [group.models[0].record.threat.eps for group in self.groups]

    @property
    def models(self) -> list[FigureModel]:
        """The models with at least two radii."""
        return [
            model
            for model in unique_models(self.groups)
            if len(self.find_model(model.style.number)) > 1
        ]

    def find_model(self, number: int) -> dict[float, FigureModel]:
        """Return a model, by the number of its style, at each radius where it was measured."""
        return {
            eps: model
            for eps, group in zip(self.radii, self.groups, strict=True)
            for model in group.models
            if model.style.number == number
        }

    @property
    def alpha(self) -> float | None:
        """The largest alpha of the records; None without A_sa."""
        alphas = [
            alpha
            for group in self.groups
            for result in group.results
            if not result.why_no_a_sa
            for alpha in result.alphas
        ]
        return max(alphas, default=None)


def list_panels(groups: Sequence[ComparableGroup], data: FigureData) -> list[RadiusPanel]:
    """Return a panel for each attack with models that were measured at several radii."""
    known = {result.record.id: result.record for group in data.groups for result in group.results}
    by_attack: dict[Hashable, list[ComparableGroup]] = {}
    for whole in groups:
        group = whole.keep(lambda result: "uniform/prediction" in result.rows)
        if not group.models:
            continue
        record = group.models[0].record
        key = (record.threat.norm, find_attack_kind(record, known), record.kernel)
        by_attack.setdefault(key, []).append(group)
    panels = []
    for members in by_attack.values():
        ordered = sorted(members, key=lambda group: group.models[0].record.threat.eps)
        panel = RadiusPanel(_panel_facts(ordered, known), tuple(ordered))
        if panel.models:
            panels.append(panel)
    return panels


def _panel_facts(groups: Sequence[ComparableGroup], known: Mapping[str, Record]) -> Facts:
    """Return what all radii share; the step size of the attack may grow with eps."""
    record = groups[0].models[0].record
    norm = NORM_SYMBOLS.get(record.threat.norm) or escape_text(record.threat.norm)
    attack = escape_text(name_attack_kind(record, known))
    return {**groups[0].facts, "eps": norm, "attack": attack}


def make_figures(data: FigureData) -> Iterator[FigureOrSkip]:
    """Yield a figure per dataset: A_rob and A_sa of each model, a row per attack."""
    for groups in data.groups_by_dataset():
        panels = list_panels(groups, data)
        facts = [panel.facts for panel in panels]
        for page in paginate(panels, ROWS_PER_PAGE // (3 - data.look.columns_of(2))):
            for panel in page:
                if panel.alpha is not None and not _has_a_sa_curve(panel):
                    attack = panel.facts["attack"]
                    yield SkippedFigure(f"{attack}: A_sa at a single eps; A_sa not drawn")
            yield NamedFigure(
                f"radii-{page[0].groups[0].dataset}", _make_page(page, facts, data.look)
            )


def radius_curve(
    panel: RadiusPanel, model: FigureModel, outcome_of: OutcomeOf
) -> list[tuple[float, Estimate]]:
    """Return an accuracy of a model at every radius where it is available."""
    found = [
        (eps, at_eps.estimate(outcome_of))
        for eps, at_eps in panel.find_model(model.style.number).items()
    ]
    return [(eps, estimate) for eps, estimate in found if estimate is not None]


def _has_a_sa_curve(panel: RadiusPanel) -> bool:
    """Whether A_sa of some model is available at several radii."""
    alpha = panel.alpha
    return alpha is not None and any(
        len(radius_curve(panel, model, lambda seed: seed.weighted_outcome(alpha))) > 1
        for model in panel.models
    )


def _make_page(panels: Sequence[RadiusPanel], facts: Sequence[Facts], look: FigureLook) -> Figure:
    """Draw a page; `facts` are those of the panels of all pages."""
    groups = [group for panel in panels for group in panel.groups]
    entries = [legend_entry(model.style, model.label) for model in unique_models(groups)]
    note = CURVE_NOTE
    if any(group.has_several_seeds for group in groups):
        note += MEAN_OVER_SEEDS.partition(";")[0]
    columns = look.columns_of(2)
    has_a_sa = [_has_a_sa_curve(panel) for panel in panels]
    # below each other, a panel that is left out leaves no gap
    rows = len(panels) if columns == 2 else len(panels) + sum(has_a_sa)
    figure = make_figure(
        look.width, ROW_HEIGHT * rows, facts, entries, note, has_heading=look.has_heading
    )
    grid = iter(figure.subplots(rows, columns, squeeze=False, sharey=True).flat)
    for panel, is_shown in zip(panels, has_a_sa, strict=True):
        left = next(grid)
        _draw_curves(left, panel, _find_robust, has_clean=True)
        set_panel_title(left, panel.facts, facts)
        left.set_ylabel(f"{A_ROB} (%)")
        alpha = panel.alpha
        if alpha is None or not is_shown:
            if columns == 2:
                hide_axes(next(grid))
            continue
        right = next(grid)
        # bound now: the panel's alpha must not change with the loop
        _draw_curves(right, panel, lambda seed, alpha=alpha: seed.weighted_outcome(alpha))  # type: ignore[misc]
        right.set_ylabel(f"{A_SA} at {ALPHA_TEST} = {format_number(alpha)} (%)")
    return figure


def _find_robust(seed: SeedResult) -> Outcome | None:
    return measures.plain_outcome(seed.rows, "uniform")


def _find_clean(seed: SeedResult) -> Outcome | None:
    return measures.plain_outcome(seed.rows, "clean")


def _draw_curves(
    axes: Axes, panel: RadiusPanel, outcome_of: OutcomeOf, *, has_clean: bool = False
) -> None:
    """Draw a line with a band per model."""
    opacity = band_opacity(len(panel.models))
    for model in panel.models:
        curve = radius_curve(panel, model, outcome_of)
        clean = model.estimate(_find_clean) if has_clean and panel.radii[0] > 0 else None
        if clean is not None:
            curve.insert(0, (0.0, clean))
        if not curve:
            continue
        places, estimates = zip(*curve, strict=True)
        axes.plot(
            places,
            [100 * estimate.value for estimate in estimates],
            **model.style.line,
            marker=model.style.marker,
            label=model.label,
        )
        axes.fill_between(
            places,
            [100 * estimate.low for estimate in estimates],
            [100 * estimate.high for estimate in estimates],
            color=model.style.colour,
            alpha=opacity,
            linewidth=0,
        )
    radii = panel.radii
    axes.set_xlabel(EPS)
    axes.set_xlim(left=0)
    # markers at 100 % must not be cut
    axes.set_ylim(0, 103)
    stride = -(-len(radii) // MAX_TICKS)
    ticks = [0.0, *radii[stride - 1 :: stride]] if radii[0] > 0 else radii[::stride]
    axes.set_xticks(ticks, [_label_radius(eps) for eps in ticks], rotation=_tick_rotation(ticks))


def _label_radius(eps: float) -> str:
    """Return a short text: fractions of 255 stay, other numbers have three digits."""
    text = format_number(eps)
    return text if "/" in text else f"{eps:.3g}"


def _tick_rotation(ticks: Sequence[float]) -> float:
    return 45.0 if sum(len(_label_radius(eps)) for eps in ticks) > 24 else 0.0


def make_histograms(data: FigureData) -> Iterator[FigureOrSkip]:
    """Yield a figure per dataset: a panel for every attack and model."""
    for groups in data.groups_by_dataset():
        panels = [(panel, model) for panel in list_panels(groups, data) for model in panel.models]
        facts = [{**panel.facts, "model": model.label} for panel, model in panels]
        for page in paginate(panels, data.look.panels_per_page):
            name = f"critical-eps-{page[0][0].groups[0].dataset}"
            yield NamedFigure(name, _make_histogram_page(page, facts, data.look))


def find_critical_eps(panel: RadiusPanel, model: FigureModel) -> tuple[list[float], Floats]:
    """Return the radii of a model, and the critical eps of its images, all seeds pooled."""
    at_eps = panel.find_model(model.style.number)
    seeds: dict[str, dict[float, SeedResult]] = {}
    for eps, found in at_eps.items():
        for seed in found.seeds:
            seeds.setdefault(seed.record.checkpoint.sha256, {})[eps] = seed
    critical = [
        measures.critical_eps(
            {eps: measures.is_correct(seed.rows, "uniform") for eps, seed in results.items()},
            _clean_mask(next(iter(results.values()))),
        )
        for results in seeds.values()
        # a seed that lacks a radius would have larger critical radii
        if len(results) == len(at_eps)
    ]
    return list(at_eps), np.concatenate(critical) if critical else np.empty(0)


def _clean_mask(seed: SeedResult) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    return measures.is_correct(seed.rows, "clean")


def count_by_radius(radii: Sequence[float], critical: Floats) -> Mapping[str, float]:
    """Return the percentage of images by their critical eps, with `clean` first."""
    counts = {"clean": float((critical == 0).sum())}
    for eps in radii:
        if eps > 0:
            counts[_label_radius(eps)] = float((critical == eps).sum())
    counts[f"> {_label_radius(radii[-1])}"] = float(np.isinf(critical).sum())
    return {name: 100 * count / max(1, len(critical)) for name, count in counts.items()}


def _make_histogram_page(
    pages: Sequence[tuple[RadiusPanel, FigureModel]], facts: Sequence[Facts], look: FigureLook
) -> Figure:
    """Draw a page; `facts` are those of the panels of all pages."""
    rows, columns = grid_shape(len(pages), look.columns)
    note = HISTOGRAM_NOTE
    if any(len(model.seeds) > 1 for _, model in pages):
        note += POOLED_SEEDS
    height = HISTOGRAM_HEIGHT + max(extra_label_height(model.label) for _, model in pages)
    figure = make_figure(look.width, height * rows, facts, (), note, has_heading=look.has_heading)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for place, axes in enumerate(grid.flat):
        if place >= len(pages):
            hide_axes(axes)
            continue
        panel, model = pages[place]
        counts = count_by_radius(*find_critical_eps(panel, model))
        draw_histogram(axes, counts)
        set_panel_title(axes, {**panel.facts, "model": model.label}, facts)
        if place + columns >= len(pages):
            axes.set_xlabel(f"critical {EPS}")
        if place % columns == 0:
            axes.set_ylabel("images (%)")
    return figure


def draw_histogram(axes: Axes, counts: Mapping[str, float]) -> None:
    """Draw a bar per radius; images that are correct at every radius have another colour."""
    places = np.arange(len(counts))
    colours = [WRONG_COLOUR] * (len(counts) - 1) + [CORRECT_COLOUR]
    axes.bar(places, list(counts.values()), 0.85, color=colours)
    names = list(counts)
    stride = -(-len(names) // MAX_TICKS)
    # the last bar always has its label
    shown = sorted({*range(0, len(names) - stride, stride), len(names) - 1})
    axes.set_xticks(shown, [names[place] for place in shown], rotation=45, ha="right")
