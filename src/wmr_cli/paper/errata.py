"""The paper's rows with known misprints corrected, each with its reason."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from .results import PaperRow, load_results

MARKS = ("†", "‡", "§", "¶")


@dataclass(frozen=True)
class CorrectedRow:
    """A row as it should read, and by field why it is not as printed or not to be relied on."""

    table: str
    dataset: str
    row: PaperRow
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def family(self) -> str:
        """The defense without weights: `TRADES` for TRADES+ours."""
        return self.row.defense.removesuffix("+ours")


def load_corrected_rows() -> list[CorrectedRow]:
    """All rows of all tables, in their order."""
    return [
        _correct(table.name, table.dataset, row)
        for table in load_results().tables
        for row in table.rows
    ]


def _correct(table: str, dataset: str, row: PaperRow) -> CorrectedRow:
    reasons, changes = {}, {}
    for erratum in load_results().errata:
        if (erratum.table, erratum.line) == (table, row.line):
            changes[erratum.field] = erratum.corrected
            what = "left out, printed" if erratum.corrected is None else "corrected, printed"
            doubt = "" if erratum.confidence == "high" else " (likely, not certain)"
            reasons[erratum.field] = f"{what} {erratum.printed}: {erratum.why}{doubt}"
    fixed = msgspec.convert({**msgspec.to_builtins(row), **changes}, PaperRow)
    for dispute in load_results().disputed:
        mine = (dataset, fixed.defense, fixed.alpha_train, getattr(fixed, dispute.field))
        if mine == (
            dispute.dataset,
            dispute.defense,
            dispute.alpha_train,
            dispute.values.get(table),
        ):
            reasons[dispute.field] = "disputed: " + " and ".join(
                f"{value} in {name}" for name, value in dispute.values.items()
            )
    return CorrectedRow(table, dataset, fixed, reasons)


class Footnotes:
    """Marks for reasons, in the order in which they are met: †, ‡, §, ¶, ††, …"""

    def __init__(self) -> None:
        self._marks: dict[str, str] = {}

    def mark(self, reasons: Iterable[str]) -> str:
        """The marks of these reasons."""
        for reason in (found := list(reasons)):
            number = len(self._marks)
            self._marks.setdefault(reason, MARKS[number % len(MARKS)] * (1 + number // len(MARKS)))
        return "".join(self._marks[reason] for reason in found)

    def notes(self) -> tuple[str, ...]:
        """Every mark with its reason."""
        return tuple(f"{mark} {reason}" for reason, mark in self._marks.items())
