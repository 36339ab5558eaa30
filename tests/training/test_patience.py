"""A run with `patience` stops after validations without improvement, also if it is interrupted."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.training import train
from support.typed import stop
from wmr_cli.config import TrainConfig, resolve
from wmr_cli.errors import BadInput
from wmr_cli.events import EpochDone, Message, StepDone, TrainingDone
from wmr_cli.registry import Registry
from wmr_cli.storage import checkpoints
from wmr_cli.storage.runs import RunFolder
from wmr_cli.training import loop
from wmr_cli.training.compatibility import check_patience

SCORES = [0.2, 0.5, 0.4, 0.5, 0.3, 0.9, 0.1]
"""The best is that of epoch 2 until epoch 6; an equal score is no improvement."""
SETTINGS = {
    "epochs": 7,
    "defense": "natural",
    "select": "rob",
    "validate_every": 1,
    "model": "digits-cnn:width=1,hidden=4",
    "ema": 0.5,
}


@pytest.fixture(autouse=True)
def _fix_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace validation by known accuracies."""

    def validate(run: Any, epoch: int) -> dict[str, float]:  # noqa: ANN401
        every = run.config.validate_every
        is_due = epoch % every == 0 or epoch == run.schedule_config.epochs
        return {"val_a_rob": SCORES[epoch - 1], "val_a_nat": 0.1 * epoch} if is_due else {}

    monkeypatch.setattr(loop, "validate_if_due", validate)


def walk(path: Path, registry: Registry, settings: dict[str, Any], **more: Any) -> Iterator[Any]:
    return train(resolve({**SETTINGS, **settings}), path, registry, **more)


def epochs_of(events: list[Any]) -> list[int]:
    return [event.epoch for event in events if isinstance(event, EpochDone)]


@pytest.mark.parametrize(
    ("settings", "last", "best"),
    [
        ({"patience": 1}, 3, 2),
        ({"patience": 2}, 4, 2),
        ({"patience": 3}, 5, 2),
        ({"patience": 4}, 7, 6),
        # epochs 2, 4, 6 and 7 validate
        ({"patience": 1, "validate_every": 2}, 4, 2),
        ({"patience": 2, "validate_every": 2}, 7, 6),
        ({"patience": 1, "select": "nat"}, 7, 7),
        ({}, 7, 6),
    ],
)
def test_a_run_stops_after_validations_without_improvement(
    settings: dict[str, Any], last: int, best: int, tmp_path: Path, registry: Registry
) -> None:
    events = list(walk(tmp_path / "run", registry, settings))
    assert epochs_of(events) == list(range(1, last + 1))
    done = events[-1]
    assert isinstance(done, TrainingDone)
    assert done.best == best
    folder = RunFolder(tmp_path / "run")
    assert all(file.exists() for file in (folder.last, folder.best, folder.ema, folder.resume))
    log = folder.read_log()
    reasons = [event.text for event in events if isinstance(event, Message)]
    stopped = [text for text in reasons if "stopped early" in text]
    assert len(stopped) == (last < 7)
    assert [entry["epoch"] for entry in log if "stopped" in entry] == ([last] if last < 7 else [])
    if last < 7:
        assert f"epoch {last} of 7" in stopped[0]
        assert "val_a_rob" in log[-1]["stopped"]


def test_a_run_that_stopped_early_is_complete(tmp_path: Path, registry: Registry) -> None:
    list(walk(tmp_path / "run", registry, {"patience": 2}))
    before = RunFolder(tmp_path / "run").last.read_bytes()
    events = list(walk(tmp_path / "run", registry, {"patience": 2}, resume=True))
    assert not any(isinstance(event, StepDone | EpochDone) for event in events)
    texts = [event.text for event in events if isinstance(event, Message)]
    assert any("is complete" in text and "stopped early after epoch 4" in text for text in texts)
    assert isinstance(events[-1], TrainingDone)
    assert RunFolder(tmp_path / "run").last.read_bytes() == before


@pytest.mark.parametrize("steps", [13, 31])
def test_an_interrupted_run_stops_at_the_same_epoch(
    steps: int, tmp_path: Path, registry: Registry
) -> None:
    running = walk(tmp_path / "cut", registry, {"patience": 3}, save_minutes=1e-9)
    done = 0
    while done < steps:  # of nine in an epoch
        done += isinstance(next(running), StepDone)
    stop(running)
    events = list(walk(tmp_path / "cut", registry, {"patience": 3}, resume=True))
    assert epochs_of(events)[-1] == 5
    list(walk(tmp_path / "straight", registry, {"patience": 3}))
    cut, straight = RunFolder(tmp_path / "cut"), RunFolder(tmp_path / "straight")
    assert checkpoints.load(cut.last).sha256 == checkpoints.load(straight.last).sha256
    for one, other in zip(cut.read_log(), straight.read_log(), strict=True):
        assert {**one, "images_per_second": 0} == {**other, "images_per_second": 0}


def test_schedules_do_not_depend_on_patience(tmp_path: Path, registry: Registry) -> None:
    list(walk(tmp_path / "run", registry, {"patience": 1}))
    list(walk(tmp_path / "whole", registry, {}))
    rates = [entry["lr"] for entry in RunFolder(tmp_path / "run").read_log()]
    whole = [entry["lr"] for entry in RunFolder(tmp_path / "whole").read_log()]
    assert rates == whole[: len(rates)]


@pytest.mark.parametrize(
    ("settings", "name"),
    [({"validate_every": 0}, "validate_every"), ({"select": "none"}, "select")],
)
def test_patience_needs_validation(settings: dict[str, Any], name: str) -> None:
    with pytest.raises(BadInput, match=name) as refused:
        check_patience(TrainConfig(patience=2, **settings))
    assert name in refused.value.hint
    check_patience(TrainConfig(**settings))
