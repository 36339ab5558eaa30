"""`csv`: tables for spreadsheets."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...core.protocols import EvaluationTable, LoggedRun


class CsvLogger:
    """Writes `csv/metrics.csv`, a row per epoch, and `csv/evaluations.csv` in the run folder."""

    _folder: Path
    _rows: dict[int, dict[str, Any]]
    """Metrics by epoch."""

    def open(self, run: "LoggedRun") -> None:
        self._folder = run.folder / "csv"
        self._folder.mkdir(exist_ok=True)
        self._rows = {}
        if run.epoch:
            with self._metrics.open(newline="") as file:
                found = {int(row["step"]): row for row in csv.DictReader(file)}
            self._rows = {epoch: row for epoch, row in found.items() if epoch <= run.epoch}

    @property
    def _metrics(self) -> Path:
        return self._folder / "metrics.csv"

    def log_epoch(self, epoch: int, metrics: Mapping[str, float]) -> None:
        self._rows[epoch] = {**metrics, "step": epoch}
        # not every epoch is validated, so that columns may appear later
        columns = sorted({name for row in self._rows.values() for name in row})
        rows = [[row.get(name, "") for name in columns] for row in self._rows.values()]
        _write(self._metrics, columns, rows)

    def log_evaluation(self, table: "EvaluationTable") -> None:
        _write(self._folder / "evaluations.csv", table.columns, table.rows)

    def close(self, *, is_complete: bool) -> None:
        """Do nothing: every file is complete."""


def _write(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Replace a file, so that readers never see a part of it."""
    temporary = path.with_name(f".{path.name}.tmp")
    # a link in its place would lead outside the run folder
    temporary.unlink(missing_ok=True)
    with temporary.open("x", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    temporary.replace(path)
