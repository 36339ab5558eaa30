"""The log where other tools look for it, and how long a run will take."""

import csv
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from support.typed import stop
from wmr_cli.config import TrainConfig, resolve
from wmr_cli.errors import BadFile, BadInput
from wmr_cli.events import EpochDone, TrainingDone
from wmr_cli.registry import Registry
from wmr_cli.reporting.tables.details import make_validation_table
from wmr_cli.runtime.fabric import Hardware, launch
from wmr_cli.storage.runs import RunFolder
from wmr_cli.training import estimate as estimates
from wmr_cli.training.estimate import Estimate
from wmr_cli.training.loggers import Loggers, check_loggers
from wmr_cli.training.loop import train
from wmr_cli.training.setup import assemble

BRIEF = {"epochs": 3, "steps": 1, "validate_every": 2}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def walk(path: Path, registry: Registry, **more: Any) -> Iterator[Any]:
    return train(resolve(BRIEF), path, registry, data_dir=Path(), device="cpu", **more)


def estimate(config: TrainConfig, registry: Registry) -> Estimate:
    return estimates.estimate(assemble(config, registry, Path(), launch(Hardware("cpu"))), registry)


def columns(path: Path) -> list[dict[str, str]]:
    with (path / "csv" / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def scalars(path: Path, name: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(path / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_loggers_hold_what_the_log_holds_also_after_an_interruption(
    tmp_path: Path, registry: Registry
) -> None:
    first = walk(tmp_path / "run", registry, loggers=("csv", "tensorboard"))
    while not isinstance(next(first), EpochDone):
        pass
    next(first)
    stop(first)
    list(walk(tmp_path / "run", registry, loggers=("csv", "tensorboard"), resume=True))
    entries = RunFolder(tmp_path / "run").read_log()
    rows = columns(tmp_path / "run")
    assert [int(row["step"]) for row in rows] == [1, 2, 3]
    assert [float(row["loss"]) for row in rows] == pytest.approx(
        [entry["loss"] for entry in entries]
    )
    assert rows[0]["val_a_rob"] == "", "the first epoch did not look at held-out images"
    losses = scalars(tmp_path / "run", "loss")
    assert [step for step, _ in losses] == [entry["epoch"] for entry in entries]
    assert [loss for _, loss in losses] == pytest.approx([entry["loss"] for entry in entries])
    assert [step for step, _ in scalars(tmp_path / "run", "val_a_rob")] == [2, 3]


def test_overwriting_removes_them(tmp_path: Path, registry: Registry) -> None:
    list(walk(tmp_path / "run", registry, loggers=("csv",)))
    list(walk(tmp_path / "run", registry, overwrite=True))
    assert not (tmp_path / "run" / "csv").exists()


def test_without_tensorboard_it_is_refused_before_anything_is_written(
    tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_loggers(("csv", "tensorboard"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    check_loggers(("csv",))
    with pytest.raises(BadInput, match="tensorboard is not installed"):
        list(walk(tmp_path / "run", registry, loggers=("tensorboard",)))
    assert not (tmp_path / "run").exists()


def test_loggers_are_not_imported_unasked(tmp_path: Path, registry: Registry) -> None:
    list(walk(tmp_path / "run", registry))
    assert not [name for name in sys.modules if name.split(".")[0] == "tensorboardX"]
    assert not (tmp_path / "run" / "csv").exists()


def test_the_estimate_adds_up_and_writes_nothing(tmp_path: Path, registry: Registry) -> None:
    config = resolve({"epochs": 10, "validate_every": 4, "steps": 2})
    before = torch.get_rng_state()
    expected = estimate(config, registry)
    assert expected.epoch > 0
    assert expected.run == pytest.approx(10 * expected.epoch + math.ceil(10 / 4) * expected.look)
    assert list(tmp_path.iterdir()) == []
    more = estimate(resolve({"epochs": 10, "steps": 40, "validate_every": 0}), registry)
    assert more.look == 0
    assert more.epoch > 2 * expected.epoch, "twenty times the steps take longer"
    torch.set_rng_state(before)


def test_the_estimate_needs_no_second_batch(registry: Registry) -> None:
    expected = estimate(resolve({"batch_size": 2000, "steps": 1, "validate_every": 0}), registry)
    assert expected.epoch > 0


def test_the_table_shows_best_last_and_average(tmp_path: Path, registry: Registry) -> None:
    config = resolve({**BRIEF, "ema": 0.9, "select": "sa"})
    *_, done = train(config, tmp_path / "run", registry, data_dir=Path(), device="cpu")
    assert isinstance(done, TrainingDone)
    sheet = make_validation_table(done.entries, done.best, "sa")
    assert sheet is not None
    assert sheet.headings == ("weights", "epoch", "A_nat", "A_rob", "A_sa")
    names = [row[0] for row in sheet.rows]
    assert names == ["best by A_sa", "last", "average of weights"]
    looked = {entry["epoch"]: entry for entry in done.entries if "val_a_sa" in entry}
    assert done.best == max(looked, key=lambda epoch: looked[epoch]["val_a_sa"])
    assert sheet.rows[1][1] == "3"
    assert all("[" in cell for row in sheet.rows for cell in row[2:] if "all" not in cell)


def test_without_held_out_images_there_is_no_table() -> None:
    assert make_validation_table([{"epoch": 1, "loss": 0.1}], None, "rob") is None


def test_an_earlier_entry_that_a_spreadsheet_would_run_is_made_inert(tmp_path: Path) -> None:
    Loggers(("csv",), tmp_path, [{"epoch": 1, "=1+1": 2.0, "loss": 1.0, "text": "=1+1"}])
    assert columns(tmp_path) == [{"'=1+1": "2.0", "loss": "1.0", "step": "1"}]


def test_an_earlier_entry_without_its_epoch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"log\.jsonl") as caught:
        Loggers(("csv",), tmp_path, [{"loss": 1.0}])
    assert caught.value.hint
