"""Every defense on the embedded digits, each by its preset, over three seeds: `python studies/digits_defenses.py [OUT]`.

Writes the accuracies of every run, and what a defense costs beside natural training, as JSON; `docs/generate.py` turns the
file beside this one into a table.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import torch

from wmr_cli.config import resolve
from wmr_cli.plugins import OURS, installed
from wmr_cli.reporting.report import gather
from wmr_cli.runtime.distributed import launched
from wmr_cli.training.loop import batches
from wmr_cli.training.optimization import StepSettings
from wmr_cli.training.setup import Assembly, assemble

SEEDS = range(3)
ROUNDS = 15
FOUND = Path(__file__).with_suffix(".json")


def defenses() -> list[str]:
    """Ours, by name."""
    registry = installed().registry
    return [
        name for name in registry.names("defense") if registry.find("defense", name).owner == OURS
    ]


def wmr(folder: Path, *words: object) -> None:
    """A command, on one thread: several run at a time."""
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-m", "wmr_cli", *map(str, words), "--quiet"],
        cwd=folder,
        env=one_thread,
        check=True,
    )


def accuracies(folder: Path) -> dict[str, dict[str, list[float]]]:
    """A_nat, A_rob, A_sa(2) and A_tr(2) on the test images, for every defense and seed."""

    def run(case: tuple[int, str]) -> None:
        seed, defense = case
        out = folder / f"{defense}-{seed}"
        wmr(folder, "train", "--defense", defense, "--seed", seed, "--out", out)
        wmr(folder, "evaluate", out, "--alpha-test", "2")

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(run, [(seed, defense) for seed in SEEDS for defense in defenses()]))
    found: dict[str, dict[str, list[float]]] = {}
    for defense in defenses():
        records = gather([folder / f"{defense}-{seed}" for seed in SEEDS]).records
        chosen = [record.by_alpha[0] for record in records]
        found[defense] = {
            "a_nat": [record.a_nat.value for record in records],
            "a_rob": [record.a_rob.value for record in records],
            "a_sa": [row.a_sa.value for row in chosen],
            "a_tr": [row.a_tr.value for row in chosen],
        }
    return found


def costs() -> dict[str, float]:
    """The time for the same images, natural training being 1: steps in turn in one process, the median of the ratios."""
    torch.set_num_threads(1)
    runs = {defense: assembled(defense) for defense in defenses()}
    spent: dict[str, list[float]] = {defense: [] for defense in runs}
    for number in range(ROUNDS + 1):
        for defense, run in runs.items():
            positions = batches(run.split, run.config, epoch=0)[number % 9]
            started = time.perf_counter()
            run.learner.begin_step(
                20, number, StepSettings(1e-6), len(positions)
            )  # an epoch after every warm-up
            run.step(run.split.batch(positions), epoch=0)
            replays = getattr(run.defense, "replays", 1)
            spent[defense].append((time.perf_counter() - started) / replays)
    return {
        defense: median(
            mine / natural for mine, natural in zip(seconds[1:], spent["natural"][1:], strict=True)
        )
        for defense, seconds in spent.items()
    }


def assembled(defense: str) -> Assembly:
    """A run that is ready for its first step."""
    return assemble(resolve({"defense": defense}), installed().registry, Path(), launched("cpu"))


if __name__ == "__main__":
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else FOUND
    with tempfile.TemporaryDirectory() as folder:
        found = accuracies(Path(folder))
    spent = costs()
    rows = {defense: {**found[defense], "cost": spent[defense]} for defense in found}
    out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
