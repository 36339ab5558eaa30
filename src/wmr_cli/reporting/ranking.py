"""Which numbers may be set in bold, and what lies between two lines.

Bold is the best of its column and everything that cannot be told from it, among lines at one alpha_test that were measured
alike. Where that is every line, or where there is only one model, nothing is bold: it would say nothing.

Differences between models on the same images, for `wmr report --compare`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ..measures import Difference, Resampled, mean_of, seeds_interval
from ..spec import format_number
from .grouping import ComparisonGroup, SeedGroup
from .rows import (
    ACCURACIES,
    ATTACK_SEPARATOR,
    AttackNames,
    ReportRow,
    attack_name,
    describe_conditions,
    make_group_rows,
    row_name,
)
from .tables.escaping import csv_text
from .tables.formatting import points
from .tables.text_table import TextTable

ResampledAccuracies = Mapping[tuple[str, str, float | None], Resampled]
"""By id of a record, share and alpha: what its rows say in every resample of the images. A_nat and A_rob have no alpha."""


@dataclass(frozen=True)
class Gap:
    """One line's share minus another's: over images, resampled together, and over seeds where one of them has several."""

    images: Difference
    seeds: tuple[float, float] | None

    @property
    def is_distinguishable(self) -> bool:
        """Whether neither the draw of images nor that of training seeds explains the difference."""
        return self.images.is_distinguishable and not (
            self.seeds and self.seeds[0] <= 0 <= self.seeds[1]
        )


def accuracy_gap(
    line: ReportRow, other: ReportRow, name: str, resampled: ResampledAccuracies
) -> Gap | None:
    """What lies between two lines; none where the rows of one are not there."""
    sides = [_resampled(side, name, resampled) for side in (line, other)]
    if sides[0] is None or sides[1] is None:
        return None
    return Gap(
        sides[0].minus(sides[1]),
        seeds_interval(line.by_training_seed(name), other.by_training_seed(name)),
    )


def is_worse(line: ReportRow, best: ReportRow, name: str, resampled: ResampledAccuracies) -> bool:
    """Whether a line is worse than the best: by pairs of images where rows are there, else where intervals do not overlap."""
    found, below, above = (
        accuracy_gap(line, best, name, resampled),
        line.accuracy(name),
        best.accuracy(name),
    )
    if found is not None:
        return found.is_distinguishable
    if below is None or above is None or below.degenerate or above.degenerate:
        return False
    return below.high < above.low


def find_bold_cells(group: ComparisonGroup, resampled: ResampledAccuracies) -> set[tuple[int, str]]:
    """Which shares are bold: by number of the line among all lines of these group, and name of the share."""
    if len(group.entries) < 2:
        return set()
    places: dict[float | None, list[tuple[int, ReportRow]]] = {}
    for number, line in enumerate(
        line for entry in group.entries for line in make_group_rows(entry)
    ):
        places.setdefault(line.alpha_test, []).append((number, line))
    return {
        (number, name)
        for at_alpha in places.values()
        for name in ACCURACIES
        for number in _best_rows(at_alpha, name, resampled)
    }


def _best_rows(
    lines: Sequence[tuple[int, ReportRow]], name: str, resampled: ResampledAccuracies
) -> list[int]:
    shares = {
        number: share.value for number, line in lines if (share := line.accuracy(name)) is not None
    }
    if not shares:
        return []
    there = {number: line for number, line in lines if number in shares}
    best = there[max(shares, key=lambda number: shares[number])]
    held = [
        number
        for number, line in there.items()
        if line is best or not is_worse(line, best, name, resampled)
    ]
    return held if len(held) < len(there) else []


def _resampled(line: ReportRow, name: str, resampled: ResampledAccuracies) -> Resampled | None:
    alpha = line.alpha_test if name in ("a_sa", "a_tr") else None
    members = [resampled.get((record.id, name, alpha)) for record in line.records]
    there = [member for member in members if member is not None]
    return mean_of(there) if len(there) == len(members) else None


INDISTINGUISHABLE = "not distinguishable"
NO_DIFFERING_IMAGE, FEW_DIFFERING_IMAGES = (
    f"{INDISTINGUISHABLE} (no image makes a difference)",
    f"{INDISTINGUISHABLE} (few images)",
)
CAPTION = (
    "percentage points, with 95 % intervals of the paired difference: both models are resampled "
    "on the same test images. Where an interval contains 0, or fewer than six images make the "
    f"difference, the two are {INDISTINGUISHABLE}"
)
SEEDS_NOTE = (
    "seeds: the 95 % interval of the difference over training seeds, which must exclude 0 as well"
)
CSV_HEADINGS = (
    "reference", "run", "dataset", "n", "norm", "eps", "attack", "share", "alpha_test", "difference", "low", "high", "images",
    "seeds_low", "seeds_high", "verdict", "worst_of",
)  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """A line against the reference of its group, given by number; `gaps` by name of the share, where both have it."""

    group: int
    reference: ReportRow
    line: ReportRow
    gaps: dict[str, Gap]


def compare_groups(
    found: Iterable[ComparisonGroup], resampled: ResampledAccuracies
) -> list[Comparison]:
    """Every entry against the first of its group that has rows, alpha by alpha."""
    return [
        comparison
        for number, group in enumerate(found)
        for comparison in _among(number, group, resampled)
    ]


def list_compared_groups(group: ComparisonGroup) -> list[SeedGroup]:
    """What is compared: the entries, or the seeds of the only one."""
    return (
        list(group.entries)
        if len(group.entries) > 1
        else [(model,) for entry in group.entries for model in entry]
    )


def _among(
    number: int, group: ComparisonGroup, resampled: ResampledAccuracies
) -> Iterator[Comparison]:
    known = {name for name, _, _ in resampled}
    entries = [
        entry
        for entry in list_compared_groups(group)
        if all(record.id in known for model in entry for record in model)
    ]
    for entry in entries[1:]:
        reference = {line.alpha_test: line for line in reversed(list(make_group_rows(entries[0])))}
        for line in make_group_rows(entry):
            if line.alpha_test in reference:
                against = reference[line.alpha_test]
                gaps = {
                    name: found
                    for name in ACCURACIES
                    if (found := accuracy_gap(line, against, name, resampled)) is not None
                }
                yield Comparison(number, against, line, gaps)


def make_comparison_tables(
    compared: Sequence[Comparison], attacks: AttackNames
) -> Iterator[TextTable]:
    """One sheet for each reference."""
    for _, members in groupby(compared, key=lambda comparison: comparison.group):
        yield _make_table(list(members), attacks)


def _make_table(compared: Sequence[Comparison], attacks: AttackNames) -> TextTable:
    first = compared[0].reference.record
    names, under = tuple(ACCURACIES.values()), describe_conditions(first, attacks.name(first))
    has_seeds = any(found.seeds for comparison in compared for found in comparison.gaps.values())
    return TextTable(
        headings=("run", "α_test", *names),
        rows=[
            (
                row_name(comparison.line),
                "-"
                if comparison.line.alpha_test is None
                else format_number(comparison.line.alpha_test),
                *(_text(comparison.gaps.get(name)) for name in ACCURACIES),
            )
            for comparison in compared
        ],
        caption=CAPTION,
        title=f"difference to {row_name(compared[0].reference)} {under}, on {first.dataset.n} images",
        text_columns=("run",),
        shared_columns=("run",),
        interval_columns=names,
        notes=(*attacks.notes([first]), *((SEEDS_NOTE,) if has_seeds else ())),
    )


def _text(found: Gap | None) -> str:
    """`+1.2 [+0.3, +2.1]`, or with what keeps the two from being told apart."""
    if found is None:
        return "-"
    said = points(found.images)
    if found.seeds is not None:
        low, high = (f"{100 * end:+.1f}" for end in found.seeds)
        said += f"; seeds {low} to {high}"
    return said if found.is_distinguishable else f"{said}; {verdict(found)}"


def verdict(found: Gap) -> str:
    """What a reader is told of a difference in words."""
    if found.is_distinguishable:
        return "distinguishable"
    if found.images.images == 0:
        return NO_DIFFERING_IMAGE
    return (
        FEW_DIFFERING_IMAGES
        if found.images.rests_on_few and not found.images.low <= 0 <= found.images.high
        else INDISTINGUISHABLE
    )


def comparisons_to_csv(compared: Iterable[Comparison], attacks: AttackNames) -> str:
    """A line per difference, as fractions."""
    return csv_text(
        CSV_HEADINGS,
        (
            _values(comparison, name, found, attacks)
            for comparison in compared
            for name, found in comparison.gaps.items()
        ),
    )


def _values(comparison: Comparison, name: str, found: Gap, attacks: AttackNames) -> list[Any]:
    record, over = comparison.line.record, found.images
    return [
        row_name(comparison.reference), row_name(comparison.line), record.dataset.name, record.dataset.n, record.threat.norm,
        record.threat.eps, attack_name(record), name, comparison.line.alpha_test, over.value, over.low, over.high, over.images,
        *(found.seeds or (None, None)), verdict(found), ATTACK_SEPARATOR.join(attacks.of(record)),
    ]  # fmt: skip


def comparisons_to_json(compared: Iterable[Comparison]) -> list[dict[str, Any]]:
    """The same for JSON, each line with the ids of its records."""
    return [
        {
            "reference": {
                "run": row_name(comparison.reference),
                "ids": [record.id for record in comparison.reference.records],
            },
            "run": row_name(comparison.line),
            "ids": [record.id for record in comparison.line.records],
            "alpha_test": comparison.line.alpha_test,
            **{name: _data(found) for name, found in comparison.gaps.items()},
        }
        for comparison in compared
    ]


def _data(found: Gap) -> dict[str, Any]:
    over = {
        "value": found.images.value,
        "low": found.images.low,
        "high": found.images.high,
        "images": found.images.images,
    }
    seeds = (
        {} if found.seeds is None else {"seeds": {"low": found.seeds[0], "high": found.seeds[1]}}
    )
    return {**over, **seeds, "verdict": verdict(found)}
