"""Records to the main table, and to CSV: a line per model and alpha_test."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ...measures import MARGIN_KERNEL, Estimate
from ...spec import format_number
from ...storage.records import Record
from ..grouping import ComparisonGroup, differing, group_by_setting
from ..ranking import ResampledAccuracies, find_bold_cells
from ..rows import (
    ACCURACIES,
    ATTACK_SEPARATOR,
    AttackNames,
    ReportRow,
    attack_name,
    eps_name,
    make_group_rows,
    make_rows,
    name_attacks,
    row_name,
    run_name,
)
from .escaping import csv_text
from .formatting import format_attack_spread, format_estimate, format_training_spread
from .text_table import TextTable

ACCURACY_HEADINGS = tuple(ACCURACIES.values())
HEADINGS = (
    "run", "defense", "kernel_train", "α_train", "seeds", "data", "attack", "attack_seed", "ε", "kernel_test", "α_test",
    *ACCURACY_HEADINGS, "n", "ESS",
)  # fmt: skip
DEFAULT_VALUES = {
    "kernel_train": (MARGIN_KERNEL, "none"),
    "seeds": ("1",),
    "attack_seed": ("0",),
    "kernel_test": (MARGIN_KERNEL,),
}
"""Columns that are shown where some line has something else to say; `none` is told by its missing α."""
SHOWN_IF_DIFFERENT = ("data",)
"""Columns that are shown where lines differ in them."""
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
TEXT_COLUMNS = ("run", "defense", "kernel_train", "data", "attack", "kernel_test")
CAPTION = (
    "percent, with 95 % intervals over test images; ESS is the effective sample size behind A_sa"
)
ATTACK_SEEDS_NOTE = "mean ± standard deviation over attack seeds follow the interval, which is that of the first seed"
TRAINING_SEEDS_NOTE = (
    "runs that differ only in the training seed are one row: mean ± standard deviation over seeds, "
    "and the mean interval"
)
BOLD_NOTE = (
    "bold (in plain text a star): the best of its column and all values that are statistically "
    "indistinguishable from it, among rows of the same α_test"
)
NO_BOLD_NOTE = "nothing is bold: no row is distinguishable from the best of its column"
GROUPS_NOTE = "only rows of the same measurement setting are compared; the others differ in {}"
REPEATED_ACCURACIES = ("a_rob", "a_sa", "a_tr")
CSV_HEADINGS = (
    "run", "id", "defense", "alpha_train", "kernel", "dataset", "split", "n", "norm", "eps", "attack", "alpha_test", "ess",
    *(name + part for name in ACCURACIES for part in ("", "_low", "_high")),
    "seeds", *(name + part for name in REPEATED_ACCURACIES for part in ("_mean", "_sd")),
    "train_seed", "train_kernel", "peers", "model", "train_seeds",
    *(name + part for name in ACCURACIES for part in ("_train_mean", "_train_sd")), "worst_of",
)  # fmt: skip


def format_row(line: ReportRow) -> dict[str, str]:
    """The texts of one line by their headings."""
    record = line.record
    return {
        "run": row_name(line),
        "defense": record.checkpoint.defense,
        "kernel_train": record.checkpoint.kernel,
        "α_train": _plain(record.checkpoint.alpha_train),
        "seeds": str(line.seeds),
        "data": f"{record.dataset.name} {record.dataset.split}",
        "attack": attack_name(record),
        "attack_seed": str(record.attack.seed),
        "ε": eps_name(record),
        "kernel_test": record.kernel,
        "α_test": _plain(line.alpha_test),
        **{heading: format_accuracy(line, name) for name, heading in ACCURACIES.items()},
        "n": str(record.dataset.n),
        "ESS": "-" if line.ess is None else f"{line.ess:.0f}",
    }


def format_accuracy(line: ReportRow, name: str) -> str:
    """A share with its interval, and with the spread over seeds of training or of the attack."""
    if line.seeds > 1:
        return format_training_spread(line.accuracy(name), line.training_spread(name))
    return (
        format_estimate(line.accuracy(name))
        if name == "a_nat"
        else format_attack_spread(line.accuracy(name), line.attack_spread(name))
    )


def make_table(records: Sequence[Record]) -> TextTable:
    """The main table with a row per record and alpha, nothing taken together and nothing ranked."""
    return _make_table(list(make_rows(records)), name_attacks(records))


def make_ranked_table(
    found: Sequence[ComparisonGroup], resampled: ResampledAccuracies
) -> TextTable:
    """The main table with group together, seeds of training taken together, and the best in bold."""
    rows: list[ReportRow] = []
    bold: set[tuple[int, str]] = set()
    ends: set[int] = set()
    for group in found:
        bold |= {
            (len(rows) + number, ACCURACIES[name])
            for number, name in find_bold_cells(group, resampled)
        }
        rows += [line for entry in group.entries for line in make_group_rows(entry)]
        ends.add(len(rows) - 1)
    made = _make_table(rows, name_attacks(record for group in found for record in group.records))
    return replace(
        made,
        bold=frozenset(bold),
        rules_after=frozenset(ends),
        notes=(
            *made.notes,
            *_notes(found, is_trained=any(line.seeds > 1 for line in rows), is_bold=bool(bold)),
        ),
        can_split=True,
    )


def _make_table(shown: Sequence[ReportRow], attacks: AttackNames) -> TextTable:
    texts = [{**format_row(line), "attack": attacks.name(line.record)} for line in shown]
    headings = tuple(
        name for name in HEADINGS if _is_informative(name, {text[name] for text in texts})
    )
    rows = [tuple(text[name] for name in headings) for text in texts]
    records = [line.record for line in shown]
    return TextTable(
        headings,
        rows,
        caption(records),
        text_columns=TEXT_COLUMNS,
        shared_columns=SHARED_COLUMNS,
        interval_columns=ACCURACY_HEADINGS,
        notes=attacks.notes(records),
    )


def _is_informative(name: str, values: set[str]) -> bool:
    """Whether a column has anything to say."""
    return (
        len(values) > 1
        if name in SHOWN_IF_DIFFERENT
        else not values <= set(DEFAULT_VALUES.get(name, ()))
    )


def _notes(found: Sequence[ComparisonGroup], *, is_trained: bool, is_bold: bool) -> Iterable[str]:
    if is_trained:
        yield TRAINING_SEEDS_NOTE
    if is_bold:
        yield BOLD_NOTE
    elif any(len(group.entries) > 1 for group in found):
        yield NO_BOLD_NOTE
    if len(found) > 1:
        words = {"eps": "ε", "data": "test images"}
        yield GROUPS_NOTE.format(
            " or ".join(
                words.get(word, word) for word in differing([group.setting for group in found])
            )
        )


def caption(records: Iterable[Record]) -> str:
    """What the numbers are."""
    return (
        f"{CAPTION}; {ATTACK_SEEDS_NOTE}" if any(record.repeats for record in records) else CAPTION
    )


def to_csv(records: Sequence[Record]) -> str:
    """A line per record and alpha: fractions in full, every interval in columns of its own.

    Behind them how the line belongs to others: lines with one `group` were measured alike, and those with one `model` besides
    differ in their training seed alone; they all carry mean and standard deviation over its seeds. Last the attacks whose worst
    case it is.
    """
    placed, attacks = locate_records(group_by_setting(records)), name_attacks(records)
    return csv_text(
        CSV_HEADINGS,
        (
            [
                *_facts(line),
                *_measured(line),
                *_seeds(line, placed[line.record.id]),
                ATTACK_SEPARATOR.join(attacks.of(line.record)),
            ]
            for line in make_rows(records)
        ),
    )


def _facts(line: ReportRow) -> list[Any]:
    record = line.record
    return [
        run_name(record), record.id, record.checkpoint.defense, record.checkpoint.alpha_train, record.kernel,
        record.dataset.name, record.dataset.split, record.dataset.n, record.threat.norm, record.threat.eps,
        attack_name(record), line.alpha_test, line.ess,
    ]  # fmt: skip


def _measured(line: ReportRow) -> list[float | None]:
    shares: list[Estimate | None] = [line.accuracy(name) for name in ACCURACIES]
    return [
        None if share is None else getattr(share, part)
        for share in shares
        for part in ("value", "low", "high")
    ]


def _seeds(line: ReportRow, place: "RecordPosition") -> list[Any]:
    """Over seeds of the attack, then over seeds of training."""
    whole = place.rows.get(line.alpha_test, line)
    attacked = [line.attack_spread(name) or (None, None) for name in REPEATED_ACCURACIES]
    trained = [
        (None, None) if one is None else (one.mean, one.sd)
        for one in map(whole.training_spread, ACCURACIES)
    ]
    return [
        len(line.record.repeats) or 1, *(number for pair in attacked for number in pair),
        line.record.checkpoint.seed, line.record.checkpoint.kernel, place.group, place.model, whole.seeds,
        *(number for pair in trained for number in pair),
    ]  # fmt: skip


class RecordPosition(NamedTuple):
    """Where a record stands among the others: the number of its group, that of its model, and its lines over all seeds."""

    group: int
    model: int
    seeds: int
    rows: dict[float | None, ReportRow]


def locate_records(found: Sequence[ComparisonGroup]) -> dict[str, RecordPosition]:
    """The place of every record by its id."""
    entries = [(number, entry) for number, group in enumerate(found, 1) for entry in group.entries]
    return {
        record.id: RecordPosition(
            number, model, len(entry), {line.alpha_test: line for line in make_group_rows(entry)}
        )
        for model, (number, entry) in enumerate(entries, 1)
        for records in entry
        for record in records
    }


def _plain(value: float | None) -> str:
    return "-" if value is None else format_number(value)
