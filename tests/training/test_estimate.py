"""The estimated duration of a run."""

import math
from pathlib import Path

import pytest
import torch

from wmr_cli.config import TrainConfig, resolve
from wmr_cli.registry import Registry
from wmr_cli.runtime.fabric import Hardware, launch
from wmr_cli.training.estimate import Estimate, estimate
from wmr_cli.training.setup import set_up_training


def estimate_config(config: TrainConfig, registry: Registry) -> Estimate:
    return estimate(set_up_training(config, registry, Path(), launch(Hardware("cpu"))))


def test_the_estimate_is_the_sum_of_its_parts_and_writes_nothing(
    tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = torch.get_rng_state()
    short = estimate_config(resolve({"epochs": 10, "validate_every": 4, "steps": 2}), registry)
    assert short.epoch > 0
    assert short.run == pytest.approx(10 * short.epoch + math.ceil(10 / 4) * short.validation)
    assert list(tmp_path.iterdir()) == []
    long = estimate_config(resolve({"epochs": 10, "steps": 40, "validate_every": 0}), registry)
    assert long.validation == 0
    assert long.epoch > 2 * short.epoch, "the attack has 20 times the steps"
    torch.set_rng_state(before)


def test_one_batch_is_enough_for_an_estimate(registry: Registry) -> None:
    config = resolve({"batch_size": 2000, "steps": 1, "validate_every": 0})
    assert estimate_config(config, registry).epoch > 0
