"""What was measured, as tables for a terminal."""

from collections.abc import Mapping

from rich.markup import escape
from rich.table import Table

from wmr_cli.workflows.timing import Spread, spread

from .races import OURS, PEAK, Race
from .scaling import Growth

GOALS = {
    "pgd/small-cnn": "at least 1.4",
    "pgd/resnet18": "at least 1.1",
    "pgd/bare": "at most 1.05",
    "trades/small-cnn": "at least 1.9",
    "trades/resnet18": "at least 1.5",
    "pgd-training/small-cnn": "at least 1.3",
    "evaluation/attacks": "at most 4.3",
}
"""What is asked of each ratio."""


def race(found: Race) -> Table:
    """A row per contestant: seconds, images per second, times ours, and the share of the peak where it is known."""
    table = _table(f"{found.title}; median [quartiles] of {len(next(iter(found.times.values())))} rounds")
    is_ours = OURS in found.times
    first = OURS if is_ours else next(iter(found.times))
    for column in ("", "seconds", "images/s", f"time over that of {first}", "of the peak"):
        table.add_column(column, justify="left" if not column else "right")
    for name, times in found.times.items():
        seconds, share = spread(times), ""
        if name in found.operations:
            share = f"{100 * found.share_of_peak(name).median:.0f} %"
        rate = "" if name == PEAK else f"{found.images / seconds.median:,.0f}"
        over = "" if name == PEAK else _spread(found.ratio(name, first))
        table.add_row(name, _spread(seconds), rate, over, share, style="bold" if name == OURS else "")
    return table


def growth(found: Growth) -> Table:
    """A row per size."""
    table = _table(f"Cost of {found.title}")
    for column in (found.unit, "seconds", f"per unit, over that of {found.sizes[0]:,}"):
        table.add_column(column, justify="right")
    for size, seconds, relative in zip(found.sizes, found.seconds, found.per_unit, strict=True):
        table.add_row(f"{size:,}", f"{seconds:.3g}", f"{relative:.2f}")
    return table


def ratios(found: Mapping[str, Spread]) -> Table:
    """The named ratios, and what is asked of them."""
    table = _table("Ratios to the fastest peer; pgd/bare over bare passes, evaluation over one attack")
    for column in ("", "median, quartiles", "wanted"):
        table.add_column(column, justify="left" if not column else "right")
    for name, value in found.items():
        table.add_row(name, _spread(value), GOALS.get(name, ""))
    return table


def _spread(value: Spread) -> str:
    return f"{value.median:.3g} [{value.low:.3g}, {value.high:.3g}]"


def _table(title: str) -> Table:
    return Table(title=escape(title), title_justify="left", box=None, pad_edge=False)
