"""`wandb`: Weights & Biases."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .packages import require_package

if TYPE_CHECKING:
    from ...core.protocols import EvaluationTable, LoggedRun


@dataclass
class WandbLogger:
    """Logs to a project of Weights & Biases. Its environment variables apply, such as WANDB_DIR.

    With `mode=offline` it writes to `wandb/` only, for `wandb sync`.
    """

    project: str = "wmr"
    entity: str | None = None
    mode: Literal["online", "offline"] | None = None
    _run: Any = field(init=False, repr=False, default=None)
    _epoch: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        require_package("wandb", "wandb")

    def open(self, run: "LoggedRun") -> str:
        import wandb

        self._run = wandb.init(
            project=self.project,
            entity=self.entity,
            mode=self.mode,
            name=run.name,
            config=dict(run.config),
            id=run.tracker_id,
            resume=None if run.tracker_id is None else "allow",
            # another run of this process stays open
            reinit="create_new",
            # progress bars are not output to record
            settings=wandb.Settings(console="off", silent=True),
        )
        # epochs on the axis, because evaluations are steps as well
        self._run.define_metric("epoch")
        self._run.define_metric("*", step_metric="epoch")
        if not self._run.offline:
            print(f"wandb: {self._run.url}")  # noqa: T201 - `wmr` shows it as a message
        self._epoch = run.epoch
        return str(self._run.id)

    def log_epoch(self, epoch: int, metrics: Mapping[str, float]) -> None:
        self._epoch = epoch
        self._run.log({**metrics, "epoch": epoch}, step=self._next_step(epoch))

    def _next_step(self, least: int) -> int:
        """Return a step that wandb does not drop: its steps cannot go back."""
        # an offline run that is continued counts from 0
        return max(int(self._run.step), least)

    def log_evaluation(self, table: "EvaluationTable") -> None:
        import wandb

        rows = [list(row) for row in table.rows]
        # cells of a column are numbers in one row and empty in another
        found = wandb.Table(columns=list(table.columns), data=rows, allow_mixed_types=True)
        row = {"evaluation": found, "epoch": self._epoch}
        self._run.log(row, step=self._next_step(self._epoch + 1))
        self._run.summary.update(dict(table.metrics))

    def log_file(self, path: Path) -> None:
        import wandb

        artifact = wandb.Artifact(f"{self._run.id}-{path.stem}", type=path.stem)
        artifact.add_file(str(path))
        self._run.log_artifact(artifact)

    def close(self, *, is_complete: bool) -> None:
        self._run.finish(exit_code=0 if is_complete else 1)
