"""The paper's Figures 3 and 4, redrawn from its printed numbers."""

from collections.abc import Iterator
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ...paper import results
from ...spec import format_number
from .layout import LegendEntry, NamedFigure, grid_shape, legend_entry, make_figure, share_y_axis
from .look import USUAL_LOOK, FigureLook
from .style import A_SA, ALPHA_TEST, INK, RHO, LineStyle, escape_text, hide_axes

ONE_PANEL_WIDTH = 4.6  # inches
ROW_HEIGHT = 2.3
FILE_NAMES = {"F3": "paper-figure-3", "F4": "paper-figure-4"}
TITLES = {
    "F3": "the paper's Figure 3: CIFAR-10, single runs",
    "F4": (
        "the paper's Figure 4: CIFAR-10, worst case in a χ² ball; "
        "the paper does not name the defense, TRADES is inferred"
    ),
}
X_LABELS = {"alpha_test": ALPHA_TEST, "rho": RHO}
Y_LABELS = {"a_sa": f"{A_SA}, %", "accuracy": "accuracy, %", "loss": "loss"}
LOSS_NAMES = {"ce": "cross-entropy", "margin": "margin loss"}
SUSPECT_RING: dict[str, Any] = {
    "linestyle": "",
    "marker": "o",
    "markersize": 8.5,
    "markerfacecolor": "none",
    "markeredgecolor": INK,
    "markeredgewidth": 0.8,
}

# line styles by series label
Styles = dict[str, LineStyle]


def paper_figures(look: FigureLook = USUAL_LOOK) -> Iterator[NamedFigure]:
    """Yield the paper's figures. Draw them inside `figure_style()`."""
    for name, file_name in FILE_NAMES.items():
        yield NamedFigure(file_name, make_paper_figure(name, look))


def make_paper_figure(name: str, look: FigureLook = USUAL_LOOK) -> Figure:
    """Draw F3 or F4, with a ring around every suspect point."""
    panels = results.find_figure(name).panels
    labels = dict.fromkeys(series_label(series) for panel in panels for series in panel.series)
    # a label has the same style in every panel
    styles = {label: LineStyle(number) for number, label in enumerate(labels)}
    entries: list[LegendEntry] = [
        legend_entry(style, escape_text(label)) for label, style in styles.items()
    ]
    if any(any(series.is_suspect) for panel in panels for series in panel.series):
        entries.append((Line2D([], [], **SUSPECT_RING), "suspect point"))
    rows, columns = grid_shape(len(panels), look.columns)
    width = look.width if columns > 1 else look.narrow_width(ONE_PANEL_WIDTH)
    facts = [{"title": escape_text(TITLES[name])}]
    figure = make_figure(width, ROW_HEIGHT * rows, facts, entries, has_heading=look.has_heading)
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for metric in dict.fromkeys(panel.metric for panel in panels):
        places = zip(grid, panels, strict=False)
        share_y_axis([axes for axes, panel in places if panel.metric == metric])
    for number, axes in enumerate(grid):
        if number < len(panels):
            draw_panel(axes, panels[number], styles)
        else:
            hide_axes(axes)
    return figure


def draw_panel(axes: Axes, panel: results.PaperPanel, styles: Styles) -> None:
    """Draw the series of a panel as points joined by lines; accuracies in percent."""
    scale = 1 if panel.metric == "loss" else 100
    for series in panel.series:
        label = series_label(series)
        style = styles[label]
        values = [scale * value for value in series.y]
        axes.plot(series.x, values, **style.line, marker=style.marker, label=label)
        points = zip(series.x, values, series.is_suspect, strict=True)
        suspects = [(x, y) for x, y, is_suspect in points if is_suspect]
        if suspects:
            axes.plot(*zip(*suspects, strict=True), **SUSPECT_RING, label=f"suspect: {label}")
    if panel.x_is == "rho":
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_title(escape_text(panel_title(panel)))
    axes.set_xlabel(X_LABELS[panel.x_is])
    axes.set_ylabel(Y_LABELS[panel.metric])


def panel_title(panel: results.PaperPanel) -> str:
    """Return the panel's letter with the attack's radius or the maximised loss."""
    if panel.eps_test is not None:
        return f"({panel.name}) ε {format_number(panel.eps_test)}"
    return f"({panel.name}) {LOSS_NAMES[panel.attack_loss or 'ce']}"


def series_label(series: results.PaperSeries) -> str:
    """Return the defense, with its alpha where it has one."""
    if series.alpha_train is None:
        return series.defense
    return f"{series.defense}, α {format_number(series.alpha_train)}"
