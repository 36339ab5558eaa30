"""Shares as people read them: in percent, with their interval, and with no more digits than that supports."""

import math

from ...measures import Difference, Estimate, Spread

NO_INTERVAL = "(no interval)"
"""Of means over seeds in each of which all images are right or all are wrong."""


def format_estimate(share: Estimate | None) -> str:
    """`57.2 [53.1, 61.1]`, with no more digits than the interval supports."""
    if share is None:
        return "-"
    if share.degenerate:
        return {1.0: "100 (all right)", 0.0: "0 (all wrong)"}.get(
            share.value, f"{format_percent(share.value)} {NO_INTERVAL}"
        )
    digits = _digits(share.low, share.high)
    value, low, high = (
        format_percent(number, digits) for number in (share.value, share.low, share.high)
    )
    return f"{value} [{low}, {high}]"


def format_percent(share: float, digits: int = 1) -> str:
    """A share without its interval. What rounding left of a sum, 0.61749999999 for 0.6175, does not show."""
    return f"{100 * round(share, 12):.{digits}f}"


def format_attack_spread(share: Estimate | None, spread: tuple[float, float] | None) -> str:
    """The share and, where the attack was repeated, mean ± standard deviation over its seeds: `57.2 [53.1, 61.1]; 57.0 ± 0.3`."""
    if spread is None:
        return format_estimate(share)
    mean, deviation = (100 * number for number in spread)
    digits = _digits_of_sd(deviation)
    return f"{format_estimate(share)}; {mean:.{digits}f} ± {deviation:.{digits}f}"


def format_training_spread(share: Estimate | None, spread: Spread | None) -> str:
    """The mean over training seeds ± its standard deviation, with the mean interval: `57.2 ± 0.4 [53.1, 61.1]`."""
    if share is None or spread is None or (share.degenerate and not spread.sd):
        return format_estimate(share)
    value, _, interval = format_estimate(share).partition(" ")
    digits = len(value.partition(".")[2])
    deviation = f"{100 * spread.sd:.{digits}f}"
    is_lost = spread.sd > 0 and float(deviation) == 0
    return f"{value} ± {f'{100 * spread.sd:.1g}' if is_lost else deviation} {interval}"


def points(difference: Difference) -> str:
    """`+1.2 [0.3, 2.1]`: a difference in points of a percent."""
    return signed(difference.value, difference.low, difference.high)


def signed(value: float, low: float, high: float) -> str:
    """A difference with its sign and its interval; `0` where it is nothing else."""
    if low == high:
        return f"{100 * value:+.3g}" if value else "0"
    digits = _digits(low, high)
    shown, least, most = (f"{100 * number:+.{digits}f}" for number in (value, low, high))
    return f"{shown} [{least}, {most}]"


def _digits(low: float, high: float) -> int:
    """So many that the half width of the interval has two."""
    return min(3, max(0, 1 - math.floor(math.log10(50 * (high - low)))))


def _digits_of_sd(deviation: float) -> int:
    return 1 if deviation == 0 else min(4, max(1, 1 - math.floor(math.log10(deviation))))
