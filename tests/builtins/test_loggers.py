"""What each logger sends to its tool. `tests/trackers` reads it back with the real tools."""

import csv
from pathlib import Path
from typing import Any

import pytest

from support.builtin_names import list_builtins
from support.trackers import StoredRun, install
from wmr_cli.core import EvaluationTable, LoggedRun, Logger, LogsFiles
from wmr_cli.errors import BadInput
from wmr_cli.registry import Registry
from wmr_cli.testing import check_logger

SERVICES = ["wandb", "mlflow", "trackio"]
A_ROB = "test/pgd:steps=2/0.3/a_rob"
TABLE = EvaluationTable(("id", "a_rob", "verifier"), (("r1", 0.25, None),), {A_ROB: 0.25})
CONFIG = {"epochs": 2, "alpha": 2.0, "evaluate": {"metrics": ["nat", "rob"]}}


def log(
    logger: Logger, folder: Path, epochs: dict[int, dict[str, float]], **continued: Any
) -> str | None:
    """Log epochs, a table and a page as a run does; return the id of the run."""
    tracker_id = logger.open(LoggedRun("tiny", folder, CONFIG, **continued))
    for epoch, metrics in epochs.items():
        logger.log_epoch(epoch, metrics)
    logger.log_evaluation(TABLE)
    if isinstance(logger, LogsFiles):
        (folder / "report.html").write_text("<!doctype html>")
        logger.log_file(folder / "report.html")
    logger.close(is_complete=bool(continued))
    return tracker_id


def log_and_continue(
    name: str, registry: Registry, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> StoredRun:
    """Log a run of two epochs with an interruption; return what the tool holds."""
    store = install(monkeypatch, name)
    tracker_id = log(registry.create("logger", name), folder, {1: {"loss": 2.0}})
    fresh = registry.create("logger", name)
    log(fresh, folder, {2: {"loss": 1.0, "val_a_rob": 0.5}}, tracker_id=tracker_id, epoch=1)
    (stored,) = store.values()
    assert stored.id == tracker_id
    return stored


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", list_builtins("logger"))
def test_every_logger_meets_its_contract(
    name: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in SERVICES:
        install(monkeypatch, name)
    check_logger(lambda: registry.create("logger", name))


def test_wandb(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = log_and_continue("wandb", registry, tmp_path, monkeypatch)
    assert (run.name, run.config, run.status) == ("tiny", CONFIG, 0)
    table = {"columns": ["id", "a_rob", "verifier"], "data": [["r1", 0.25, None]]}
    evaluation = {**table, "allow_mixed_types": True}
    # an evaluation is a step of its own, at the epoch of the weights
    assert run.rows == [
        (1, {"loss": 2.0, "epoch": 1}),
        (2, {"evaluation": evaluation, "epoch": 1}),
        (3, {"loss": 1.0, "val_a_rob": 0.5, "epoch": 2}),
        (4, {"evaluation": evaluation, "epoch": 2}),
    ]
    assert run.summary == {A_ROB: 0.25}
    assert run.files == {f"{run.id}-report": "<!doctype html>"}


def test_mlflow(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = log_and_continue("mlflow", registry, tmp_path, monkeypatch)
    assert (run.name, run.status) == ("tiny", "FINISHED")
    assert run.config == {"epochs": "2", "alpha": "2.0", "evaluate.metrics": "['nat', 'rob']"}
    a_rob = {"test/pgd_steps_2/0.3/a_rob": 0.25}
    epochs = [(1, {"loss": 2.0}), (1, a_rob), (2, {"loss": 1.0}), (2, {"val_a_rob": 0.5})]
    assert run.rows == [*epochs, (2, a_rob)]
    rows = list(csv.DictReader(run.files["evaluations.csv"].splitlines()))
    assert rows == [{"id": "r1", "a_rob": "0.25", "verifier": ""}]
    assert run.files["report.html"] == "<!doctype html>"


def test_trackio(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = log_and_continue("trackio", registry, tmp_path, monkeypatch)
    assert run.name.startswith("tiny-")
    assert run.config == CONFIG
    table = {"columns": ["id", "a_rob", "verifier"], "data": [["r1", 0.25, None]]}
    evaluation = {A_ROB: 0.25, "evaluation": table}
    epochs = [{"loss": 2.0}, {"loss": 1.0, "val_a_rob": 0.5}]
    assert run.rows == [(1, epochs[0]), (1, evaluation), (2, epochs[1]), (2, evaluation)]
    assert run.files == {f"{run.name}-report": "<!doctype html>"}


def test_an_interrupted_run_is_not_complete(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = {}
    for name in ("wandb", "mlflow"):
        store = install(monkeypatch, name)
        log(registry.create("logger", name), tmp_path, {1: {"loss": 2.0}})
        status[name] = store["id0"].status
    assert status == {"wandb": 1, "mlflow": "KILLED"}


def test_csv_keeps_the_epochs_of_the_run_that_it_continues(
    registry: Registry, tmp_path: Path
) -> None:
    epochs = {epoch: {"loss": 1.0 / epoch} for epoch in (1, 2, 3)}
    log(registry.create("logger", "csv"), tmp_path, epochs)
    # the third epoch was lost in a crash of the training
    log(registry.create("logger", "csv"), tmp_path, {3: {"loss": 9.0, "val_a_nat": 1.0}}, epoch=2)
    text = (tmp_path / "csv" / "metrics.csv").read_text()
    assert text == "loss,step,val_a_nat\n1.0,1,\n0.5,2,\n9.0,3,1.0\n"
    assert (tmp_path / "csv" / "evaluations.csv").read_text() == "id,a_rob,verifier\nr1,0.25,\n"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_has_config_evaluation_and_each_epoch_once(
    registry: Registry, tmp_path: Path
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    epochs = {epoch: {"loss": 1.0 / epoch} for epoch in (1, 2, 3)}
    log(registry.create("logger", "tensorboard"), tmp_path, epochs)
    log(registry.create("logger", "tensorboard"), tmp_path, {3: {"loss": 9.0}}, epoch=2)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [
        (1, 1.0), (2, 0.5), (3, 9.0),
    ]  # fmt: skip
    assert [event.value for event in events.Scalars(A_ROB)] == [0.25]
    (config,) = events.Tensors("config/text_summary")
    assert b'"epochs": 2' in config.tensor_proto.string_val[0]
    # the readers of TensorBoard drop expired scalars only
    *_, table = events.Tensors("evaluation/text_summary")
    assert b"r1|0.25|" in table.tensor_proto.string_val[0]


@pytest.mark.parametrize(("spec", "key"), [("wandb:mode=of", "mode"), ("csv:path=x", "path")])
def test_invalid_parameters_are_refused(
    spec: str, key: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, "wandb")
    with pytest.raises(BadInput, match=key):
        registry.create("logger", spec)
