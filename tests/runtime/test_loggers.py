"""Loggers of a run: what they receive, how they fail, and that they change no result."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from support.cli_runner import wmr
from support.training import train
from support.typed import not_none, stop
from wmr_cli.config import EvaluateConfig, resolve
from wmr_cli.errors import BadInput, BrokenContract, RunFolderError, UnknownName
from wmr_cli.evaluation.run import evaluate
from wmr_cli.events import EpochDone, EvaluationDone, Event, Message, TrainingDone
from wmr_cli.registry import Registry
from wmr_cli.runtime import loggers as module
from wmr_cli.runtime.loggers import RunLoggers, log_measured, make_evaluation_table
from wmr_cli.storage.records import Record
from wmr_cli.storage.runs import RunFolder

PGD = "pgd:steps=2,step=0.015"
SHORT_TRAINING = {"epochs": 3, "steps": 1, "validate_every": 2}
LOCAL_LOGGER = '''
import json
import time
from dataclasses import dataclass
from pathlib import Path

CALLS = Path("calls.jsonl").absolute()


@dataclass
class Recorder:
    """Writes down each call. It raises in the method `fails`, and hangs in the method `hangs`."""

    fails: str = ""
    hangs: str = ""
    name: str = "7"

    def __post_init__(self):
        if self.fails == "constructor":
            raise ConnectionError("no network")

    def note(self, method, *facts):
        with CALLS.open("a") as file:
            file.write(json.dumps([method, *facts]) + "\\n")
        if method == self.fails:
            raise ConnectionError("no network")
        if method == self.hangs:
            time.sleep(30)

    def open(self, run):
        print("tracking", run.name)
        self.note("open", run.name, run.config["epochs"], run.tracker_id, run.epoch)
        return self.name

    def log_epoch(self, epoch, metrics):
        self.note("log_epoch", epoch, sorted(metrics))

    def log_evaluation(self, table):
        self.note("log_evaluation", len(table.rows), sorted(table.metrics))

    def log_file(self, path):
        self.note("log_file", path.name, path.read_text()[:15].lower())

    def close(self, *, is_complete):
        self.note("close", is_complete)


class WithoutClose:
    open = log_epoch = log_evaluation = print
'''
uses_tensorboard = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def recorder(tmp_path: Path, trusts_local_code: None) -> str:
    """Return the spec of a logger that writes down its calls."""
    (tmp_path / "own.py").write_text(LOCAL_LOGGER)
    return f"{tmp_path}/own.py:Recorder"


def read_calls(method: str = "") -> list[list[Any]]:
    lines = Path("calls.jsonl").read_text().splitlines()
    calls: list[list[Any]] = [json.loads(line) for line in lines]
    return [call for call in calls if method in ("", call[0])]


def start_training(path: Path, registry: Registry, **options: Any) -> Iterator[Event]:
    return train(resolve(SHORT_TRAINING), path, registry, **options)


def interrupt_after(events: Iterator[Event], epoch: int) -> None:
    for event in events:
        if isinstance(event, EpochDone) and event.epoch == epoch:
            break
    stop(events)


def find_warnings(events: list[Event]) -> list[str]:
    """Return the texts of warnings about loggers."""
    found = [event for event in events if isinstance(event, Message) and event.is_warning]
    return [event.text for event in found if "logger" in event.text]


def read_csv(path: Path) -> list[dict[str, str]]:
    with (path / "csv" / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def read_tensorboard(path: Path, name: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(path / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


@uses_tensorboard
def test_loggers_equal_the_log_after_an_interruption(tmp_path: Path, registry: Registry) -> None:
    loggers = ("csv", "tensorboard")
    interrupt_after(start_training(tmp_path / "run", registry, loggers=loggers), 1)
    list(start_training(tmp_path / "run", registry, loggers=loggers, resume=True))
    entries = RunFolder(tmp_path / "run").read_log()
    rows = read_csv(tmp_path / "run")
    logged_losses = pytest.approx([entry["loss"] for entry in entries])
    assert [int(row["step"]) for row in rows] == [1, 2, 3]
    assert [float(row["loss"]) for row in rows] == logged_losses
    assert rows[0]["val_a_rob"] == "", "the first epoch was not validated"
    losses = read_tensorboard(tmp_path / "run", "loss")
    assert [step for step, _ in losses] == [1, 2, 3]
    assert [loss for _, loss in losses] == logged_losses
    assert [step for step, _ in read_tensorboard(tmp_path / "run", "val_a_rob")] == [2, 3]


@uses_tensorboard
def test_files_of_an_earlier_version_are_replaced_from_the_log(
    tmp_path: Path, registry: Registry
) -> None:
    loggers = ("csv", "tensorboard")
    interrupt_after(start_training(tmp_path / "run", registry, loggers=loggers), 2)
    # 0.1 had no such file
    (tmp_path / "run" / "loggers.json").unlink()
    list(start_training(tmp_path / "run", registry, loggers=loggers, resume=True))
    assert [int(row["step"]) for row in read_csv(tmp_path / "run")] == [1, 2, 3]
    assert [step for step, _ in read_tensorboard(tmp_path / "run", "loss")] == [1, 2, 3]


@uses_tensorboard
def test_loggers_change_neither_weights_nor_log(
    tmp_path: Path, registry: Registry, recorder: str
) -> None:
    config = resolve({**SHORT_TRAINING, "epochs": 2})
    specs = ("csv", "tensorboard", recorder, f"{recorder},fails=log_epoch")
    runs: dict[str, tuple[str, ...]] = {"with": specs, "without": ()}
    for name, loggers in runs.items():
        torch.manual_seed(0)
        list(train(config, tmp_path / name, registry, loggers=loggers))
    first, second = (load_file(tmp_path / name / "last.safetensors") for name in runs)
    assert all(torch.equal(first[name], second[name]) for name in first | second)
    logs = [RunFolder(tmp_path / name).read_log() for name in runs]
    # the speed differs between any two runs
    without_speed = [[{**entry, "images_per_second": 0} for entry in log] for log in logs]
    assert without_speed[0] == without_speed[1]


def test_a_logger_receives_the_config_and_each_epoch(
    tmp_path: Path, registry: Registry, recorder: str
) -> None:
    events = list(start_training(tmp_path / "run", registry, loggers=(recorder,)))
    opened, *epochs, closed = read_calls()
    assert opened == ["open", "run", 3, None, 0]
    assert [call[1] for call in epochs] == [1, 2, 3]
    assert {"loss", "weight_ess", "val_a_rob", "val_a_sa"} <= set(epochs[1][2])
    assert "val_a_rob" not in epochs[0][2]
    assert closed == ["close", True]
    assert not find_warnings(events)
    assert Message("tracking run") in events, "what a logger prints is a message"


def test_a_resumed_run_continues_the_run_of_the_tool(
    tmp_path: Path, registry: Registry, recorder: str
) -> None:
    interrupt_after(start_training(tmp_path / "run", registry, loggers=(recorder,)), 2)
    assert read_calls("close") == [["close", False]]
    list(start_training(tmp_path / "run", registry, loggers=(recorder,), resume=True))
    assert read_calls("open")[1] == ["open", "run", 3, "7", 2]
    assert [call[1] for call in read_calls("log_epoch")] == [1, 2, 3]


def test_a_new_logger_of_a_resumed_run_gets_earlier_epochs(
    tmp_path: Path, registry: Registry, recorder: str
) -> None:
    interrupt_after(start_training(tmp_path / "run", registry), 2)
    list(start_training(tmp_path / "run", registry, loggers=(recorder,), resume=True))
    assert [call[1] for call in read_calls("log_epoch")] == [1, 2, 3]


@pytest.mark.parametrize("has_started", [True, False])
def test_a_run_that_starts_again_is_a_new_run_of_the_tool(
    has_started: bool, tmp_path: Path, registry: Registry, recorder: str
) -> None:
    first = start_training(tmp_path / "run", registry, loggers=(recorder,))
    if has_started:
        list(first)
    else:
        for event in first:
            if isinstance(event, Message) and "tracking" in event.text:
                break
        stop(first)
    list(start_training(tmp_path / "run", registry, loggers=(recorder,), overwrite=has_started))
    assert [call[3:] for call in read_calls("open")] == [[None, 0], [None, 0]]


@pytest.mark.parametrize("method", ["open", "log_epoch", "close"])
def test_a_logger_that_fails_is_switched_off_with_one_warning(
    method: str, tmp_path: Path, registry: Registry, recorder: str
) -> None:
    loggers = (f"{recorder},fails={method}", "csv")
    events = list(start_training(tmp_path / "run", registry, loggers=loggers))
    (text,) = find_warnings(events)
    assert "no network" in text
    assert read_calls()[-1][0] == method, "it is not called again"
    assert len(read_csv(tmp_path / "run")) == 3, "other loggers continue"
    assert isinstance(events[-1], TrainingDone)


def test_what_a_failed_logger_has_missed_is_logged_on_resume(
    tmp_path: Path, registry: Registry, recorder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = start_training(tmp_path / "run", registry, loggers=(recorder,))
    for event in events:
        if isinstance(event, EpochDone) and event.epoch == 1:
            # the next call fails
            Path("calls.jsonl").rename("earlier.jsonl")
            Path("calls.jsonl").mkdir()
        if isinstance(event, EpochDone) and event.epoch == 2:
            break
    stop(events)
    Path("calls.jsonl").rmdir()
    list(start_training(tmp_path / "run", registry, loggers=(recorder,), resume=True))
    assert read_calls("open") == [["open", "run", 3, "7", 1]]
    assert [call[1] for call in read_calls("log_epoch")] == [2, 3]


def test_a_logger_that_hangs_is_switched_off(
    tmp_path: Path, registry: Registry, recorder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loggers = RunLoggers((f"{recorder},hangs=log_epoch",), registry)
    assert not [one for one in loggers.open(tmp_path, SHORT_TRAINING, []) if one.is_warning]
    monkeypatch.setattr(module, "TIMEOUT", 0.2)
    (message,) = loggers.log_epoch({"epoch": 1, "loss": 1.0})
    assert message.is_warning
    assert not loggers.log_epoch({"epoch": 2, "loss": 1.0})
    assert json.loads((tmp_path / "loggers.json").read_text()) == {
        f"{recorder},hangs=log_epoch": {"tracker_id": "7", "epoch": 0}
    }


def test_a_plugin_whose_constructor_fails_is_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create(kind: str, spec: str) -> object:
        raise ConnectionError("no network")

    registry = Registry()
    monkeypatch.setattr(registry, "create", create)
    loggers = RunLoggers(("remote",), registry)
    (message,) = loggers.open(tmp_path, SHORT_TRAINING, [])
    assert message.is_warning


@pytest.mark.parametrize(
    ("spec", "error", "problem"),
    [
        ("cvs", UnknownName, "'cvs'"),
        ("mlflow:experimnt=x", UnknownName, "'experimnt'"),
        ("{recorder},fails=constructor", BadInput, "no network"),
        ("{folder}/own.py:WithoutClose", BrokenContract, "WithoutClose"),
    ],
)
def test_a_wrong_logger_is_refused_before_anything_is_written(
    spec: str,
    error: type[Exception],
    problem: str,
    tmp_path: Path,
    registry: Registry,
    recorder: str,
) -> None:
    loggers = (spec.format(recorder=recorder, folder=tmp_path),)
    with pytest.raises(error, match=problem):
        list(start_training(tmp_path / "run", registry, loggers=loggers))
    assert not (tmp_path / "run").exists()


def test_a_missing_package_is_refused_before_anything_is_written(
    tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name in ("tensorboard", "wandb", "mlflow", "trackio"):
        with pytest.raises(BadInput, match=name) as refused:
            list(start_training(tmp_path / "run", registry, loggers=("csv", name)))
        assert f"wmr-cli[{name}]" in refused.value.hint
    assert not (tmp_path / "run").exists()


def test_overwriting_a_run_removes_its_loggers(tmp_path: Path, registry: Registry) -> None:
    list(start_training(tmp_path / "run", registry, loggers=("csv",)))
    list(start_training(tmp_path / "run", registry, overwrite=True))
    assert not (tmp_path / "run" / "csv").exists()
    assert not (tmp_path / "run" / "loggers.json").exists()


def test_a_linked_folder_is_refused(tmp_path: Path, registry: Registry) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "csv").symlink_to(tmp_path)
    with pytest.raises(RunFolderError, match="symbolic link"):
        RunLoggers(("csv",), registry).open(tmp_path / "run", {}, [])


def test_a_damaged_state_is_a_warning(tmp_path: Path, registry: Registry) -> None:
    (tmp_path / "loggers.json").write_text("{")
    loggers = RunLoggers(("csv",), registry)
    (message,) = loggers.open(tmp_path, {}, [{"epoch": 1, "loss": 2.0}])
    assert message.is_warning
    assert read_csv(tmp_path) == [{"loss": "2.0", "step": "1"}]


def test_a_formula_in_an_earlier_entry_is_made_inert(tmp_path: Path, registry: Registry) -> None:
    entries = [{"epoch": 1, "=1+1": 2.0, "loss": 1.0, "text": "=1+1"}]
    assert not RunLoggers(("csv",), registry).open(tmp_path, {}, entries)
    assert read_csv(tmp_path) == [{"'=1+1": "2.0", "loss": "1.0", "step": "1"}]


# ---- evaluations ----


@pytest.fixture
def run(tiny_run: Path, tmp_path: Path) -> Path:
    """Return a copy of a finished run of two epochs."""
    return Path(copytree(tiny_run, tmp_path / "runs" / "tiny"))


def measure(run: Path, registry: Registry, *attacks: str) -> list[tuple[Path, Record]]:
    config = EvaluateConfig(attacks=attacks, limit=40, alpha_test=(1.0, 2.0))
    events = evaluate(run, config, registry, data_dir=Path())
    done = [event for event in events if isinstance(event, EvaluationDone)]
    return [(event.rows.with_suffix(".json"), event.record) for event in done]


def test_an_evaluation_continues_the_run_of_the_training(
    run: Path, registry: Registry, recorder: str
) -> None:
    state = {recorder: {"tracker_id": "7", "epoch": 2}}
    (run / "loggers.json").write_text(json.dumps(state))
    measure(run, registry, "fgsm")
    second = measure(run, registry, PGD)
    assert not [one for one in log_measured([recorder], second, registry) if one.is_warning]
    opened, table, page, closed = read_calls()
    assert opened == ["open", "tiny", 2, "7", 2]
    # all records of the run: two attacks at two values of alpha
    assert table[1] == 4
    names = [f"test/{attack}/0.15/{name}" for attack in ("fgsm", PGD)
             for name in ("a_nat", "a_rob", "a_sa@1", "a_sa@2", "a_tr@1", "a_tr@2")]  # fmt: skip
    assert table[2] == names
    assert page == ["log_file", "report.html", "<!doctype html>"]
    assert closed == ["close", True]


def test_a_logger_that_is_new_to_a_run_gets_its_epochs_first(
    run: Path, registry: Registry, recorder: str
) -> None:
    list(log_measured([recorder], measure(run, registry, "fgsm"), registry))
    assert [call[0] for call in read_calls()] == [
        "open", "log_epoch", "log_epoch", "log_evaluation", "log_file", "close",
    ]  # fmt: skip


def test_a_bare_checkpoint_is_a_run_of_its_own(
    run: Path, registry: Registry, tmp_path: Path
) -> None:
    bare = tmp_path / "bare.safetensors"
    (run / "last.safetensors").rename(bare)
    assert not list(log_measured(["csv"], measure(bare, registry, "fgsm"), registry))
    assert (tmp_path / "bare.evaluations" / "csv" / "evaluations.csv").exists()


def test_the_names_of_metrics_contain_the_checkpoint(run: Path, registry: Registry) -> None:
    ((_, record),) = measure(run / "best.safetensors", registry, "fgsm")
    table = make_evaluation_table([record])
    assert table.metrics["best/test/fgsm/0.15/a_rob"] == not_none(record.a_rob).value
    column = table.columns.index("a_rob")
    assert [row[column] for row in table.rows] == [not_none(record.a_rob).value] * 2


def test_the_command_line_logs_trainings_and_evaluations(tmp_path: Path) -> None:
    wmr("train", "--epochs", 1, "--steps", 1, "--out", "run", "--logger", "csv", "--logger", "csv")
    shown = wmr("evaluate", "run", "--attack", "fgsm", "--limit", 20, "--logger", "csv",
                "--format", "json")  # fmt: skip
    with Path("run/csv/evaluations.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    (record,) = json.loads(shown.stdout)
    assert {row["id"] for row in rows} == {record["id"]}
    assert [int(row["step"]) for row in read_csv(Path("run"))] == [1]


def test_the_environment_names_loggers_for_all_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WMR_LOGGER", "csv mlflow:experimnt=x")
    assert "'experimnt'" in wmr("train", "--dry-run", status=2).stderr
    monkeypatch.setenv("WMR_LOGGER", "csv")
    wmr("train", "--epochs", 1, "--steps", 1, "--out", "run")
    assert read_csv(Path("run"))
