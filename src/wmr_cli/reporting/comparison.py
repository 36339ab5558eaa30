"""Compare models on the same images: paired differences, and the best values of each column.

Bold is the best value of a column and all that are statistically indistinguishable from it, among
rows at one alpha_test in one measurement setting. Nothing is bold where this would be every row.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .. import measures
from ..errors import BadFile
from ..measures import Difference, Outcome, Resampled, Resamples, mean_of, seeds_interval
from ..storage import records
from ..storage.records import Record, Rows
from .grouping import ComparisonGroup, SeedGroup
from .rows import ALL_ACCURACIES, ReportRow, make_group_rows, merge_unweighted_rows
from .scoring import compute_outcomes, list_calibrated, stored_config

# id of a record, field name of an accuracy, alpha; A_nat and A_rob have no alpha
AccuracyKey = tuple[str, str, float | None]

# accuracies of records in every bootstrap resample of the images
ResampledAccuracies = Mapping[AccuracyKey, Resampled]

INDISTINGUISHABLE = "not distinguishable"
NO_DIFFERING_IMAGE = f"{INDISTINGUISHABLE} (no image makes a difference)"
FEW_DIFFERING_IMAGES = f"{INDISTINGUISHABLE} (few images)"


@dataclass(frozen=True)
class ResampledRecords:
    """Resampled accuracies of records, and the files whose rows could not be used."""

    accuracies: dict[AccuracyKey, Resampled] = field(default_factory=dict)
    problems: list[BadFile] = field(default_factory=list)


def resample_groups(
    groups: Iterable[ComparisonGroup], files: Mapping[str, Path], *, compare: bool
) -> ResampledRecords:
    """Resample the images of every group with at least two entries to compare.

    With `compare`, the seeds of a single model are compared too, and missing rows are a problem.
    """
    result = ResampledRecords()
    # groups with equally many images share their resamples, which are costly to draw
    by_size: dict[int, Resamples] = {}
    for group in groups:
        entries = list_compared_entries(group) if compare else group.entries
        if len(entries) < 2:
            continue
        outcomes = _load_outcomes(group.records, files, result.problems, needs_rows=compare)
        if outcomes:
            images = len(next(iter(outcomes.values())).correct)
            resamples = by_size.setdefault(images, Resamples(images))
            resampled = resamples.of(list(outcomes.values()))
            result.accuracies.update(zip(outcomes, resampled, strict=True))
    return result


def _load_outcomes(
    members: Sequence[Record],
    files: Mapping[str, Path],
    problems: list[BadFile],
    *,
    needs_rows: bool,
) -> dict[AccuracyKey, Outcome]:
    """Return the outcomes of comparable records, all with their images in the same order."""
    index = None
    outcomes: dict[AccuracyKey, Outcome] = {}
    # outcomes are kept by id, and records of equal id share a file
    for record in {record.id: record for record in members}.values():
        file = files[record.id]
        try:
            rows = _sort_by_index(records.load_record_rows(file, record))
            index = rows["index"] if index is None else index
            if not np.array_equal(rows["index"], index):
                raise BadFile(
                    f"the rows of {file} belong to other images than the record",
                    hint="evaluate again",
                )
            outcomes |= _record_outcomes(record, rows, file)
        except BadFile as problem:
            # a record may be shared without its rows, but rows that exist must be readable
            if needs_rows or records.rows_path(file).exists():
                problems.append(problem)
    return outcomes


def _sort_by_index(rows: Rows) -> Rows:
    """Sort rows by image index, by which the rows of different models are joined."""
    if (np.diff(rows["index"]) > 0).all():
        return rows
    order = np.argsort(rows["index"], kind="stable")
    return {name: values[order] for name, values in rows.items()}


def _record_outcomes(record: Record, rows: Rows, file: Path) -> dict[AccuracyKey, Outcome]:
    alphas = [row.alpha_test for row in record.by_alpha]
    outcomes = compute_outcomes(rows, stored_config(file, record), alphas)
    if record.calibration:
        calibrated = list_calibrated(measures.calibrate(rows, record.kernel), alphas)
        outcomes |= {("cal", alpha): outcome for alpha, outcome in calibrated.items()}
    return {
        (record.id, f"a_{name}", alpha): outcome
        for (name, alpha), outcome in outcomes.items()
        if outcome is not None
    }


@dataclass(frozen=True)
class Gap:
    """The difference of an accuracy between two rows."""

    # the paired difference, with its interval over test images
    over_images: Difference
    # the 95 % interval over training seeds; None if both rows have a single seed
    over_seeds: tuple[float, float] | None

    @property
    def is_distinguishable(self) -> bool:
        """Whether neither the sample of images nor the training seeds explain the difference."""
        if self.over_seeds is not None:
            low, high = self.over_seeds
            if low <= 0 <= high:
                return False
        return self.over_images.is_distinguishable

    @property
    def verdict(self) -> str:
        """The result of the comparison in words, with the reason where it is not the interval."""
        if self.is_distinguishable:
            return "distinguishable"
        # both are correct on the same weighted images, so that the interval is a single point
        if self.over_images.effective_images == 0:
            return NO_DIFFERING_IMAGE
        excludes_zero = not self.over_images.low <= 0 <= self.over_images.high
        if self.over_images.rests_on_few and excludes_zero:
            return FEW_DIFFERING_IMAGES
        return INDISTINGUISHABLE


def accuracy_gap(
    row: ReportRow, reference: ReportRow, name: str, resampled: ResampledAccuracies
) -> Gap | None:
    """Return the row's accuracy minus the reference's; None if one has not been resampled."""
    own = _resampled_mean(row, name, resampled)
    other = _resampled_mean(reference, name, resampled)
    if own is None or other is None:
        return None
    return Gap(
        over_images=own.minus(other),
        over_seeds=seeds_interval(row.by_training_seed(name), reference.by_training_seed(name)),
    )


def _resampled_mean(row: ReportRow, name: str, resampled: ResampledAccuracies) -> Resampled | None:
    """Return the mean over the row's training seeds; None if one has not been resampled."""
    alpha = None if name in ("a_nat", "a_rob") else row.alpha_test
    seeds = []
    for record in row.records:
        accuracy = resampled.get((record.id, name, alpha))
        if accuracy is None:
            return None
        seeds.append(accuracy)
    # seeds share the resampled images, so that the mean keeps their correlation
    return mean_of(seeds)


