"""`mlflow`: MLflow."""

import csv
import io
import logging
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .packages import require_package

if TYPE_CHECKING:
    from ...core.protocols import EvaluationTable, LoggedRun

MAX_PARAM_LENGTH = 500
"""Characters of a parameter's value that every version of MLflow stores."""
PARAMS_PER_CALL = 100


@dataclass
class MlflowLogger:
    """Logs to an experiment of MLflow. Its environment variables apply: MLFLOW_TRACKING_URI.

    `uri` is the place of the runs, such as `sqlite:///mlflow.db` or the address of a server.
    """

    experiment: str = "wmr"
    uri: str | None = None
    _client: Any = field(init=False, repr=False, default=None)
    _run_id: str = field(init=False, repr=False, default="")
    _epoch: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        require_package("mlflow", "mlflow")

    def open(self, run: "LoggedRun") -> str:
        import mlflow

        # what it does with its database is not of interest
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        self._client = mlflow.MlflowClient(tracking_uri=self.uri)
        self._epoch = run.epoch
        if run.tracker_id is not None:
            self._run_id = run.tracker_id
            self._client.update_run(self._run_id, status="RUNNING")
            return self._run_id
        found = self._client.get_experiment_by_name(self.experiment)
        experiment_id = (
            self._client.create_experiment(self.experiment)
            if found is None
            else found.experiment_id
        )
        self._run_id = self._client.create_run(experiment_id, run_name=run.name).info.run_id
        params = [
            mlflow.entities.Param(key, value[:MAX_PARAM_LENGTH])
            for key, value in _flatten(run.config)
        ]
        for start in range(0, len(params), PARAMS_PER_CALL):
            self._client.log_batch(self._run_id, params=params[start : start + PARAMS_PER_CALL])
        return self._run_id

    def log_epoch(self, epoch: int, metrics: Mapping[str, float]) -> None:
        self._epoch = epoch
        self._log(metrics)

    def log_evaluation(self, table: "EvaluationTable") -> None:
        self._log(table.metrics)
        text = io.StringIO()
        csv.writer(text).writerows([table.columns, *table.rows])
        self._client.log_text(self._run_id, text.getvalue(), "evaluations.csv")

    def log_file(self, path: Path) -> None:
        self._client.log_artifact(self._run_id, str(path))

    def close(self, *, is_complete: bool) -> None:
        self._client.set_terminated(self._run_id, "FINISHED" if is_complete else "KILLED")

    def _log(self, metrics: Mapping[str, float]) -> None:
        import mlflow

        now = int(1000 * time.time())
        found = [
            mlflow.entities.Metric(_valid_name(name), float(value), now, self._epoch)
            for name, value in metrics.items()
        ]
        self._client.log_batch(self._run_id, metrics=found)


def _flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield settings as text, those of a table as `table.setting`."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)


def _valid_name(name: str) -> str:
    """Replace characters that MLflow does not accept in the name of a metric."""
    return re.sub(r"[^\w. /-]", "_", name, flags=re.ASCII)
