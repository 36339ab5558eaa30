"""Tables beside the main one: differences, worst cases, classes, sanity checks, validation."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from ...measures import AlphaBounds, Estimate
from ...spec import format_number
from ...storage.records import ClassAlphaRow, ClassRow, Record
from ..comparison import INDISTINGUISHABLE, Comparison, Gap
from ..rows import (
    ACCURACIES,
    ATTACK_SEPARATOR,
    AttackNames,
    attack_name,
    describe_conditions,
    eps_name,
    list_accuracies,
    name_attacks,
    row_name,
    run_name,
)
from ..scoring import has_low_ess
from .escaping import csv_text
from .formatting import format_bounds, format_difference, format_estimate, format_percent
from .text_table import TextTable

DRO_HEADINGS = (
    "run",
    "attack",
    "ε",
    "loss",
    "ρ",
    "worst loss",
    "accuracy",
    "worst accuracy",
    "zero weights",
    "ESS",
)
DRO_CAPTION = (
    "worst case over all weights in the χ² ball of radius ρ around equal weights: the largest mean "
    "loss, the accuracy (percent) under the weights that maximise it, and the lowest accuracy"
)
CHECKS_CAPTION = (
    "failed: the attack may have been weak rather than the model robust; note: for information"
)
CLASSES_CAPTION = (
    "percent, with 95 % intervals for each class on its own; the second interval of the worst "
    "class covers all classes jointly; few: the effective sample size of the class is small"
)
BOUNDS_HEADINGS = (
    "run",
    "attack",
    "ε",
    "verifier",
    "certified",
    "broken",
    "unknown",
    "α_test",
    "A_rob",
    "A_sa",
    "A_sa, fixed weights",
)
BOUNDS_CAPTION = (
    "percent, lower to upper bound over all attacks in the ε-ball, and a 95 % interval over test "
    "images that covers both; fixed weights: those of the attack that was run, only which images "
    "are correct is uncertain"
)
VALIDATION_CAPTION = (
    "percent of the validation set, with 95 % intervals, under a short attack. The best epoch was "
    "chosen on these images, so its numbers are optimistic; `wmr evaluate` uses test images"
)
VALIDATION_HEADINGS = {f"val_{name}": heading for name, heading in ACCURACIES.items()}
COMPARISON_CAPTION = (
    "percentage points, with 95 % intervals of the paired difference: both models are resampled "
    "on the same test images. Where an interval contains 0, or fewer than six images make the "
    f"difference, the two are {INDISTINGUISHABLE}"
)
SEEDS_NOTE = (
    "seeds: the 95 % interval of the difference over training seeds, which must exclude 0 as well"
)
# scripts of users read these names
COMPARISON_CSV_HEADINGS = (
    "reference", "run", "dataset", "n", "norm", "eps", "attack", "share", "alpha_test",
    "difference", "low", "high", "images", "seeds_low", "seeds_high", "verdict", "worst_of",
)  # fmt: skip


def make_detail_tables(records: Sequence[Record]) -> Iterator[TextTable]:
    """Yield a table of all worst cases, then tables of each record's classes and checks."""
    attacks = name_attacks(records)
    dro_rows = [cells for record in records for cells in _dro_rows(record, attacks)]
    if dro_rows:
        yield TextTable(
            headings=DRO_HEADINGS,
            rows=dro_rows,
            caption=DRO_CAPTION,
            title="worst case in the χ² ball",
            text_columns=DRO_HEADINGS[:2],
            shared_columns=DRO_HEADINGS[:4],
        )
    bounds_rows = [cells for record in records for cells in _bounds_rows(record, attacks)]
    if bounds_rows:
        yield TextTable(
            headings=BOUNDS_HEADINGS,
            rows=bounds_rows,
            caption=BOUNDS_CAPTION,
            title="two-sided bounds",
            text_columns=(*BOUNDS_HEADINGS[:2], "verifier"),
            shared_columns=BOUNDS_HEADINGS[:4],
            interval_columns=BOUNDS_HEADINGS[-3:],
        )
    for record in records:
        if record.per_class:
            yield _make_class_table(record, attacks)
    for record in records:
        if record.checks:
            yield _make_check_table(record, attacks)


def _dro_rows(record: Record, attacks: AttackNames) -> Iterator[tuple[str, ...]]:
    for row in record.dro:
        yield (
            run_name(record),
            attacks.name(record),
            eps_name(record),
            row.attack_loss,
            format_number(row.rho),
            f"{row.loss:.3f}",
            format_percent(row.accuracy),
            format_percent(row.worst_accuracy),
            str(row.zero_weights),
            f"{row.ess:.0f}",
        )


