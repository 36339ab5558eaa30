"""The paper's rows with known misprints corrected, each with its reason."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from .results import Dispute, Erratum, PaperRow, load_results

# in the order that is usual in print
MARKS = ("†", "‡", "§", "¶")


@dataclass(frozen=True)
class CorrectedRow:
    """A row with corrections; `reasons` has a text for each corrected or disputed field."""

    table: str
    dataset: str
    row: PaperRow
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def family(self) -> str:
        """The defense without weights: `TRADES` for TRADES+ours."""
        return self.row.defense.removesuffix("+ours")


def load_corrected_rows() -> list[CorrectedRow]:
    """Return all rows of all tables, in their order."""
    return [
        _correct_row(table.name, table.dataset, row)
        for table in load_results().tables
        for row in table.rows
    ]


def _correct_row(table: str, dataset: str, row: PaperRow) -> CorrectedRow:
    results = load_results()
    errata = [one for one in results.errata if (one.table, one.line) == (table, row.line)]
    changes = {erratum.field: erratum.corrected for erratum in errata}
    corrected = msgspec.convert({**msgspec.to_builtins(row), **changes}, PaperRow)
    reasons = {erratum.field: _describe_erratum(erratum) for erratum in errata}
    # a dispute concerns the corrected value, so that errata come first
    for dispute in results.disputed:
        if _is_disputed(table, dataset, corrected, dispute):
            values = [f"{value} in {name}" for name, value in dispute.values.items()]
            reasons[dispute.field] = "disputed: " + " and ".join(values)
    return CorrectedRow(table, dataset, corrected, reasons)


def _describe_erratum(erratum: Erratum) -> str:
    # without a correction the cell stays empty
    action = "left out" if erratum.corrected is None else "corrected"
    certainty = "" if erratum.confidence == "high" else " (likely, not certain)"
    return f"{action}, printed {erratum.printed}: {erratum.why}{certainty}"


def _is_disputed(table: str, dataset: str, row: PaperRow, dispute: Dispute) -> bool:
    is_same_method = (dataset, row.defense, row.alpha_train) == (
        dispute.dataset,
        dispute.defense,
        dispute.alpha_train,
    )
    return is_same_method and getattr(row, dispute.field) == dispute.values.get(table)


class Footnotes:
    """Marks for reasons, in order of appearance: †, ‡, §, ¶, ††, …"""

    def __init__(self) -> None:
        self._marks: dict[str, str] = {}

    def mark(self, reasons: Iterable[str]) -> str:
        """Return the marks of these reasons; a new reason gets the next mark."""
        marks = []
        for reason in reasons:
            if reason not in self._marks:
                repeats, number = divmod(len(self._marks), len(MARKS))
                self._marks[reason] = MARKS[number] * (1 + repeats)
            marks.append(self._marks[reason])
        return "".join(marks)

    def notes(self) -> tuple[str, ...]:
        """Return every mark with its reason."""
        return tuple(f"{mark} {reason}" for reason, mark in self._marks.items())
