"""Training logs: loss, validation accuracies, attack success and weight statistics by epoch."""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...spec import Spec, format_number
from .data import FigureData, SkippedFigure, TrainingLog
from .layout import (
    FigureOrSkip,
    NamedFigure,
    legend_entry,
    make_figure,
    split_single_points,
)
from .look import FigureLook
from .style import (
    A_NAT,
    A_ROB,
    A_SA,
    band_opacity,
    escape_text,
    hide_axes,
    threat_label,
)

MAX_COLUMNS = 4
ROW_HEIGHT = 1.65
MAX_EPOCHS_WITH_ALL_MARKERS = 15
NOTE = "bands: 95 % intervals over validation images"
# fields of the log, each with its panel's title and unit
PANELS = {
    "loss": ("training loss", 1.0),
    "val_a_nat": (f"validation {A_NAT} (%)", 100.0),
    "val_a_rob": (f"validation {A_ROB} (%)", 100.0),
    "val_a_sa": (f"validation {A_SA} (%)", 100.0),
    "attack_success": ("attack success (%)", 100.0),
    "weight_mean": ("mean weight", 1.0),
    "weight_max": ("largest weight", 1.0),
    "weight_ess": ("ESS of weights (%)", 100.0),
}


def make_figures(data: FigureData) -> Iterator[FigureOrSkip]:
    """Yield a figure per set of runs with comparable validation numbers, a line per run."""
    comparable: dict[Hashable, list[TrainingLog]] = {}
    for log in data.training_logs:
        comparable.setdefault(_validation_setting(log), []).append(log)
    for logs in comparable.values():
        for log in logs:
            if not log.entries:
                yield SkippedFigure(f"the log of {log.folder} is empty; training not drawn")
        logs_with_epochs = [log for log in logs if log.entries]
        if logs_with_epochs:
            dataset = Spec.parse(logs_with_epochs[0].config.dataset).short
            fields, left_out = _choose_fields(logs_with_epochs)
            if left_out:
                names = ", ".join(left_out)
                yield SkippedFigure(f"training of {dataset}: a single epoch has {names}; not drawn")
            figure = _make_figure(logs_with_epochs, fields, data.look)
            yield NamedFigure(f"training-{dataset}", figure)


def entries_with(log: TrainingLog, field: str) -> list[dict[str, Any]]:
    """Return the log entries that have this field."""
    return [entry for entry in log.entries if entry.get(field) is not None]


def _validation_setting(log: TrainingLog) -> Hashable:
    config = log.config
    # validation accuracies depend on the validation set, the threat and the short attack
    return config.dataset, config.split_seed, config.norm, config.eps, config.evaluate


def _choose_fields(logs: Sequence[TrainingLog]) -> tuple[list[str], list[str]]:
    """Return the fields to draw, and those that a single epoch has."""
    fields = [field for field in PANELS if any(entries_with(log, field) for log in logs)]
    return split_single_points(
        fields, lambda field: max(len(entries_with(log, field)) for log in logs)
    )


def _make_figure(logs: Sequence[TrainingLog], fields: Sequence[str], look: FigureLook) -> Figure:
    config = logs[0].config
    facts = {
        "data": escape_text(config.dataset),
        "eps": threat_label(config.norm, config.eps),
    }
    if "val_a_sa" in fields:
        alpha = max(config.evaluate.alpha_test)
        facts["alpha"] = rf"validation {A_SA} at $\alpha$ = {format_number(alpha)}"
    # the seeds of one model share a line style: one legend entry for all of them
    by_style = {log.style.number: log for log in logs}
    entries = [legend_entry(log.style, log.label) for log in by_style.values()]
    note = NOTE if "val_a_nat" in fields else ""
    columns = min(MAX_COLUMNS, look.small_columns)
    rows = -(-len(fields) // columns)
    figure = make_figure(
        look.width, ROW_HEIGHT * rows, [facts], entries, note, has_heading=look.has_heading
    )
    for number, axes in enumerate(figure.subplots(rows, columns, squeeze=False, sharex=True).flat):
        if number >= len(fields):
            hide_axes(axes)
            continue
        draw_panel(axes, logs, fields[number])
        if number + columns >= len(fields):
            axes.set_xlabel("epoch")
            axes.tick_params(labelbottom=True)
    return figure


def draw_panel(axes: Axes, logs: Sequence[TrainingLog], field: str) -> None:
    """Draw a field against the epoch, with its interval where the log has one."""
    title, unit = PANELS[field]
    for log in logs:
        entries = entries_with(log, field)
        epochs = [entry["epoch"] for entry in entries]
        values = [unit * entry[field] for entry in entries]
        line = log.style.sparse_markers
        if len(entries) <= MAX_EPOCHS_WITH_ALL_MARKERS:
            line["markevery"] = 1
        axes.plot(epochs, values, **line, label=log.label)
        if entries and f"{field}_low" in entries[0]:
            axes.fill_between(
                epochs,
                [unit * entry[f"{field}_low"] for entry in entries],
                [unit * entry[f"{field}_high"] for entry in entries],
                color=log.style.colour,
                alpha=band_opacity(len(logs)),
                linewidth=0,
            )
    axes.set_title(title)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.margins(x=0.03)