def _bounds_rows(record: Record, attacks: AttackNames) -> Iterator[tuple[str, ...]]:
    """Yield a row per alpha."""
    bounds = record.bounds
    if bounds is None:
        return
    for row in bounds.by_alpha or [AlphaBounds(alpha_test=None, a_sa=None, a_sa_fixed=None)]:
        yield (
            run_name(record),
            attacks.name(record),
            eps_name(record),
            bounds.verifier,
            str(bounds.certified),
            str(bounds.broken),
            str(bounds.unknown),
            "-" if row.alpha_test is None else format_number(row.alpha_test),
            *map(format_bounds, (bounds.a_rob, row.a_sa, row.a_sa_fixed)),
        )


def _make_class_table(record: Record, attacks: AttackNames) -> TextTable:
    """Make the table of a record's classes, with A_sa at the largest alpha."""
    # by value, not by interval: small classes would have the lowest ends
    worst = min(record.per_class, key=lambda row: row.joint.value)
    weighted = _at_largest_alpha(worst)
    a_sa = "A_sa"
    if weighted is not None and weighted.alpha_test is not None:
        a_sa += f" at α {format_number(weighted.alpha_test)}"
    headings = ("class", "n", "A_nat", "A_rob", a_sa, "weight", "ESS")
    return TextTable(
        headings=headings,
        rows=[_class_cells(row, is_worst=row is worst) for row in record.per_class],
        caption=CLASSES_CAPTION,
        title=f"classes of {_describe_evaluation(record, attacks)}",
        text_columns=("class",),
        interval_columns=headings[2:5],
    )


def _make_check_table(record: Record, attacks: AttackNames) -> TextTable:
    headings = ("check", "number", "verdict", "the number is")
    return TextTable(
        headings=headings,
        rows=[
            (check.name, f"{check.value:.4g}", check.verdict, check.text) for check in record.checks
        ],
        caption=CHECKS_CAPTION,
        title=f"checks of {_describe_evaluation(record, attacks)}",
        text_columns=("check", "verdict", "the number is"),
    )


def _describe_evaluation(record: Record, attacks: AttackNames) -> str:
    return f"{run_name(record)} {describe_conditions(record, attacks.name(record))}"


def _at_largest_alpha(row: ClassRow) -> ClassAlphaRow | None:
    return max(row.by_alpha, key=lambda part: part.alpha_test or 0, default=None)


def _class_cells(row: ClassRow, *, is_worst: bool) -> tuple[str, ...]:
    a_nat = format_estimate(row.a_nat)
    a_rob = format_estimate(row.a_rob)
    if is_worst:
        joint = f"; worst {format_estimate(row.joint)}"
        # the joint interval belongs to the accuracy under attack if there was one
        if row.a_rob is None:
            a_nat += joint
        else:
            a_rob += joint
    a_sa = "-"
    weight = "-"
    ess = "-"
    weighted = _at_largest_alpha(row)
    if weighted is not None:
        a_sa = format_estimate(weighted.a_sa)
        if weighted.share is not None:
            weight = format_percent(weighted.share)
        if weighted.a_sa is not None and weighted.a_sa.ess is not None:
            ess = f"{weighted.a_sa.ess:.0f}"
            if has_low_ess(weighted.a_sa.ess, row.n):
                ess += " (few)"
    name = str(row.label) if row.name is None else f"{row.label} {row.name}"
    return name, str(row.n), a_nat, a_rob, a_sa, weight, ess


def make_validation_table(
    entries: list[dict[str, Any]], best: int | None, select: str
) -> TextTable | None:
    """Make a table of the best and the last validated epoch; None if no epoch was validated.

    `entries` are those of the training log, `select` is the metric that chose the epoch `best`.
    """
    validated = {entry["epoch"]: entry for entry in entries if "val_a_nat" in entry}
    if not validated:
        return None
    last = validated[max(validated)]
    # not every run validates A_sa and A_tr
    headings = {key: name for key, name in VALIDATION_HEADINGS.items() if key in last}
    rows = []
    if best is not None:
        name = f"best by {VALIDATION_HEADINGS[f'val_a_{select}']}"
        rows.append(_validation_row(name, validated[best], list(headings)))
    rows.append(_validation_row("last", last, list(headings)))
    if "ema_val_a_nat" in last:
        rows.append(_validation_row("EMA", last, [f"ema_{key}" for key in headings]))
    return TextTable(
        headings=("weights", "epoch", *headings.values()),
        rows=rows,
        caption=VALIDATION_CAPTION,
        text_columns=("weights",),
        interval_columns=tuple(headings.values()),
    )


