"""The contract of a logger."""

import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from ..core.protocols import EvaluationTable, LoggedRun, Logger, LogsFiles
from .fixtures import require, require_spelling

FILES_OF_THE_RUN = ("config.json", "log.jsonl", "loggers.json")
METHODS = ("open", "log_epoch", "log_evaluation", "log_file", "close")


def check_logger(make: Callable[[], Logger]) -> None:
    """Check a logger with a run of three epochs that is continued once, and with a second run.

    `make` is the class or function itself. A logger accepts every kind of name and cell, changes
    neither its arguments nor files of the run, and draws no random numbers. Its id of a run stays
    the same when the run is continued, and is another one for another run.
    """
    with tempfile.TemporaryDirectory() as temporary:
        run = _make_run(Path(temporary) / "first")
        with _random_state_unchanged():
            tracker_id = _log(make(), run, [1, 2], is_complete=False)
            again = replace(run, tracker_id=tracker_id, epoch=2)
            continued = _log(make(), again, [3], is_complete=True)
            other = _log(make(), _make_run(Path(temporary) / "second"), [1], is_complete=True)
        require(continued == tracker_id, "`open` of a continued run returns another id")
        require(other is None or other != tracker_id, "two runs have the same id")


def _make_run(folder: Path) -> LoggedRun:
    folder.mkdir()
    for name in FILES_OF_THE_RUN:
        (folder / name).write_text("{}")
    config = {"alpha": 2.0, "init": None, "milestones": [1, 2], "evaluate": {"metrics": ["nat"]}}
    return LoggedRun(folder.name, folder, config)


def _log(logger: Logger, run: LoggedRun, epochs: list[int], *, is_complete: bool) -> str | None:
    """Log epochs and an evaluation; return the id of the run."""
    require(isinstance(logger, Logger), "a logger has open, log_epoch, log_evaluation and close")
    require_spelling(logger, METHODS, "the logger")
    config = repr(run.config)
    tracker_id = logger.open(run)
    is_id = tracker_id is None or (isinstance(tracker_id, str) and tracker_id != "")
    require(is_id, "`open` returns neither text nor None")
    for epoch in epochs:
        metrics = {"loss": 1.0 / epoch, "weight_max": 1.0}
        if epoch > 1:  # not every epoch is validated
            metrics["val_a_sa@2"] = 0.5
        before = dict(metrics)
        logger.log_epoch(epoch, metrics)
        require(metrics == before, "`log_epoch` changed the metrics")
    table = EvaluationTable(
        ("run", "alpha_test", "a_rob", "verifier"),
        (("first", 1.0, 0.5, None), ("first", None, 0.25, "ibp:margin=1e-5, α")),
        {"test/pgd:steps=2,step=1e-3/0.3 l2/a_sa@1.5": 0.5},
    )
    before_table = repr(table)
    # the evaluations may be logged again, with more rows
    for _ in range(2):
        logger.log_evaluation(table)
        if isinstance(logger, LogsFiles):
            page = run.folder.parent / "report.html"
            page.write_text("<!doctype html>")
            logger.log_file(page)
    logger.close(is_complete=is_complete)
    require(repr(table) == before_table, "`log_evaluation` changed the table")
    require(repr(run.config) == config, "the logger changed the settings of the run")
    for name in FILES_OF_THE_RUN:
        file = run.folder / name
        is_same = file.is_file() and file.read_text() == "{}"
        require(is_same, f"the logger changed {name} of the run folder")
    return tracker_id


@contextmanager
def _random_state_unchanged() -> Iterator[None]:
    """Require that the code inside draws no random numbers: they belong to the training."""
    before = (random.getstate(), repr(np.random.get_state()), torch.get_rng_state())
    yield
    require(random.getstate() == before[0], "the logger changed the state of `random`")
    state = repr(np.random.get_state())
    require(state == before[1], "the logger changed the state of `numpy.random`")
    require(torch.equal(torch.get_rng_state(), before[2]), "the logger drew numbers of torch")
