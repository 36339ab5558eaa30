"""Statistics of an epoch, warnings about a log, and copies of the log for other tools."""

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from support.training import train
from support.typed import instance_of, stop
from wmr_cli.config import resolve
from wmr_cli.core.protocols import StepReport
from wmr_cli.errors import BadFile, BadInput, BrokenContract
from wmr_cli.events import EpochDone, Event, Message, TrainingDone
from wmr_cli.registry import Registry
from wmr_cli.storage.runs import RunFolder
from wmr_cli.training.monitoring import (
    COLLAPSE_CAUSES,
    FULL_SUCCESS,
    NO_SUCCESS,
    AttackOutcome,
    EpochStatistics,
    LogEntry,
    MetricLoggers,
    check_loggers,
    check_losses,
    guessing_accuracy,
    locate_errors,
    new_warnings,
)

GUESSING = 0.11
EPS = 0.1
SHORT_TRAINING = {"epochs": 3, "steps": 1, "validate_every": 2}

uses_tensorboard = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def make_report(seed: int) -> StepReport:
    torch.manual_seed(seed)
    is_correct, is_clean_correct = torch.rand(2, 5) > 0.5
    return StepReport(
        torch.rand(5), torch.rand(5), torch.rand(5), is_correct, clean_correct=is_clean_correct
    )


def test_statistics_are_means_over_the_images_of_an_epoch() -> None:
    statistics = EpochStatistics()
    was_correct = torch.tensor([True, True, True, False])
    is_correct = torch.tensor([True, False, False, False])
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0])
    report = StepReport(torch.ones(4), weights, torch.zeros(4), is_correct, was_correct)
    statistics.add(report, AttackOutcome(was_correct, was_correct & ~is_correct))
    ((step, loss),) = statistics.collect()
    assert step == 0
    summary = statistics.summary()
    assert loss == summary["loss"] == 1
    assert summary["train_clean_accuracy"] == 0.75
    assert summary["attack_success"] == pytest.approx(2 / 3)
    assert summary["weight_on_wrong"] == 0.9
    # (sum of weights)^2 / (sum of squares) / images
    assert summary["weight_ess"] == pytest.approx(100 / 30 / 4)
    assert summary["weight_max"] == 4


def test_restored_statistics_continue_with_equal_sums() -> None:
    uninterrupted = EpochStatistics()
    for seed in range(4):
        uninterrupted.add(make_report(seed))
    assert [step for step, _ in uninterrupted.collect()] == [0, 1, 2, 3]
    first = EpochStatistics()
    for seed in range(2):
        first.add(make_report(seed))
    first.collect()
    second = EpochStatistics()
    second.load_state(first.state())
    for seed in range(2, 4):
        second.add(make_report(seed))
    assert [step for step, _ in second.collect()] == [2, 3]
    assert second.summary() == uninterrupted.summary()


def test_without_counted_steps_attack_success_is_not_logged(
    tmp_path: Path, registry: Registry
) -> None:
    settings = {
        "attack": "noise",
        "steps": None,
        "step_size": None,
        "defense": "pgd",
        "epochs": 2,
        "validate_every": 0,
    }
    *_, done = train(resolve(settings), tmp_path / "run", registry, data_dir=tmp_path, device="cpu")
    last_entry = instance_of(TrainingDone, done).entries[-1]
    assert "attack_success" not in last_entry
    assert "train_clean_accuracy" not in last_entry


def make_entry(accuracy: float = 0.5, **more: float) -> LogEntry:
    return {"train_accuracy": accuracy, "attack_success": 0.3, "eps": EPS, **more}


def find_warnings(*entries: LogEntry) -> list[str]:
    return list(new_warnings(list(entries), GUESSING, EPS))


def is_collapse(warnings: list[str]) -> bool:
    return len(warnings) == 1 and warnings[0].endswith(COLLAPSE_CAUSES)


def test_a_healthy_run_causes_no_warning() -> None:
    assert find_warnings() == []
    assert find_warnings(make_entry(0.1)) == [], "every run starts at chance"
    assert find_warnings(make_entry(0.1), make_entry(0.4), make_entry(0.5)) == []


def test_each_collapse_is_reported_once() -> None:
    low = make_entry(GUESSING)
    assert is_collapse(find_warnings(make_entry(), low, make_entry(0.12)))
    assert find_warnings(low, low, low) == [], "reported in the epoch before"
    assert is_collapse(find_warnings(low, low, make_entry(0.6), low, low)), "a second collapse"


def test_collapse_is_detected_by_clean_accuracy_where_it_is_known() -> None:
    attacked = make_entry(0.02, train_clean_accuracy=0.9)
    assert find_warnings(attacked, attacked) == []
    collapsed = make_entry(0.11, train_clean_accuracy=0.11)
    assert is_collapse(find_warnings(collapsed, collapsed))
    validated = {**collapsed, "val_a_nat": 0.97}
    assert find_warnings(collapsed, validated) == [], "the validation set is preferred"


