"""`tensorboard`: event files for TensorBoard."""

import importlib
import importlib.util
import json
import shutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .packages import require_package

if TYPE_CHECKING:
    from ...core.protocols import EvaluationTable, LoggedRun


class TensorBoardLogger:
    """Writes `tensorboard/` in the run folder: a scalar per metric, tables as text."""

    _writer: Any
    _epoch: int

    def __init__(self) -> None:
        require_package("tensorboard", "tensorboard", "tensorboardX")

    def open(self, run: "LoggedRun") -> None:
        folder = run.folder / "tensorboard"
        if not run.epoch:
            shutil.rmtree(folder, ignore_errors=True)
        self._epoch = run.epoch
        # TensorBoard drops later epochs of earlier files: a crash may have cut them off
        self._writer = _writer_class()(str(folder), purge_step=run.epoch + 1 if run.epoch else None)
        if not run.epoch:
            config = json.dumps(run.config, indent=2)
            self._writer.add_text("config", _as_code(config), 0)
        self._writer.flush()

    def log_epoch(self, epoch: int, metrics: Mapping[str, float]) -> None:
        self._epoch = epoch
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, epoch)
        self._writer.flush()

    def log_evaluation(self, table: "EvaluationTable") -> None:
        rows = [table.columns, ["---"] * len(table.columns), *table.rows]
        lines = ["|".join("" if cell is None else str(cell) for cell in row) for row in rows]
        self._writer.add_text("evaluation", "\n".join(lines), self._epoch)
        for name, value in table.metrics.items():
            self._writer.add_scalar(name, value, self._epoch)

    def close(self, *, is_complete: bool) -> None:
        self._writer.close()


def _writer_class() -> Any:  # noqa: ANN401 - of one of two packages without types
    name = "torch.utils.tensorboard" if importlib.util.find_spec("tensorboard") else "tensorboardX"
    return importlib.import_module(name).SummaryWriter


def _as_code(text: str) -> str:
    # Markdown shows indented lines as they are
    return "\n".join(f"    {line}" for line in text.splitlines())