def is_worse(row: ReportRow, best: ReportRow, name: str, resampled: ResampledAccuracies) -> bool:
    """Whether a row is significantly worse than the best one.

    The test is paired where rows are available. Otherwise the intervals must not overlap.
    """
    gap = accuracy_gap(row, best, name, resampled)
    if gap is not None:
        return gap.is_distinguishable
    own = row.accuracy(name)
    largest = best.accuracy(name)
    # a degenerate interval has no width, and would never overlap
    if own is None or largest is None or own.degenerate or largest.degenerate:
        return False
    return own.high < largest.low


def list_table_rows(group: ComparisonGroup) -> list[ReportRow]:
    """Return the rows of a group in the main table."""
    rows = (row for entry in group.entries for row in make_group_rows(entry))
    return list(merge_unweighted_rows(rows))


def find_bold_cells(group: ComparisonGroup, resampled: ResampledAccuracies) -> set[tuple[int, str]]:
    """Return the bold cells of a group by row number and field name of the accuracy."""
    # a single entry has nothing to be compared with
    if len(group.entries) < 2:
        return set()
    by_alpha: dict[float | None, dict[int, ReportRow]] = {}
    for number, row in enumerate(list_table_rows(group)):
        by_alpha.setdefault(row.alpha_test, {})[number] = row
    return {
        (number, name)
        for rows_at_alpha in by_alpha.values()
        for name in ALL_ACCURACIES
        for number in _find_best_rows(rows_at_alpha, name, resampled)
    }


def _find_best_rows(
    rows: Mapping[int, ReportRow], name: str, resampled: ResampledAccuracies
) -> list[int]:
    """Return the rows that are not worse than the best; none if this would be all of them."""
    values = {
        number: estimate.value
        for number, row in rows.items()
        if (estimate := row.accuracy(name)) is not None
    }
    if not values:
        return []
    best = max(values, key=lambda number: values[number])
    best_rows = [
        number
        for number in values
        if number == best or not is_worse(rows[number], rows[best], name, resampled)
    ]
    return best_rows if len(best_rows) < len(values) else []


@dataclass(frozen=True)
class Comparison:
    """A row relative to the reference of its group; `gaps` by field name of the accuracy."""

    group: int
    reference: ReportRow
    row: ReportRow
    gaps: dict[str, Gap]


def compare_groups(
    groups: Iterable[ComparisonGroup], resampled: ResampledAccuracies
) -> list[Comparison]:
    """Compare every entry with the first one of its group that has rows, at equal alphas."""
    return [
        comparison
        for number, group in enumerate(groups)
        for comparison in _compare_entries(number, group, resampled)
    ]


def list_compared_entries(group: ComparisonGroup) -> list[SeedGroup]:
    """Return the entries of a group, or the seeds of its only entry."""
    if len(group.entries) > 1:
        return list(group.entries)
    return [(model,) for entry in group.entries for model in entry]


def _compare_entries(
    number: int, group: ComparisonGroup, resampled: ResampledAccuracies
) -> Iterator[Comparison]:
    resampled_ids = {record_id for record_id, _, _ in resampled}
    entries = [
        entry
        for entry in list_compared_entries(group)
        if all(record.id in resampled_ids for model in entry for record in model)
    ]
    if not entries:
        return
    # reversed: of several rows at one alpha, the first is the reference
    references = {row.alpha_test: row for row in reversed(list(make_group_rows(entries[0])))}
    for entry in entries[1:]:
        for row in make_group_rows(entry):
            reference = references.get(row.alpha_test)
            if reference is None:
                continue
            gaps = {name: accuracy_gap(row, reference, name, resampled) for name in ALL_ACCURACIES}
            present = {name: gap for name, gap in gaps.items() if gap is not None}
            yield Comparison(number, reference, row, present)
