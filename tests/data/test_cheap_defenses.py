"""On real MNIST: defenses that save passes save time. Reads MNIST from WMR_DATA_DIR."""

import os
import time
from pathlib import Path
from statistics import median

import pytest
import torch

from wmr_cli.config import resolve
from wmr_cli.registry import Registry
from wmr_cli.runtime.fabric import Hardware, launch
from wmr_cli.training.loop import make_batches, train_step
from wmr_cli.training.optimization import StepSettings
from wmr_cli.training.setup import set_up_training

ROOT = os.environ.get("WMR_DATA_DIR")
pytestmark = [pytest.mark.data, pytest.mark.skipif(not ROOT, reason="WMR_DATA_DIR names no data")]
ROUNDS = 5


@pytest.fixture(scope="module")
def shares(registry: Registry) -> dict[str, float]:
    """The time that each needs for the same images, as a share of PGD training with 40 steps: by turns in one process."""
    runs = {
        name: set_up_training(
            resolve({"preset": "paper/mnist", "defense": name}),
            registry,
            Path(ROOT),
            launch(Hardware("cpu")),
        )
        for name in ("pgd", "free", "yopo", "fgsm-rs")
    }
    assert runs["pgd"].config.steps == 40
    positions = make_batches(runs["pgd"].split, runs["pgd"].config, epoch=0)
    spent: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(ROUNDS):
        batch = runs["pgd"].split.batch(positions[number])
        for name, run in runs.items():
            run.learner.begin_step(0, number, StepSettings(1e-4), len(batch.labels))
            started = time.perf_counter()
            train_step(run, batch, epoch=0)
            spent[name].append((time.perf_counter() - started) / run.defense.traits.replays)
    torch.manual_seed(0)
    return {name: median(seconds) / median(spent["pgd"]) for name, seconds in spent.items()}


@pytest.mark.parametrize("name", ["free", "yopo", "fgsm-rs"])
def test_it_needs_at_most_half_the_time_of_pgd_with_40_steps(
    shares: dict[str, float], name: str
) -> None:
    assert shares[name] <= 0.5, shares
