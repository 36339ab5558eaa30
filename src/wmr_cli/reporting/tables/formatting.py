"""Format accuracies and differences: in percent, with intervals and spreads over seeds."""

import math

from ...measures import AccuracyBounds, Difference, Estimate, Spread

# shown for a mean over seeds each of which has all images correct or none
NO_INTERVAL = "(no interval)"


def format_estimate(estimate: Estimate | None) -> str:
    """Return `57.2 [53.1, 61.1]` in percent, with no more digits than the interval supports."""
    if estimate is None:
        return "-"
    if estimate.degenerate:
        if estimate.value == 1:
            return "100 (all correct)"
        if estimate.value == 0:
            return "0 (none correct)"
        return f"{format_percent(estimate.value)} {NO_INTERVAL}"
    digits = _interval_digits(estimate.low, estimate.high)
    value = format_percent(estimate.value, digits)
    low = format_percent(estimate.low, digits)
    high = format_percent(estimate.high, digits)
    return f"{value} [{low}, {high}]"


def format_percent(fraction: float, digits: int = 1) -> str:
    """Return a fraction in percent, without an interval."""
    # 0.6175 may arrive as 0.61749999999, and must not be rounded down because of it
    return f"{100 * round(fraction, 12):.{digits}f}"


def format_attack_spread(estimate: Estimate | None, spread: tuple[float, float] | None) -> str:
    """Return `57.2 [53.1, 61.1]; 57.0 ± 0.3`: mean and standard deviation over attack seeds."""
    if spread is None:
        return format_estimate(estimate)
    mean = 100 * spread[0]
    deviation = 100 * spread[1]
    digits = _deviation_digits(deviation)
    return f"{format_estimate(estimate)}; {mean:.{digits}f} ± {deviation:.{digits}f}"


def format_training_spread(estimate: Estimate | None, spread: Spread | None) -> str:
    """Return `57.2 ± 0.4 [53.1, 61.1]`: the standard deviation over training seeds."""
    if estimate is None or spread is None or (estimate.degenerate and not spread.sd):
        return format_estimate(estimate)
    value, _, interval = format_estimate(estimate).partition(" ")
    digits = len(value.partition(".")[2])
    deviation = f"{100 * spread.sd:.{digits}f}"
    if spread.sd > 0 and float(deviation) == 0:
        # ± 0.0 would claim that the seeds agree exactly
        deviation = f"{100 * spread.sd:.1g}"
    return f"{value} ± {deviation} {interval}"


def format_difference(difference: Difference) -> str:
    """Return `+1.2 [+0.3, +2.1]` in percentage points."""
    return format_signed(difference.value, difference.low, difference.high)


def format_signed(value: float, low: float, high: float) -> str:
    """Return a difference with sign and interval; a bare number if the interval is empty."""
    if low == high:
        return f"{100 * value:+.3g}" if value else "0"
    digits = _interval_digits(low, high)
    shown, least, most = (f"{100 * number:+.{digits}f}" for number in (value, low, high))
    return f"{shown} [{least}, {most}]"


def _interval_digits(low: float, high: float) -> int:
    """Return the decimals at which half the interval's width in percent has two digits."""
    return min(3, max(0, 1 - math.floor(math.log10(50 * (high - low)))))


def _deviation_digits(deviation: float) -> int:
    """Return the decimals at which a standard deviation has two digits."""
    if deviation == 0:
        return 1
    return min(4, max(1, 1 - math.floor(math.log10(deviation))))


def format_bounds(bounds: AccuracyBounds | None) -> str:
    """Return `81.0–87.0 [75.0, 91.0]`."""
    if bounds is None:
        return "-"
    ends = [format_percent(value) for value in (bounds.lower, bounds.upper)]
    return f"{'–'.join(ends)} [{format_percent(bounds.low)}, {format_percent(bounds.high)}]"
