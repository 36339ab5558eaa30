"""Tables of the measurements, for a terminal."""

from collections.abc import Mapping

from rich.markup import escape
from rich.table import Table

from wmr_cli.benchmarking.timing import Quartiles, quartiles

from .comparisons import PEAK, WMR, Comparison
from .scaling import Growth

GOALS = {
    "pgd/small-cnn": "at least 1.4",
    "pgd/resnet18": "at least 1.1",
    "pgd/bare": "at most 1.05",
    "trades/small-cnn": "at least 1.9",
    "trades/resnet18": "at least 1.5",
    "pgd-training/small-cnn": "at least 1.3",
    "autoattack/resnet": "at least 1.5",
    "autoattack/small-cnn": "at least 1.5",
    "autoattack/busy": "at least 1.5",
    "evaluation/attacks": "at most 4.3",
}
"""The required value of each ratio."""


def comparison_table(comparison: Comparison) -> Table:
    """Return a table with a row per function: seconds, images per second, ratio to `wmr`."""
    rounds = len(next(iter(comparison.times.values())))
    table = _make_table(f"{comparison.title}; median [quartiles] of {rounds} rounds")
    reference = WMR if WMR in comparison.times else next(iter(comparison.times))
    _add_columns(table, "", "seconds", "images/s", f"time over that of {reference}", "of the peak")
    for name, times in comparison.times.items():
        seconds = quartiles(times)
        fraction = ""
        if name in comparison.flops:
            fraction = f"{100 * comparison.fraction_of_peak(name).median:.0f} %"
        rate = ""
        ratio = ""
        # a matrix product processes no images
        if name != PEAK:
            rate = f"{comparison.images / seconds.median:,.0f}"
            ratio = _format_quartiles(comparison.ratio(name, reference))
        style = "bold" if name == WMR else ""
        table.add_row(name, _format_quartiles(seconds), rate, ratio, fraction, style=style)
    return table


def growth_table(growth: Growth) -> Table:
    """Return a table with a row per size."""
    table = _make_table(f"Cost of {growth.title}")
    for column in (growth.unit, "seconds", f"per unit, over that of {growth.sizes[0]:,}"):
        table.add_column(column, justify="right")
    rows = zip(growth.sizes, growth.seconds, growth.relative_unit_costs, strict=True)
    for size, seconds, relative in rows:
        table.add_row(f"{size:,}", f"{seconds:.3g}", f"{relative:.2f}")
    return table


def ratio_table(ratios: Mapping[str, Quartiles]) -> Table:
    """Return a table of the named ratios and their goals."""
    table = _make_table(
        "Ratios to the fastest peer; pgd/bare over bare passes, evaluation over one attack"
    )
    _add_columns(table, "", "median, quartiles", "wanted")
    for name, value in ratios.items():
        table.add_row(name, _format_quartiles(value), GOALS.get(name, ""))
    return table


def _format_quartiles(value: Quartiles) -> str:
    return f"{value.median:.3g} [{value.low:.3g}, {value.high:.3g}]"


def _make_table(title: str) -> Table:
    # escaped, because rich would read the brackets of the title as markup
    return Table(title=escape(title), title_justify="left", box=None, pad_edge=False)


def _add_columns(table: Table, first: str, *others: str) -> None:
    table.add_column(first, justify="left")
    for column in others:
        table.add_column(column, justify="right")
