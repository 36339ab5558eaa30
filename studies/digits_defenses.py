"""Compare all built-in defenses on the embedded digits, each with the settings of its preset.

Usage: `python studies/digits_defenses.py [OUT] [--seeds N] [--epochs N]`.

Writes the accuracies of every run, and the cost of each defense relative to natural training, as
JSON. `docs/generate.py` makes a table of the file next to this one.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import torch

from wmr_cli.config import resolve
from wmr_cli.core.protocols import Defense
from wmr_cli.plugins import load_plugins
from wmr_cli.registry import OWN_DISTRIBUTION
from wmr_cli.reporting.report import gather_records
from wmr_cli.runtime.fabric import Hardware, launch
from wmr_cli.training.loop import make_batches, train_step
from wmr_cli.training.optimization import StepSettings
from wmr_cli.training.setup import TrainingSetup, set_up_training

SEEDS = 3
ROUNDS = 15
"""Steps of each defense that are timed, after one to warm up."""
BATCHES = 9
"""The timed steps repeat this many batches."""
LATE_EPOCH = 20
"""An epoch after the warm-up of every defense."""
OUT = Path(__file__).with_suffix(".json")

Accuracies = dict[str, list[float]]
"""A_nat, A_rob, A_sa(2) and A_tr(2), one value per seed."""


def builtin_defenses() -> list[str]:
    """Return the names of the defenses of `wmr` itself."""
    registry = load_plugins().registry
    return [
        name
        for name in registry.names("defense")
        if registry.find("defense", name).owner == OWN_DISTRIBUTION
    ]


def run_wmr(folder: Path, *words: object) -> None:
    """Run a command with one thread, because several run at a time."""
    subprocess.run(
        [sys.executable, "-m", "wmr_cli", *map(str, words), "--quiet"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
    )


def measure_accuracies(
    folder: Path, seeds: int, train_flags: Sequence[object]
) -> dict[str, Accuracies]:
    """Train and evaluate every defense with every seed."""

    def run(case: tuple[int, str]) -> None:
        seed, defense = case
        out = folder / f"{defense}-{seed}"
        flags = ["--defense", defense, "--seed", seed, "--out", out, *train_flags]
        run_wmr(folder, "train", *flags)
        run_wmr(folder, "evaluate", out, "--alpha-test", "2")

    cases = [(seed, defense) for seed in range(seeds) for defense in builtin_defenses()]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(run, cases))
    return {
        defense: _read_accuracies([folder / f"{defense}-{seed}" for seed in range(seeds)])
        for defense in builtin_defenses()
    }


def _read_accuracies(runs: Sequence[Path]) -> Accuracies:
    found: Accuracies = {"a_nat": [], "a_rob": [], "a_sa": [], "a_tr": []}
    for record in gather_records(runs).records:
        row = record.by_alpha[0]
        assert record.a_rob is not None
        assert row.a_sa is not None
        assert row.a_tr is not None
        found["a_nat"].append(record.a_nat.value)
        found["a_rob"].append(record.a_rob.value)
        found["a_sa"].append(row.a_sa.value)
        found["a_tr"].append(row.a_tr.value)
    return found


def measure_costs() -> dict[str, float]:
    """Return the time per image of each defense, divided by that of natural training."""
    torch.set_num_threads(1)
    runs = {defense: _assemble(defense) for defense in builtin_defenses()}
    seconds: dict[str, list[float]] = {defense: [] for defense in runs}
    for number in range(ROUNDS + 1):
        # defenses alternate, so that other load on the machine affects all of them equally
        for defense, run in runs.items():
            seconds[defense].append(_time_step(run, number))
    # the first step warms up
    natural = seconds["natural"][1:]
    return {
        defense: median(own / other for own, other in zip(times[1:], natural, strict=True))
        for defense, times in seconds.items()
    }


def _time_step(run: TrainingSetup, number: int) -> float:
    positions = make_batches(run.split, run.config, epoch=0)[number % BATCHES]
    started = time.perf_counter()
    # a small learning rate: later steps should cost the same as the first ones
    run.learner.begin_step(
        LATE_EPOCH, number, StepSettings(1e-6), len(positions), measure_success=False
    )
    train_step(run, next(run.batches.read([positions], epoch=0)))
    # a defense that replays a batch needs fewer epochs
    return (time.perf_counter() - started) / _replays(run.defense)


def _replays(defense: Defense) -> int:
    return int(defense.traits.replays)


def _assemble(defense: str) -> TrainingSetup:
    config = resolve({"defense": defense})
    return set_up_training(config, load_plugins().registry, Path(), launch(Hardware("cpu")))


def main() -> None:
    """Run the study and write its results."""
    parser = argparse.ArgumentParser(description="Compare all built-in defenses on the digits.")
    parser.add_argument("out", nargs="?", type=Path, default=OUT)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--epochs", type=int, help="default: those of the preset")
    options = parser.parse_args()
    train_flags = [] if options.epochs is None else ["--epochs", options.epochs]
    with tempfile.TemporaryDirectory() as folder:
        accuracies = measure_accuracies(Path(folder), options.seeds, train_flags)
    costs = measure_costs()
    rows = {
        defense: {**accuracies[defense], "cost": costs[defense]} for defense in builtin_defenses()
    }
    options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
