"""The main table of a report and its CSV: a row per model and alpha_test."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from ...measures import MARGIN_KERNEL, AccuracyBounds, Estimate, Spread
from ...spec import format_number
from ...storage.records import Record
from ..comparison import ResampledAccuracies, find_bold_cells, list_table_rows
from ..grouping import ComparisonGroup, group_by_setting, list_differing_fields
from ..rows import (
    ACCURACIES,
    ALL_ACCURACIES,
    ATTACK_SEPARATOR,
    UNWEIGHTED_KERNEL,
    AttackNames,
    ReportRow,
    attack_name,
    eps_name,
    lacks_margins,
    make_group_rows,
    make_rows,
    merge_unweighted_rows,
    name_attacks,
    row_name,
    run_name,
)
from .escaping import csv_text
from .formatting import format_attack_spread, format_estimate, format_training_spread
from .text_table import TextTable

ACCURACY_HEADINGS = tuple(ALL_ACCURACIES.values())
SHARED_COLUMNS = (
    "run",
    "defense",
    "kernel_train",
    "α_train",
    "seeds",
    "data",
    "attack",
    "attack_seed",
    "ε",
    "kernel_test",
    "n",
)
# the number of images is shown last, beside the effective one
HEADINGS = (*SHARED_COLUMNS[:-1], "α_test", *ACCURACY_HEADINGS, "n", "ESS", "T")
TEXT_COLUMNS = ("run", "defense", "kernel_train", "data", "attack", "kernel_test")
# columns that are left out if every row has one of these values
DEFAULT_VALUES = {
    # a training without weights shows in its missing alpha
    "kernel_train": (MARGIN_KERNEL, UNWEIGHTED_KERNEL),
    "seeds": ("1",),
    "attack_seed": ("0",),
    "kernel_test": (MARGIN_KERNEL,),
    # computed only on request
    "A_cal": ("-",),
    "T": ("-",),
}

# columns that are left out if all rows are equal
SHOWN_IF_DIFFERENT = ("data",)

CAPTION = (
    "percent, with 95 % intervals over test images; ESS is the effective sample size behind A_sa"
)
CALIBRATED_NOTE = (
    "A_cal: A_sa of the calibrated model, with its logits divided by T, the temperature that fits "
    "the attacked images best; intervals include the fit"
)
ATTACK_SEEDS_NOTE = (
    "after the interval, which is that of the first attack seed: mean ± standard deviation over "
    "attack seeds"
)
TRAINING_SEEDS_NOTE = (
    "runs that differ only in the training seed are one row: mean ± standard deviation over seeds, "
    "and the mean interval"
)
NO_MARGINS_NOTE = (
    "no A_sa under {}: attacks that stop at the first misclassified image leave no margins; for "
    "A_sa run `wmr evaluate RUN --attack pgd`"
)
BOLD_NOTE = (
    "bold (in plain text a star): the best of its column and all values that are statistically "
    "indistinguishable from it, among rows of the same α_test"
)
NO_BOLD_NOTE = "no bold value (star) in a group: no significant difference"
GROUPS_NOTE = "only rows of the same measurement setting are compared; the others differ in {}"
REPEATED_ACCURACIES = ("a_rob", "a_sa", "a_tr")
BOUNDS_CSV_HEADINGS = (
    "verifier", "certified", "broken", "unknown",
    *(
        f"{name}_{part}"
        for name in ("a_rob_bounds", "a_sa_bounds", "a_sa_fixed_bounds")
        for part in AccuracyBounds.__struct_fields__
    ),
)  # fmt: skip
CALIBRATED_CSV_HEADINGS = (
    "a_cal", "a_cal_low", "a_cal_high", "temperature",
    "a_cal_mean", "a_cal_sd", "a_cal_train_mean", "a_cal_train_sd",
)  # fmt: skip
# scripts of users read these names: add columns, do not rename them
CSV_HEADINGS = (
    "run", "id", "defense", "alpha_train", "kernel", "dataset", "split", "n", "norm", "eps",
    "attack", "alpha_test", "ess",
    *(name + part for name in ACCURACIES for part in ("", "_low", "_high")),
    "seeds", *(name + part for name in REPEATED_ACCURACIES for part in ("_mean", "_sd")),
    "train_seed", "train_kernel", "peers", "model", "train_seeds",
    *(name + part for name in ACCURACIES for part in ("_train_mean", "_train_sd")), "worst_of",
    *BOUNDS_CSV_HEADINGS,
)  # fmt: skip


def format_row(row: ReportRow) -> dict[str, str]:
    """Return the cells of a row by heading."""
    record = row.record
    return {
        "run": row_name(row),
        "defense": record.checkpoint.defense,
        "kernel_train": record.checkpoint.kernel,
        "α_train": _format_alpha(record.checkpoint.alpha_train),
        "seeds": str(row.seeds),
        "data": f"{record.dataset.name} {record.dataset.split}",
        "attack": attack_name(record),
        "attack_seed": str(record.attack.seed),
        "ε": eps_name(record),
        "kernel_test": record.kernel,
        "α_test": _format_alpha(row.alpha_test),
        **{heading: format_accuracy(row, name) for name, heading in ALL_ACCURACIES.items()},
        "n": str(record.dataset.n),
        "ESS": "-" if row.ess is None else f"{row.ess:.0f}",
        "T": "-" if row.temperature is None else f"{row.temperature:.3g}",
    }


def format_accuracy(row: ReportRow, name: str) -> str:
    """Return an accuracy with its interval, and its spread over training or attack seeds."""
    estimate = row.accuracy(name)
    if row.seeds > 1:
        return format_training_spread(estimate, row.training_spread(name))
    if name == "a_nat":  # does not depend on the attack
        return format_estimate(estimate)
    return format_attack_spread(estimate, row.attack_spread(name))


def make_table(records: Sequence[Record]) -> TextTable:
    """Make the main table with a row per record and alpha, neither grouped nor ranked."""
    rows = list(merge_unweighted_rows(make_rows(records)))
    return _make_table(rows, name_attacks(records))


def make_ranked_table(
    groups: Sequence[ComparisonGroup], resampled: ResampledAccuracies
) -> TextTable:
    """Make the main table by comparison group, with means over seeds and the best in bold."""
    rows: list[ReportRow] = []
    bold: set[tuple[int, str]] = set()
    rules_after: set[int] = set()
    has_group_without_bold = False
    for group in groups:
        bold_cells = find_bold_cells(group, resampled)
        bold |= {(len(rows) + number, ALL_ACCURACIES[name]) for number, name in bold_cells}
        # a single entry has nothing to be compared with
        has_group_without_bold |= len(group.entries) > 1 and not bold_cells
        rows += list_table_rows(group)
        rules_after.add(len(rows) - 1)
    # worst cases are numbered over all groups
    table = _make_table(rows, name_attacks(record for group in groups for record in group.records))
    notes = _list_notes(
        groups,
        has_training_seeds=any(row.seeds > 1 for row in rows),
        has_bold=bool(bold),
        has_group_without_bold=has_group_without_bold,
    )
    return replace(
        table,
        bold=frozenset(bold),
        rules_after=frozenset(rules_after),
        notes=(*table.notes, *notes),
        can_split=True,
    )


def _make_table(report_rows: Sequence[ReportRow], attacks: AttackNames) -> TextTable:
    cells = [{**format_row(row), "attack": attacks.name(row.record)} for row in report_rows]
    headings = tuple(
        name for name in HEADINGS if is_informative(name, {row[name] for row in cells})
    )
    records = [row.record for row in report_rows]
    return TextTable(
        headings=headings,
        rows=[tuple(row[name] for name in headings) for row in cells],
        caption=make_caption(records),
        text_columns=TEXT_COLUMNS,
        shared_columns=SHARED_COLUMNS,
        interval_columns=ACCURACY_HEADINGS,
        notes=tuple(_list_table_notes(records, attacks, has_calibrated="A_cal" in headings)),
    )


def _list_table_notes(
    records: Sequence[Record], attacks: AttackNames, *, has_calibrated: bool
) -> Iterator[str]:
    yield from attacks.notes(records)
    without_margins = dict.fromkeys(
        attacks.name(record) for record in records if lacks_margins(record)
    )
    if without_margins:
        yield NO_MARGINS_NOTE.format(ATTACK_SEPARATOR.join(without_margins))
    if has_calibrated:
        yield CALIBRATED_NOTE


def is_informative(name: str, values: set[str]) -> bool:
    """Whether a column with these values is shown."""
    if name in SHOWN_IF_DIFFERENT:
        return len(values) > 1
    return not values <= set(DEFAULT_VALUES.get(name, ()))


def _list_notes(
    groups: Sequence[ComparisonGroup],
    *,
    has_training_seeds: bool,
    has_bold: bool,
    has_group_without_bold: bool,
) -> Iterator[str]:
    if has_training_seeds:
        yield TRAINING_SEEDS_NOTE
    if has_bold:
        yield BOLD_NOTE
    if has_group_without_bold:
        yield NO_BOLD_NOTE
    if len(groups) > 1:
        headings = {"eps": "ε", "data": "test images"}
        fields = list_differing_fields([group.setting for group in groups])
        yield GROUPS_NOTE.format(" or ".join(headings.get(name, name) for name in fields))


def make_caption(records: Iterable[Record]) -> str:
    """Return the caption of a table of these records."""
    if any(record.repeats for record in records):
        return f"{CAPTION}; {ATTACK_SEEDS_NOTE}"
    return CAPTION


def to_csv(records: Sequence[Record], groups: Sequence[ComparisonGroup] | None = None) -> str:
    """Return the columns and rows of `list_csv_rows` as CSV."""
    return csv_text(*list_csv_rows(records, groups))


def list_csv_rows(
    records: Sequence[Record], groups: Sequence[ComparisonGroup] | None = None
) -> tuple[tuple[str, ...], list[list[Any]]]:
    """Return column names, and a row per record and alpha with unrounded fractions.

    Records with equal `peers` were measured in one setting. Those with equal `model` differ only
    in the training seed, and all of them have the mean and standard deviation over its seeds.
    Columns of A_cal are the last ones, and missing if no record has it.
    """
    has_calibrated = any(record.calibration for record in records)
    positions = locate_records(group_by_setting(records) if groups is None else groups)
    attacks = name_attacks(records)
    rows = []
    for row in make_rows(records):
        record = row.record
        rows.append(
            [
                *_list_facts(row),
                *_list_accuracies(row),
                *_list_spreads(row, positions[record.id]),
                ATTACK_SEPARATOR.join(attacks.combined_attacks(record)),
                *_list_bounds(row),
                *(_list_calibrated(row, positions[record.id]) if has_calibrated else ()),
            ]
        )
    calibrated_headings = CALIBRATED_CSV_HEADINGS if has_calibrated else ()
    return (*CSV_HEADINGS, *calibrated_headings), rows


def _list_facts(row: ReportRow) -> list[Any]:
    record = row.record
    return [
        run_name(record),
        record.id,
        record.checkpoint.defense,
        record.checkpoint.alpha_train,
        record.kernel,
        record.dataset.name,
        record.dataset.split,
        record.dataset.n,
        record.threat.norm,
        record.threat.eps,
        attack_name(record),
        row.alpha_test,
        row.ess,
    ]


def _list_accuracies(row: ReportRow) -> list[float | None]:
    values: list[float | None] = []
    for name in ACCURACIES:
        values += _list_estimate(row.accuracy(name))
    return values


def _list_bounds(row: ReportRow) -> list[Any]:
    """Return the cells of `BOUNDS_CSV_HEADINGS`; all None for a record without bounds."""
    bounds = row.record.bounds
    if bounds is None:
        return [None] * len(BOUNDS_CSV_HEADINGS)
    at_alpha = next((part for part in bounds.by_alpha if part.alpha_test == row.alpha_test), None)
    values: list[Any] = [bounds.verifier, bounds.certified, bounds.broken, bounds.unknown]
    weighted = [None, None] if at_alpha is None else [at_alpha.a_sa, at_alpha.a_sa_fixed]
    for part in (bounds.a_rob, *weighted):
        values += [None] * 4 if part is None else msgspec.structs.astuple(part)
    return values


def _list_estimate(estimate: Estimate | None) -> list[float | None]:
    if estimate is None:
        return [None, None, None]
    return [estimate.value, estimate.low, estimate.high]


def _list_calibrated(row: ReportRow, position: "RecordPosition") -> list[float | None]:
    """Return A_cal with its temperature, and its spread over attack and training seeds."""
    spread = position.rows.get(row.alpha_test, row).training_spread("a_cal")
    return [
        *_list_estimate(row.accuracy("a_cal")),
        row.temperature,
        *(row.attack_spread("a_cal") or (None, None)),
        *_list_training_spread(spread),
    ]


def _list_training_spread(spread: Spread | None) -> list[float | None]:
    return [None, None] if spread is None else [spread.mean, spread.sd]


def _list_spreads(row: ReportRow, position: "RecordPosition") -> list[Any]:
    """Return the spread over attack seeds, then over training seeds."""
    checkpoint = row.record.checkpoint
    # a record without repetitions has one attack seed
    values: list[Any] = [len(row.record.repeats) or 1]
    for name in REPEATED_ACCURACIES:
        values += row.attack_spread(name) or (None, None)
    all_seeds = position.rows.get(row.alpha_test, row)
    values += [
        checkpoint.seed,
        checkpoint.kernel,
        position.group,
        position.model,
        all_seeds.seeds,
    ]
    for name in ACCURACIES:
        values += _list_training_spread(all_seeds.training_spread(name))
    return values


class RecordPosition(NamedTuple):
    """The numbers of a record's group and model, and the model's rows over all seeds by alpha."""

    group: int
    model: int
    seeds: int
    rows: dict[float | None, ReportRow]


def locate_records(groups: Sequence[ComparisonGroup]) -> dict[str, RecordPosition]:
    """Return the position of every record by its id."""
    positions: dict[str, RecordPosition] = {}
    model = 0
    for number, group in enumerate(groups, 1):
        for entry in group.entries:
            model += 1  # numbered over all groups
            rows = {row.alpha_test: row for row in make_group_rows(entry)}
            position = RecordPosition(number, model, len(entry), rows)
            positions |= {record.id: position for records in entry for record in records}
    return positions


def _format_alpha(alpha: float | None) -> str:
    return "-" if alpha is None else format_number(alpha)