def test_a_large_class_raises_the_accuracy_of_guessing() -> None:
    assert guessing_accuracy(torch.tensor([0, 1, 1, 2])) == 0.5
    good = make_entry(0.97)
    assert list(new_warnings([good, good], guessing=0.9, eps=EPS)) == []
    assert len(list(new_warnings([make_entry(0.91), make_entry(0.9)], 0.9, EPS))) == 1


def test_attack_success_of_zero_or_one_is_reported() -> None:
    assert find_warnings(make_entry(0.99, attack_success=0.0)) == [NO_SUCCESS]
    assert find_warnings(make_entry(0.99, attack_success=0.0, eps=0.01)) == [], "eps still rises"
    attacked = make_entry(0.0, attack_success=1.0, train_clean_accuracy=0.9)
    assert find_warnings(attacked) == [FULL_SUCCESS]
    untrained = make_entry(0.0, attack_success=1.0, train_clean_accuracy=0.1)
    assert find_warnings(untrained) == []


def list_warnings(events: Iterator[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Message) and event.is_warning]


def test_a_training_that_collapses_warns(tmp_path: Path, registry: Registry) -> None:
    """SGD with a far too high learning rate: the network ends as a constant."""
    settings = {
        "optimizer": "sgd",
        "lr": 3.0,
        "schedule": "constant",
        "epochs": 4,
        "steps": 2,
        "validate_every": 0,
    }
    events = train(resolve(settings), tmp_path / "run", registry, data_dir=tmp_path, device="cpu")
    assert any(text.endswith(COLLAPSE_CAUSES) for text in list_warnings(events))


def test_a_training_with_a_tiny_eps_warns(tmp_path: Path, registry: Registry) -> None:
    settings = {
        "eps": 1e-7,
        "step_size": 1e-8,
        "epochs": 6,
        "steps": 1,
        "validate_every": 0,
        "attack": "pgd:start=none",
    }
    events = train(resolve(settings), tmp_path / "run", registry, data_dir=tmp_path, device="cpu")
    assert NO_SUCCESS in list_warnings(events)


def test_the_default_training_does_not_warn(registry: Registry, tmp_path: Path) -> None:
    config = resolve({"dataset": "digits", "defense": "trades", "epochs": 2})
    events = list(train(config, tmp_path / "run", registry, data_dir=tmp_path, device="cpu"))
    assert list_warnings(iter(events)) == []
    assert instance_of(TrainingDone, events[-1]).entries[0]["attack_success"] > 0


def test_a_loss_that_is_not_finite_is_refused_with_its_place() -> None:
    assert check_losses([(0, 1.5), (1, 0.5)], epoch=0) == 0.5
    with pytest.raises(BrokenContract, match="epoch 3, step 8"):
        check_losses([(6, 1.5), (7, float("nan"))], epoch=2)


def test_an_error_inside_a_step_is_located() -> None:
    with pytest.raises(BadInput, match="epoch 1, step 2: oops") as raised, locate_errors(0, 1):
        raise BadInput("oops", hint="fix it")
    assert raised.value.hint == "fix it"


def start_training(path: Path, registry: Registry, **options: Any) -> Iterator[Event]:
    config = resolve(SHORT_TRAINING)
    return train(config, path, registry, data_dir=Path(), device="cpu", **options)


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
    first = start_training(tmp_path / "run", registry, loggers=loggers)
    while not isinstance(next(first), EpochDone):
        pass
    next(first)
    stop(first)
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


def test_overwriting_a_run_removes_its_loggers(tmp_path: Path, registry: Registry) -> None:
    list(start_training(tmp_path / "run", registry, loggers=("csv",)))
    list(start_training(tmp_path / "run", registry, overwrite=True))
    assert not (tmp_path / "run" / "csv").exists()


def test_missing_tensorboard_is_refused_before_anything_is_written(
    tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_loggers(("csv", "tensorboard"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    check_loggers(("csv",))
    with pytest.raises(BadInput, match="tensorboard"):
        list(start_training(tmp_path / "run", registry, loggers=("tensorboard",)))
    assert not (tmp_path / "run").exists()


def test_loggers_are_imported_only_when_used(tmp_path: Path, registry: Registry) -> None:
    list(start_training(tmp_path / "run", registry))
    assert not [name for name in sys.modules if name.split(".")[0] == "tensorboardX"]
    assert not (tmp_path / "run" / "csv").exists()


def test_a_formula_in_an_earlier_entry_is_made_inert(tmp_path: Path) -> None:
    MetricLoggers(("csv",), tmp_path, [{"epoch": 1, "=1+1": 2.0, "loss": 1.0, "text": "=1+1"}])
    assert read_csv(tmp_path) == [{"'=1+1": "2.0", "loss": "1.0", "step": "1"}]


def test_an_earlier_entry_without_its_epoch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"log\.jsonl") as caught:
        MetricLoggers(("csv",), tmp_path, [{"loss": 1.0}])
    assert caught.value.hint
