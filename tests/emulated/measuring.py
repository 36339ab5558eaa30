"""Trainings on the emulated device: stopped and resumed, or measured step by step."""

import json
import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from emulated.device import NAME, Log, recorded
from support.training import train
from support.typed import stop
from wmr_cli.config import TrainConfig
from wmr_cli.core import pgd
from wmr_cli.events import StepDone
from wmr_cli.registry import Registry
from wmr_cli.storage import checkpoints

BUDGETS = Path(__file__).parent / "budgets.json"
KINDS = ("launches", "waits", "bytes_from_host")
SETTINGS: dict[str, dict[str, Any]] = {
    "resnet18-pgd": {"model": "resnet18", "kernel": "none", "steps": 10, "ema": 0},
    "resnet18-trades-bf16": {
        "model": "resnet18",
        "defense": "trades",
        "steps": 10,
        "precision": "bf16",
        "augment": "crop:1,flip",
    },
    "small": {},
    "resnet20-pgd": {"model": "resnet20", "augment": "crop:1,flip"},
    "cnn-cifar10": {"augment": "crop:4,flip", "batch_size": 128},
}
"""Settings that have a budget, beside those of `make_config`."""
TIMES = ("images_per_second",)
"""Entries of a log that no two runs share."""


def save_images(folder: Path, count: int = 12, channels: int = 1, size: int = 8) -> str:
    """Write random images in 3 classes, and return their dataset."""
    rng = np.random.default_rng(0)
    shape = (count, size, size, channels) if channels > 1 else (count, size, size)
    arrays: dict[str, Any] = {}
    for name in ("train", "val", "test"):
        arrays[f"{name}_images"] = rng.integers(0, 256, shape, dtype=np.uint8)
        arrays[f"{name}_labels"] = np.arange(count) % 3
    np.savez(folder / "images.npz", **arrays)
    return f"arrays:path={folder / 'images.npz'}"


def make_config(dataset: str, **settings: Any) -> TrainConfig:
    """Return the settings of a training of two steps."""
    defaults: dict[str, Any] = {
        "dataset": dataset,
        "model": "digits-cnn:width=2,hidden=8",
        "defense": "pgd",
        "kernel": "exp",
        "epochs": 1,
        "batch_size": 6,
        "eps": 0.05,
        "steps": 2,
        "optimizer": "sgd",
        "lr": 0.1,
        "ema": 0.9,
        "validate_every": 0,
    }
    return TrainConfig(**{**defaults, **settings})


def check_resumed_run(config: TrainConfig, folder: Path, registry: Registry) -> None:
    """Train once through and once stopped after the first step; both must end bit-identical."""
    paths = [folder / "straight", folder / "resumed"]
    straight, resumed = paths
    list(train(config, straight, registry, device=NAME))
    events = train(config, resumed, registry, device=NAME, save_minutes=1e-9)
    while not isinstance(next(events), StepDone):
        pass
    # the next event comes after the state has been saved
    next(events)
    stop(events)
    _, header = checkpoints.load_tensors(resumed / "resume.safetensors")
    assert header["step"] == "1"
    list(train(config, resumed, registry, device=NAME, resume=True))
    for file in ("last.safetensors", "ema.safetensors", "resume.safetensors"):
        if not (straight / file).exists():
            continue
        expected, _ = checkpoints.load_tensors(straight / file)
        found, _ = checkpoints.load_tensors(resumed / file)
        assert expected.keys() == found.keys()
        for name, tensor in expected.items():
            assert tensor.isfinite().all(), f"{file}: {name}"
            assert torch.equal(tensor, found[name]), f"{file}: {name}"
    logs = [(path / "log.jsonl").read_text().splitlines() for path in paths]
    entries = [[_without_times(json.loads(line)) for line in log] for log in logs]
    assert entries[0] == entries[1]
    assert math.isfinite(entries[0][0]["loss"])


def _without_times(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name not in TIMES}


