"""An interrupted, resumed and evaluated run, read back by each tool itself.

Run by `make test-trackers`.
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.training import train
from support.typed import stop
from wmr_cli.config import EvaluateConfig, resolve
from wmr_cli.evaluation.run import evaluate
from wmr_cli.events import EpochDone, EvaluationDone, Message
from wmr_cli.registry import Registry
from wmr_cli.runtime.loggers import log_measured
from wmr_cli.storage.runs import RunFolder
from wmr_cli.testing import check_logger

pytestmark = [pytest.mark.trackers, pytest.mark.filterwarnings("ignore")]
A_ROB = "test/pgd:steps=1,step=0.015/0.15/a_rob"
BLOCK = 32 * 1024
HEADER = 7
WHOLE_OR_LAST = (1, 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of all tests: wandb and trackio read its variable once per process."""
    return tmp_path_factory.mktemp("trackers")


@pytest.fixture(autouse=True)
def _stay_on_this_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_DIR", str(folder))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
    monkeypatch.setenv("TRACKIO_DIR", str(folder / "trackio"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def make_run(logger: str, registry: Registry) -> tuple[str, list[dict[str, Any]], float]:
    """Return the tool's id of a run, its log, and A_rob of its evaluation."""
    config = resolve({"epochs": 2, "steps": 1, "validate_every": 1})
    path = Path("runs/tiny")
    first = train(config, path, registry, loggers=(logger,))
    events = []
    for event in first:
        events.append(event)
        if isinstance(event, EpochDone):
            break
    stop(first)
    events += train(config, path, registry, loggers=(logger,), resume=True)
    settings = EvaluateConfig(attacks=("pgd:steps=1,step=0.015",), limit=40)
    measured = [
        (event.rows.with_suffix(".json"), event.record)
        for event in evaluate(path, settings, registry, data_dir=Path())
        if isinstance(event, EvaluationDone)
    ]
    events += log_measured([logger], measured, registry)
    messages = [event for event in events if isinstance(event, Message) and event.is_warning]
    assert [message.text for message in messages if logger in message.text] == []
    state = json.loads(RunFolder(path).loggers.read_text())[logger]
    assert state["epoch"] == 2
    a_rob = measured[0][1].a_rob
    assert a_rob is not None
    return state["tracker_id"], RunFolder(path).read_log(), a_rob.value


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_a_logger_meets_its_contract(name: str, registry: Registry) -> None:
    pytest.importorskip(name)
    check_logger(lambda: registry.create("logger", name))


def test_mlflow_reads_a_run(registry: Registry, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    run_id, log, a_rob = make_run("mlflow:experiment=read-back", registry)
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("read-back").experiment_id])
    assert (run.info.run_id, run.info.status, run.info.run_name) == (run_id, "FINISHED", "tiny")
    assert (run.data.params["epochs"], run.data.params["defense"]) == ("2", "trades:beta=6")
    for name in ("loss", "weight_ess", "val_a_rob"):
        history = client.get_metric_history(run_id, name)
        logged = sorted((metric.step, metric.value) for metric in history)
        assert logged == [(entry["epoch"], entry[name]) for entry in log]
    assert run.data.metrics[A_ROB.translate(str.maketrans(":=,", "___"))] == a_rob
    files = {file.path: file for file in client.list_artifacts(run_id)}
    assert set(files) == {"evaluations.csv", "report.html"}
    page = Path(client.download_artifacts(run_id, "report.html", str(tmp_path)))
    assert page.read_text().startswith("<!")


def test_trackio_reads_a_run(registry: Registry) -> None:
    trackio = pytest.importorskip("trackio")
    from trackio.sqlite_storage import SQLiteStorage

    name, log, a_rob = make_run("trackio:project=read-back", registry)
    (run,) = trackio.Api().runs("read-back")
    assert run.name == name
    assert run.config["epochs"] == 2
    logged = SQLiteStorage.get_logs("read-back", name)
    for metric in ("loss", "weight_ess", "val_a_rob"):
        found = [(line["step"], line[metric]) for line in logged if metric in line]
        assert found == [(entry["epoch"], entry[metric]) for entry in log]
    (evaluated,) = (line for line in logged if "evaluation" in line)
    assert evaluated[A_ROB] == a_rob
    assert evaluated["evaluation"]["_value"][0]["a_rob"] == a_rob
    reader = trackio.init(project="read-back", name="reader", embed=False)
    (page,) = Path(reader.use_artifact(f"{name}-report:latest").download()).rglob("report.html")
    assert page.read_text().startswith("<!")
    reader.finish()


def test_wandb_reads_a_run(registry: Registry, folder: Path) -> None:
    pytest.importorskip("wandb")
    run_id, log, a_rob = make_run("wandb", registry)
    # the start, the resumed run and the evaluation: `wandb sync` joins them by their id
    records = [
        record
        for file in sorted(folder.glob(f"wandb/offline-run-*/run-{run_id}.wandb"))
        for record in read_offline_run(file)
    ]
    runs = [record.run for record in records if record.HasField("run")]
    assert [(run.run_id, run.project, run.display_name) for run in runs] == [
        (run_id, "wmr", "tiny")
    ] * 3
    config = {item.key: item.value_json for item in runs[0].config.update}
    assert (config["epochs"], config["defense"]) == ("2", '"trades:beta=6"')
    rows = [read_items(record.history.item) for record in records if record.HasField("history")]
    epochs = sorted((row for row in rows if "loss" in row), key=lambda row: row["epoch"])
    for name in ("epoch", "loss", "weight_ess", "val_a_rob"):
        assert [row[name] for row in epochs] == [entry[name] for entry in log]
    assert [row["_step"] for row in epochs] == [1, 2]
    (table,) = (row for row in rows if "evaluation/nrows" in row)
    assert (table["_step"], table["epoch"]) == (3, 2)
    summary = [
        read_items(record.summary.update) for record in records if record.HasField("summary")
    ]
    assert [row[A_ROB] for row in summary if A_ROB in row] == [a_rob]
    artifacts = {record.artifact.name for record in records if record.HasField("artifact")}
    assert artifacts == {f"{run_id}-report", f"run-{run_id}-evaluation"}
    assert [record.exit.exit_code for record in records if record.HasField("exit")] == [1, 0, 0]


def read_items(items: Any) -> dict[str, Any]:  # noqa: ANN401 - a message without types
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def read_offline_run(path: Path) -> Iterator[Any]:
    """Yield the records of a file of wandb, which has the framing of a LevelDB log."""
    from wandb.proto import wandb_internal_pb2

    data = path.read_bytes()
    position = HEADER
    parts = b""
    while position + HEADER <= len(data):
        rest = BLOCK - position % BLOCK
        if rest < HEADER:
            position += rest
            continue
        _, size, kind = struct.unpack("<IHB", data[position : position + HEADER])
        position += HEADER + size
        parts += data[position - size : position]
        if kind in WHOLE_OR_LAST:
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            yield record
            parts = b""
