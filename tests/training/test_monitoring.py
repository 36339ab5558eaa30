"""Statistics of an epoch, and warnings about a log."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from support.training import train
from support.typed import instance_of
from wmr_cli.config import resolve
from wmr_cli.core.protocols import StepReport
from wmr_cli.errors import BadInput, BrokenContract
from wmr_cli.events import Event, Message, TrainingDone
from wmr_cli.registry import Registry
from wmr_cli.training.monitoring import (
    COLLAPSE_CAUSES,
    FULL_SUCCESS,
    NO_SUCCESS,
    AttackOutcome,
    EpochStatistics,
    LogEntry,
    check_losses,
    guessing_accuracy,
    locate_errors,
    new_warnings,
)

GUESSING = 0.11
EPS = 0.1


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