def _validation_row(name: str, entry: dict[str, Any], keys: Sequence[str]) -> tuple[str, ...]:
    estimates = (Estimate(entry[key], entry[f"{key}_low"], entry[f"{key}_high"]) for key in keys)
    return name, str(entry["epoch"]), *map(format_estimate, estimates)


def make_comparison_tables(
    comparisons: Sequence[Comparison], attacks: AttackNames
) -> Iterator[TextTable]:
    """Yield a table of differences per reference."""
    # comparisons come group by group, and a group has one reference
    for _, members in groupby(comparisons, key=lambda comparison: comparison.group):
        yield _make_comparison_table(list(members), attacks)


def _make_comparison_table(comparisons: Sequence[Comparison], attacks: AttackNames) -> TextTable:
    reference = comparisons[0].reference
    record = reference.record
    accuracies = list_accuracies(
        record for comparison in comparisons for record in comparison.row.records
    )
    headings = tuple(accuracies.values())
    rows = []
    for comparison in comparisons:
        alpha = comparison.row.alpha_test
        gaps = (_format_gap(comparison.gaps.get(name)) for name in accuracies)
        shown_alpha = "-" if alpha is None else format_number(alpha)
        rows.append((row_name(comparison.row), shown_alpha, *gaps))
    notes = attacks.notes([record])
    if any(gap.over_seeds for comparison in comparisons for gap in comparison.gaps.values()):
        notes = (*notes, SEEDS_NOTE)
    conditions = describe_conditions(record, attacks.name(record))
    return TextTable(
        headings=("run", "α_test", *headings),
        rows=rows,
        caption=COMPARISON_CAPTION,
        title=f"difference to {row_name(reference)} {conditions}, on {record.dataset.n} images",
        text_columns=("run",),
        shared_columns=("run",),
        interval_columns=headings,
        notes=notes,
    )


def _format_gap(gap: Gap | None) -> str:
    """Return `+1.2 [+0.3, +2.1]`, with the verdict unless the rows are distinguishable."""
    if gap is None:
        return "-"
    # the table breaks lines at semicolons
    parts = [format_difference(gap.over_images)]
    if gap.over_seeds is not None:
        low, high = gap.over_seeds
        parts.append(f"seeds {100 * low:+.1f} to {100 * high:+.1f}")
    if not gap.is_distinguishable:
        parts.append(gap.verdict)
    return "; ".join(parts)


def comparisons_to_csv(comparisons: Iterable[Comparison], attacks: AttackNames) -> str:
    """Return a CSV row per difference, as fractions."""
    rows = []
    for comparison in comparisons:
        record = comparison.row.record
        for name, gap in comparison.gaps.items():
            rows.append(
                [
                    row_name(comparison.reference),
                    row_name(comparison.row),
                    record.dataset.name,
                    record.dataset.n,
                    record.threat.norm,
                    record.threat.eps,
                    attack_name(record),
                    name,
                    comparison.row.alpha_test,
                    gap.over_images.value,
                    gap.over_images.low,
                    gap.over_images.high,
                    gap.over_images.effective_images,
                    *(gap.over_seeds or (None, None)),
                    gap.verdict,
                    ATTACK_SEPARATOR.join(attacks.combined_attacks(record)),
                ]
            )
    return csv_text(COMPARISON_CSV_HEADINGS, rows)


def comparisons_to_json(comparisons: Iterable[Comparison]) -> list[dict[str, Any]]:
    """Return the comparisons for JSON, each row with the ids of its records."""
    return [
        {
            "reference": {
                "run": row_name(comparison.reference),
                "ids": [record.id for record in comparison.reference.records],
            },
            "run": row_name(comparison.row),
            "ids": [record.id for record in comparison.row.records],
            "alpha_test": comparison.row.alpha_test,
            **{name: _gap_to_json(gap) for name, gap in comparison.gaps.items()},
        }
        for comparison in comparisons
    ]


def _gap_to_json(gap: Gap) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "value": gap.over_images.value,
        "low": gap.over_images.low,
        "high": gap.over_images.high,
        "images": gap.over_images.effective_images,
    }
    if gap.over_seeds is not None:
        low, high = gap.over_seeds
        fields["seeds"] = {"low": low, "high": high}
    return {**fields, "verdict": gap.verdict}
