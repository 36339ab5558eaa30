"""`trackio`: Trackio of Hugging Face."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from .packages import require_package

if TYPE_CHECKING:
    from ...core.protocols import EvaluationTable, LoggedRun


@dataclass
class TrackioLogger:
    """Logs to a project of Trackio: on this machine, or on the Hugging Face Space `space`.

    A new Space is private. Its environment variables apply, such as TRACKIO_DIR.
    """

    project: str = "wmr"
    space: str | None = None
    _run: Any = field(init=False, repr=False, default=None)
    _epoch: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        require_package("trackio", "trackio")

    def open(self, run: "LoggedRun") -> str:
        import trackio

        # Trackio finds a run by its name, and several folders may have the same one
        name = run.tracker_id or f"{run.name}-{uuid4().hex[:8]}"
        self._epoch = run.epoch
        self._run = trackio.init(
            project=self.project,
            name=name,
            space_id=self.space,
            # of a Space that does not exist yet
            private=True,
            config=dict(run.config),
            resume="never" if run.tracker_id is None else "allow",
            embed=False,
        )
        return name

    def log_epoch(self, epoch: int, metrics: Mapping[str, float]) -> None:
        self._epoch = epoch
        self._run.log(dict(metrics), step=epoch)

    def log_evaluation(self, table: "EvaluationTable") -> None:
        import trackio

        rows = [list(row) for row in table.rows]
        found = trackio.Table(columns=list(table.columns), data=rows)
        self._run.log({**table.metrics, "evaluation": found}, step=self._epoch)

    def log_file(self, path: Path) -> None:
        self._run.log_artifact(path, name=f"{self._run.name}-{path.stem}", type=path.stem)

    def close(self, *, is_complete: bool) -> None:
        self._run.finish()
