"""The check of loggers accepts a correct one, and refuses each kind of violation."""

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from wmr_cli.core import EvaluationTable, LoggedRun
from wmr_cli.testing import check_logger


class Correct:
    """Counts runs."""

    runs = 0

    def open(self, run: LoggedRun) -> Any:  # noqa: ANN401 - some are not ids
        self.run = run
        if run.tracker_id is None:
            Correct.runs += 1
        return run.tracker_id or str(Correct.runs)

    def log_epoch(self, epoch: int, metrics: Mapping[str, float]) -> None:
        pass

    def log_evaluation(self, table: EvaluationTable) -> None:
        pass

    def log_file(self, path: Path) -> None:
        assert path.read_text()

    def close(self, *, is_complete: bool) -> None:
        pass


def make(method: str, action: Callable[..., Any]) -> type[Correct]:
    """Return a class with another method."""
    return type("Wrong", (Correct,), {method: action})


def test_a_correct_logger_meets_the_contract() -> None:
    check_logger(Correct)


@pytest.mark.parametrize(
    ("method", "action", "problem"),
    [
        ("close", None, "has open"),
        ("open", lambda self, run: 3, "neither text nor None"),
        ("open", lambda self, run: "same", "two runs"),
        ("open", lambda self, run: f"{run.name}{run.epoch}", "another id"),
        ("log_epoch", lambda self, epoch, metrics: metrics.clear(), "changed the metrics"),
        ("log_epoch", lambda self, *_: self.run.config.clear(), "changed the settings"),
        ("log_evaluation", lambda self, table: table.metrics.clear(), "changed the table"),
        ("log_evaluation", lambda self, table: random.random(), "`random`"),
        ("log_evaluation", lambda self, table: np.random.rand(), "`numpy.random`"),
        ("log_file", lambda self, path: torch.rand(1), "numbers of torch"),
        (
            "close",
            lambda self, is_complete: (self.run.folder / "log.jsonl").unlink(),
            r"log\.jsonl",
        ),
        ("log_files", lambda self, path: None, "did you mean `log_file`"),
    ],
)
def test_each_violation_is_refused(method: str, action: Callable[..., Any], problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        check_logger(make(method, action))
