"""Alarms look at the log; each speaks when its cause begins, and only then."""

from pathlib import Path
from typing import Any

import pytest
import torch

from support.typed import instance_of
from wmr_cli.config import resolve
from wmr_cli.core.protocols import StepReport
from wmr_cli.errors import BadInput, BrokenContract
from wmr_cli.events import Message, TrainingDone
from wmr_cli.registry import Registry
from wmr_cli.training import diagnostics
from wmr_cli.training.loop import train
from wmr_cli.training.statistics import Tally


def entry(accuracy: float = 0.5, **more: Any) -> dict[str, float]:
    return {"train_accuracy": accuracy, "attack_success": 0.3, "eps": 0.1, **more}


def told(*entries: dict[str, float]) -> list[str]:
    return [
        text.split(":")[0] for text in diagnostics.warnings(list(entries), guessing=0.11, eps=0.1)
    ]


CHANCE = "accuracy has been at chance (11 %) for 2 epochs; usual causes"
NOBODY = "the attack fooled not one training image in this epoch"
EVERYBODY = "the attack fooled every training image in this epoch, so nothing robust is learnt"


def test_a_healthy_run_is_left_alone() -> None:
    assert told() == []
    assert told(entry(0.1)) == [], "one epoch at chance is a beginning"
    assert told(entry(0.1), entry(0.4), entry(0.5)) == []


def test_a_collapse_is_told_once() -> None:
    assert told(entry(), entry(0.11), entry(0.12)) == [CHANCE]
    assert told(entry(0.11), entry(0.12), entry(0.11)) == [], "it was told in the epoch before"
    assert told(entry(0.11), entry(0.11), entry(0.6), entry(0.11), entry(0.11)) == [CHANCE], (
        "a second collapse is another one"
    )


def test_clean_images_decide_where_they_are_seen() -> None:
    attacked = entry(0.02, train_clean_accuracy=0.9)
    assert told(attacked, attacked) == [], (
        "under a strong attack a good network may do worse than chance"
    )
    collapsed = entry(0.11, train_clean_accuracy=0.11)
    assert told(collapsed, collapsed) == [CHANCE]
    assert told(collapsed, {**collapsed, "val_a_nat": 0.97}) == [], "held-out images count most"


def test_an_attack_that_fools_nobody_or_everybody() -> None:
    assert told(entry(0.99, attack_success=0.0)) == [NOBODY]
    assert told(entry(0.99, attack_success=0.0, eps=0.01)) == [], "the ball still grows"
    assert told(entry(0.0, attack_success=1.0, train_clean_accuracy=0.9)) == [EVERYBODY]
    assert told(entry(0.0, attack_success=1.0, train_clean_accuracy=0.1)) == [], (
        "a network that knows nothing is easily fooled"
    )


def test_chance_is_the_largest_class() -> None:
    assert diagnostics.chance(torch.tensor([0, 1, 1, 2])) == 0.5


def test_with_one_large_class_a_good_network_is_not_at_chance() -> None:
    good = entry(0.97)
    assert list(diagnostics.warnings([good, good], guessing=0.9, eps=0.1)) == []
    assert len(list(diagnostics.warnings([entry(0.91), entry(0.9)], guessing=0.9, eps=0.1))) == 1


def test_an_attack_that_counts_no_steps_gives_no_success(
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


def test_a_loss_that_is_no_number_says_where() -> None:
    diagnostics.check_loss(1.5, epoch=0, step=0)
    with pytest.raises(BrokenContract, match="epoch 3, step 8: the loss is not finite"):
        diagnostics.check_loss(float("nan"), epoch=2, step=7)


def test_an_error_within_a_step_gets_its_place() -> None:
    with pytest.raises(BadInput, match="epoch 1, step 2: oops") as raised, diagnostics.placed(0, 1):
        raise BadInput("oops", hint="mend it")
    assert raised.value.hint == "mend it"


def test_the_tally_counts_who_was_fooled() -> None:
    tally = Tally()
    began, after = (
        torch.tensor([True, True, True, False]),
        torch.tensor([True, False, False, False]),
    )
    report = StepReport(
        torch.ones(4), torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.zeros(4), after, began
    )
    loss = tally.add(report, (began, began & ~after))
    summary = tally.summary()
    assert loss == summary["loss"] == 1
    assert summary["train_clean_accuracy"] == 0.75
    assert summary["attack_success"] == pytest.approx(2 / 3)
    assert summary["weight_on_wrong"] == 0.9
    assert summary["weight_ess"] == pytest.approx(100 / 30 / 4)
    assert summary["weight_max"] == 4


def test_a_tally_goes_on_where_it_stood() -> None:
    def report(number: int) -> StepReport:
        torch.manual_seed(number)
        return StepReport(
            torch.rand(5), torch.rand(5), torch.rand(5), torch.rand(5) > 0.5, torch.rand(5) > 0.5
        )

    straight, first, second = Tally(), Tally(), Tally()
    for number in range(4):
        straight.add(report(number))
    first.add(report(0))
    first.add(report(1))
    second.load_state(first.state())
    second.add(report(2))
    second.add(report(3))
    assert second.summary() == straight.summary()


def test_a_run_that_collapses_is_warned_of(tmp_path: Path, registry: Registry) -> None:
    """SGD far too fast: the network ends as a constant."""
    settings = {
        "optimizer": "sgd",
        "lr": 3.0,
        "schedule": "constant",
        "epochs": 4,
        "steps": 2,
        "validate_every": 0,
    }
    events = train(resolve(settings), tmp_path / "run", registry, data_dir=tmp_path, device="cpu")
    warned = [event.text for event in events if isinstance(event, Message) and event.warns]
    assert [text for text in warned if "at chance" in text and "--lr" in text]


def test_an_attack_without_reach_is_warned_of(tmp_path: Path, registry: Registry) -> None:
    settings = {
        "eps": 1e-7,
        "step_size": 1e-8,
        "epochs": 6,
        "steps": 1,
        "validate_every": 0,
        "attack": "pgd:start=none",
    }
    events = train(resolve(settings), tmp_path / "run", registry, data_dir=tmp_path, device="cpu")
    warned = [event.text for event in events if isinstance(event, Message) and event.warns]
    assert [text for text in warned if "not one training image" in text]


def test_the_first_epochs_of_the_default_training_give_no_cause(
    registry: Registry, tmp_path: Path
) -> None:
    """Nine steps make an epoch of the digits: each of them is asked whom the attack fooled."""
    config = resolve({"dataset": "digits", "defense": "trades", "epochs": 2})
    events = list(train(config, tmp_path / "run", registry, data_dir=tmp_path, device="cpu"))
    assert not [event.text for event in events if isinstance(event, Message) and event.warns]
    assert instance_of(TrainingDone, events[-1]).entries[0]["attack_success"] > 0