@dataclass
class Measured:
    """Events of one training step, and of one PGD step in it."""

    step: Log
    pgd_step: Log = field(default_factory=Log)

    def numbers(self) -> dict[str, int]:
        """Return the totals that a budget limits."""
        totals = {kind: self.step.count(kind) for kind in KINDS}
        totals["launches_per_pgd_step"] = self.pgd_step.count("launches")
        totals["waits_per_pgd_step"] = self.pgd_step.count("waits")
        return totals

    def by_file(self, kind: str) -> dict[str, int]:
        """Return the counts of one kind by file of `wmr_cli`."""
        counts: Counter[str] = Counter()
        for place, number in self.step.places(kind).items():
            counts[place.partition(":")[0]] += number
        return dict(sorted(counts.items()))


def measure_step(config: TrainConfig, folder: Path, registry: Registry) -> Measured:
    """Train, and return the events of the second step.

    The first step allocates the state of the optimizer. The second includes the measurement of
    attack success, which most steps of a long epoch skip.
    """
    events = train(config, folder, registry, device=NAME)
    starts: list[tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]] = []
    input_gradient = pgd.input_gradient
    with pytest.MonkeyPatch.context() as patch, recorded() as log:

        def note_start(*args: Any) -> tuple[Tensor, Tensor]:
            starts.append((log.launches.copy(), log.waits.copy()))
            return input_gradient(*args)

        while not isinstance(next(events), StepDone):
            pass
        for kind in KINDS:
            log.counter(kind).clear()
        patch.setattr(pgd, "input_gradient", note_start)
        while not isinstance(next(events), StepDone):
            pass
        measured = Measured(log)
    stop(events)
    if len(starts) > 1:
        (launches, waits), (later_launches, later_waits) = starts[-2:]
        measured.pgd_step = Log(later_launches - launches, later_waits - waits)
    return measured


def measure_setting(name: str, folder: Path, registry: Registry) -> Measured:
    """Return the events of one training step with these settings."""
    settings = SETTINGS[name]
    if "batch_size" in settings:
        dataset = save_images(folder, 3 * settings["batch_size"], 3, 32)
    else:
        # the number of events does not depend on the size of the images
        dataset = save_images(folder, channels=3)
    return measure_step(make_config(dataset, **settings), folder / "run", registry)


def check_budget(name: str, measured: Measured) -> None:
    """Compare with budgets.json; a difference is reported with its files and lines."""
    budget = json.loads(BUDGETS.read_text(encoding="utf-8"))[name]
    found = measured.numbers()
    higher = {key for key, number in found.items() if number > budget[key]}
    lower = {key for key, number in found.items() if number < budget[key]}
    lines = [f"{name}: {key} is {found[key]:,}, not {budget[key]:,}" for key in found]
    if higher:
        report = [line for line, key in zip(lines, found, strict=True) if key in higher]
        for kind in KINDS:
            if any(key.startswith(kind) for key in higher):
                report += list_increases(kind, measured, budget["by_file"][kind])
        raise AssertionError("\n".join(report))
    if lower:
        report = [line for line, key in zip(lines, found, strict=True) if key in lower]
        hint = "lower the numbers: run test_budgets.py with WMR_UPDATE_BUDGETS=1"
        raise AssertionError("\n".join([*report, hint]))


def list_increases(kind: str, measured: Measured, budget: dict[str, int]) -> list[str]:
    """Return file and line of all events in the files that have more of them than before."""
    by_file = measured.by_file(kind)
    rising = {file for file, number in by_file.items() if number > budget.get(file, 0)}
    counts = sorted(measured.step.counter(kind).items(), key=lambda item: -item[1])
    return [
        f"{number:8,} {what:24} {place}"
        for (what, place), number in counts
        if place.partition(":")[0] in rising
    ]


def write_budget(name: str, measured: Measured) -> None:
    """Replace the numbers of one budget in the file."""
    budgets = json.loads(BUDGETS.read_text(encoding="utf-8")) if BUDGETS.exists() else {}
    by_file = {kind: measured.by_file(kind) for kind in KINDS}
    budgets[name] = {**measured.numbers(), "by_file": by_file}
    text = json.dumps(budgets, indent=2, sort_keys=True) + "\n"
    BUDGETS.write_text(text, encoding="utf-8")
