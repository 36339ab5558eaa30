"""Defenses with fewer passes than PGD training take less time, on real MNIST."""

import time
from statistics import median

import pytest

from support.real_data import DATA_DIR, needs_data
from wmr_cli.config import resolve
from wmr_cli.registry import Registry
from wmr_cli.runtime.fabric import Hardware, launch
from wmr_cli.training.loop import make_batches, train_step
from wmr_cli.training.optimization import StepSettings
from wmr_cli.training.setup import set_up_training

pytestmark = [pytest.mark.data, needs_data]
CHEAP_DEFENSES = ("free", "yopo", "fgsm-rs")
ROUNDS = 5


@pytest.fixture(scope="module")
def relative_times(registry: Registry) -> dict[str, float]:
    """Return the time per image relative to PGD training with 40 steps.

    The defenses alternate in one process, so that a slow phase of the machine affects all of them.
    """
    runs = {
        name: set_up_training(
            resolve({"preset": "paper/mnist", "defense": name}),
            registry,
            DATA_DIR,
            launch(Hardware("cpu")),
        )
        for name in ("pgd", *CHEAP_DEFENSES)
    }
    assert runs["pgd"].config.steps == 40
    positions = make_batches(runs["pgd"].split, runs["pgd"].config, epoch=0)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(ROUNDS):
        batch = runs["pgd"].split.batch(positions[number])
        for name, run in runs.items():
            run.learner.begin_step(0, number, StepSettings(1e-4), len(batch.labels))
            started = time.perf_counter()
            train_step(run, batch)
            elapsed = time.perf_counter() - started
            seconds[name].append(elapsed / run.defense.traits.replays)
    return {name: median(of_name) / median(seconds["pgd"]) for name, of_name in seconds.items()}


@pytest.mark.parametrize("name", CHEAP_DEFENSES)
def test_a_cheap_defense_takes_at_most_half_the_time_of_pgd(
    relative_times: dict[str, float], name: str
) -> None:
    assert relative_times[name] <= 0.5, relative_times
