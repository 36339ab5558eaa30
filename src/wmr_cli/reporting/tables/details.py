"""What stands after the main table where it was asked for: the worst case in a ball, every class by itself, the checks.

What held-out images say of a run: its best weights, its last ones, and their average.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from ...measures import Estimate
from ...spec import format_number
from ...storage.records import ClassAlphaRow, ClassRow, Record
from ..caveats import rests_on_few
from ..rows import AttackNames, describe_conditions, eps_name, name_attacks, run_name
from .formatting import format_estimate, format_percent
from .text_table import TextTable

IN_A_BALL = (
    "the worst case over all weights in a chi-squared ball of radius ρ around equal ones: the largest mean loss, the accuracy"
    " in percent under the weights that reach it, and the least accuracy in the ball"
)
CHECKS = "a check fails where the attack may have been weak rather than the model strong; a note is only told"
BY_CLASS = (
    "percent, with 95 % intervals of each class by itself; the worst class has a second one, wide enough"
    " that those of all classes hold together; few: the weights leave A_sa on few images of the class"
)


def make_detail_tables(records: Sequence[Record]) -> Iterator[TextTable]:
    """One sheet for the balls of all records, one for the classes and one for the checks of each."""
    attacks = name_attacks(records)
    in_balls = [cells for record in records for cells in _ball_cells(record, attacks)]
    if in_balls:
        headings = (
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
        yield TextTable(
            headings,
            in_balls,
            IN_A_BALL,
            "worst case in a ball",
            text_columns=headings[:2],
            shared_columns=headings[:4],
        )
    yield from (_class_sheet(record, attacks) for record in records if record.per_class)
    yield from (_check_sheet(record, attacks) for record in records if record.checks)


def _ball_cells(record: Record, attacks: AttackNames) -> Iterator[tuple[str, ...]]:
    for row in record.dro:
        yield (
            run_name(record), attacks.name(record), eps_name(record), row.attack_loss, format_number(row.rho), f"{row.loss:.3f}",
            format_percent(row.accuracy), format_percent(row.worst_accuracy), str(row.zero_weights), f"{row.ess:.0f}",
        )  # fmt: skip


def _class_sheet(record: Record, attacks: AttackNames) -> TextTable:
    """The classes of a record; of its alphas, the largest."""
    worst = min(record.per_class, key=lambda row: row.joint.value)
    last = _at_largest_alpha(worst)
    at = (
        "" if last is None or last.alpha_test is None else f" at α {format_number(last.alpha_test)}"
    )
    title = f"classes of {run_name(record)} {describe_conditions(record, attacks.name(record))}"
    headings = ("class", "n", "A_nat", "A_rob", f"A_sa{at}", "weight", "ESS")
    rows = [_class_cells(row, row is worst) for row in record.per_class]
    return TextTable(
        headings, rows, BY_CLASS, title, text_columns=("class",), interval_columns=headings[2:5]
    )


def _check_sheet(record: Record, attacks: AttackNames) -> TextTable:
    """Every check with its number and its verdict."""
    title = f"checks of {run_name(record)} {describe_conditions(record, attacks.name(record))}"
    headings = ("check", "number", "verdict", "the number is")
    rows: list[tuple[str, ...]] = [
        (check.name, f"{check.value:.4g}", check.verdict, check.text) for check in record.checks
    ]
    return TextTable(headings, rows, CHECKS, title, text_columns=(headings[0], *headings[2:]))


def _at_largest_alpha(row: ClassRow) -> ClassAlphaRow | None:
    return max(row.by_alpha, key=lambda part: part.alpha_test or 0, default=None)


def _class_cells(row: ClassRow, is_worst: bool) -> tuple[str, ...]:
    last = _at_largest_alpha(row)
    ess = None if last is None or last.a_sa is None else last.a_sa.ess
    mark = f"; worst {format_estimate(row.joint)}" if is_worst else ""
    few = " (few)" if ess is not None and rests_on_few(ess, row.n) else ""
    return (
        str(row.label) if row.name is None else f"{row.label} {row.name}",
        str(row.n),
        format_estimate(row.a_nat) + (mark if row.a_rob is None else ""),
        format_estimate(row.a_rob) + (mark if row.a_rob is not None else ""),
        "-" if last is None else format_estimate(last.a_sa),
        "-" if last is None or last.share is None else format_percent(last.share),
        "-" if ess is None else f"{ess:.0f}{few}",
    )


CAPTION = (
    "percent of held-out images, with 95 % intervals, under a short attack. The best was chosen by these very images,"
    " so its numbers flatter it; `wmr evaluate` measures on test images"
)
VALIDATION_HEADINGS = {
    "val_a_nat": "A_nat",
    "val_a_rob": "A_rob",
    "val_a_sa": "A_sa",
    "val_a_tr": "A_tr",
}


def make_validation_table(
    entries: list[dict[str, Any]], best: int | None, select: str
) -> TextTable | None:
    """A row for the best and one for the last epoch that looked at held-out images; None where none did."""
    looked = {entry["epoch"]: entry for entry in entries if "val_a_nat" in entry}
    if not looked:
        return None
    last = looked[max(looked)]
    rows = (
        [(f"best by {VALIDATION_HEADINGS[f'val_a_{select}']}", looked[best], "")]
        if best is not None
        else []
    )
    rows += [
        ("last", last, ""),
        *([("average of weights", last, "ema_")] if "ema_val_a_nat" in last else []),
    ]
    shown = {key: name for key, name in VALIDATION_HEADINGS.items() if key in last}
    cells = [
        (
            name,
            str(entry["epoch"]),
            *(format_estimate(_estimate(entry, prefix + key)) for key in shown),
        )
        for name, entry, prefix in rows
    ]
    return TextTable(
        ("weights", "epoch", *shown.values()),
        cells,
        CAPTION,
        text_columns=("weights",),
        interval_columns=tuple(shown.values()),
    )


def _estimate(entry: dict[str, Any], key: str) -> Estimate:
    return Estimate(entry[key], entry[f"{key}_low"], entry[f"{key}_high"])
