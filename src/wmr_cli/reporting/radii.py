"""Evaluations of one model under one attack at several radii, and the critical eps of images."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .. import measures
from ..errors import BadFile, BadInput
from ..measures.accuracy import Floats
from ..spec import Spec, format_number
from ..storage import records
from ..storage.records import Record, Rows
from .rows import ATTACK_SEPARATOR, attack_name, list_combined_attacks, run_name
from .tables.escaping import csv_text
from .tables.formatting import format_percent
from .tables.text_table import TextTable

CSV_HEADINGS = (
    "run", "dataset", "split", "norm", "attack", "index", "label", "critical_eps", "largest_eps",
)  # fmt: skip
HEADINGS = ("run", "attack", "norm", "ε", "clean", "median", "robust")
CAPTION = (
    "critical ε: the smallest measured ε at which an image is misclassified, also at every larger "
    "one; clean: images misclassified without an attack, median: over all images, robust: images "
    "that are correct at every ε (percent)"
)


@dataclass(frozen=True)
class RadiusSeries:
    """Records that differ in eps only, by increasing eps, with their files."""

    attack: str
    """without eps and step size"""
    found: tuple[tuple[Path, Record], ...]

    @property
    def record(self) -> Record:
        """The record of the smallest radius, for facts that all share."""
        return self.found[0][1]

    @property
    def radii(self) -> list[float]:
        """The radii, increasing."""
        return [record.threat.eps for _, record in self.found]


def find_attack_kind(record: Record, known: Mapping[str, Record]) -> Hashable:
    """Return what records at different radii share about their attack.

    A step size may grow with eps, so it does not count.
    """
    if record.attack.of is None:
        spec = Spec.parse(record.attack.spec).without("step", "eps")
        return str(spec), record.attack.restarts, record.attack.seed
    parts = [known[name] for name in record.attack.of if name in known]
    kinds = [find_attack_kind(part, {}) for part in parts]
    # without its attacks a worst case cannot be compared
    missing = () if len(parts) == len(record.attack.of) else tuple(record.attack.of)
    return "worst", tuple(sorted(map(str, kinds))), missing


def group_radii(found: Sequence[tuple[Path, Record]]) -> list[RadiusSeries]:
    """Return a series for every model, images and attack with records at several radii."""
    known = {record.id: record for _, record in found}
    groups: dict[Hashable, dict[float, tuple[Path, Record]]] = {}
    for file, record in found:
        # clean accuracy alone has no radius
        if record.a_rob is None:
            continue
        data = record.dataset
        key = (
            record.checkpoint.sha256,
            run_name(record),
            (data.sha256, None if data.indices is None else tuple(data.indices)),
            record.threat.norm,
            find_attack_kind(record, known),
            record.kernel,
        )
        # of two records at one radius the first counts, as in tables
        groups.setdefault(key, {}).setdefault(record.threat.eps, (file, record))
    return [
        RadiusSeries(
            name_attack_kind(next(iter(members.values()))[1], known),
            tuple(members[eps] for eps in sorted(members)),
        )
        for members in groups.values()
        if len(members) > 1
    ]


def name_attack_kind(record: Record, known: Mapping[str, Record]) -> str:
    """Return the name of an attack without eps and step size, also of those in a worst case."""
    if record.attack.of is None:
        return str(Spec.parse(attack_name(record)).without("step", "eps"))
    names = list_combined_attacks(record, known)
    if all(name in known for name in record.attack.of):
        names = tuple(sorted(name_attack_kind(known[name], {}) for name in record.attack.of))
    return f"worst of {ATTACK_SEPARATOR.join(names)}"


@dataclass(frozen=True)
class CriticalRadii:
    """The critical eps of every image of a series, (N,); infinity if none was found."""

    series: RadiusSeries
    index: NDArray[np.int64]
    label: NDArray[np.int64]
    critical: Floats

    @classmethod
    def of(cls, series: RadiusSeries, rows_by_eps: Mapping[float, Rows]) -> "CriticalRadii":
        """Compute the critical eps from the rows at every eps."""
        first = next(iter(rows_by_eps.values()))
        # equal hashes of the images do not prove that rows have the same order
        if any(not np.array_equal(first["index"], rows["index"]) for rows in rows_by_eps.values()):
            raise BadInput("the rows are not of the same images", hint="evaluate again")
        critical = measures.critical_eps(
            {eps: measures.is_correct(rows, "uniform") for eps, rows in rows_by_eps.items()},
            measures.is_correct(first, "clean"),
        )
        return cls(series, first["index"], first["label"], critical)


def load_critical_radii(
    found: Sequence[tuple[Path, Record]],
) -> tuple[list[CriticalRadii], list[BadFile]]:
    """Return the critical radii of every series, and the files that could not be read."""
    loaded: list[CriticalRadii] = []
    problems: list[BadFile] = []
    for series in group_radii(found):
        try:
            rows = {
                record.threat.eps: records.load_record_rows(file, record)
                for file, record in series.found
            }
        except BadFile as problem:
            problems.append(problem)
            continue
        loaded.append(CriticalRadii.of(series, rows))
    return loaded, problems


def make_radius_table(all_radii: Sequence[CriticalRadii]) -> TextTable:
    """Make a table with a row per series."""
    return TextTable(
        headings=HEADINGS,
        rows=[
            (
                run_name(one.series.record),
                one.series.attack,
                one.series.record.threat.norm,
                f"{len(one.series.radii)} from {format_number(one.series.radii[0])} "
                f"to {format_number(one.series.radii[-1])}",
                format_percent(float((one.critical == 0).mean())),
                _format_median(one),
                format_percent(float(np.isinf(one.critical).mean())),
            )
            for one in all_radii
        ],
        caption=CAPTION,
        title="critical ε",
        text_columns=HEADINGS[:4],
        shared_columns=HEADINGS[:4],
    )


def _format_median(one: CriticalRadii) -> str:
    # an image between two measured radii counts at the larger one
    middle = float(np.sort(one.critical)[(len(one.critical) - 1) // 2])
    if middle == np.inf:
        return f"> {format_number(one.series.radii[-1])}"
    return format_number(middle)


def radii_to_csv(all_radii: Sequence[CriticalRadii]) -> str:
    """Return a CSV row per image; without a critical eps the cell is empty."""
    return csv_text(CSV_HEADINGS, [row for one in all_radii for row in _list_images(one)])


def _list_images(one: CriticalRadii) -> Iterator[list[object]]:
    record = one.series.record
    facts = [
        run_name(record),
        record.dataset.name,
        record.dataset.split,
        record.threat.norm,
        one.series.attack,
    ]
    largest = one.series.radii[-1]
    for index, label, eps in zip(
        one.index.tolist(), one.label.tolist(), one.critical.tolist(), strict=True
    ):
        yield [*facts, index, label, None if eps == np.inf else eps, largest]
