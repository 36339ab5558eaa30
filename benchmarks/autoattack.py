"""Compare `wmr evaluate --attack autoattack` with pyautoattack, on an idle and on a busy machine.

Each runs in a process of its own with its default number of threads, as its users run it.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from wmr_cli.benchmarking.timing import Quartiles, time_ratio
from wmr_cli.plugins import load_plugins
from wmr_cli.runtime import datasets

from .comparisons import WMR, Comparison, Effort

PEER = "pyautoattack"
EPS = 0.15
EPOCHS = 6
BUSY_LOOP = "while True: pass"


@dataclass(frozen=True)
class AutoAttackCase:
    """A network of `wmr`, and the number of images of digits that are attacked."""

    model: str
    images: int
    quick_images: int
    enlarges: bool = False
    """Images of 28x28 instead of 8x8 pixels."""
    is_busy: bool = False


AUTOATTACK_CASES = {
    "autoattack/resnet": AutoAttackCase("resnet20", images=256, quick_images=16),
    "autoattack/small-cnn": AutoAttackCase("small-cnn", images=256, quick_images=16, enlarges=True),
    # one busy loop per core
    "autoattack/busy": AutoAttackCase(
        "small-cnn", images=256, quick_images=16, enlarges=True, is_busy=True
    ),
}


def compare_autoattack(case: AutoAttackCase, folder: Path, effort: Effort) -> Comparison:
    """Run both alternately; the title of the result has A_rob of both."""
    run = folder / f"autoattack-{case.model}"
    if not run.exists():
        train(case, run)
    images = case.quick_images if effort.is_quick else case.images
    commands = {
        WMR: own_command(run, images),
        PEER: [
            *("-m", "benchmarks.autoattack_peer"),
            *(str(run / "last.safetensors"), str(images), str(EPS)),
        ],
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    rates: dict[str, list[float]] = {name: [] for name in commands}
    started = time.perf_counter()
    with keep_cores_busy(case.is_busy):
        for number in range(effort.rounds):
            # another order in every round, like `time_alternately`
            for name in sorted(commands, reverse=number % 2 == 1):
                seconds, a_rob = measure(commands[name])
                times[name].append(seconds)
                rates[name].append(a_rob)
            if time.perf_counter() - started > effort.seconds:
                break
    found = ", ".join(f"{name} {100 * fmean(values):.1f} %" for name, values in rates.items())
    load = ", one busy loop per core" if case.is_busy else ""
    title = f"AutoAttack: {case.model}, {images} images{load}; A_rob: {found}"
    return Comparison(title, images, times)


def speedup_of_autoattack(comparison: Comparison) -> Quartiles:
    """Return how many times as fast as pyautoattack `wmr` is."""
    return time_ratio(comparison.times[PEER], comparison.times[WMR])


def train(case: AutoAttackCase, run: Path) -> None:
    """Train a network adversarially for a few epochs: AutoAttack needs images that survive."""
    dataset = "digits"
    if case.enlarges:
        path = run.with_suffix(".npz")
        write_large_digits(path)
        dataset = f"arrays:path={path},classes=10"
    settings = {
        "--preset": "digits",
        "--dataset": dataset,
        "--model": case.model,
        "--defense": "fgsm-rs:reach=1.25",
        "--epochs": str(EPOCHS),
        "--out": str(run),
    }
    run_python(
        ["-m", "wmr_cli", "train", "--quiet", *(part for pair in settings.items() for part in pair)]
    )


def write_large_digits(path: Path) -> None:
    """Write the digits as images of 28x28 pixels to a file that `arrays:path=…` reads."""
    source = datasets.build_dataset(load_plugins().registry, "digits", Path())
    arrays: dict[str, Any] = {}
    for name in ("train", "val", "test"):
        split = source.splits[name]
        images = split.batch(torch.arange(len(split))).images
        large = functional.pad(images.repeat_interleave(3, 2).repeat_interleave(3, 3), [2] * 4)
        arrays[f"{name}_images"] = (255 * large).round().to(torch.uint8).numpy()
        arrays[f"{name}_labels"] = split.labels.numpy()
    np.savez(path, **arrays)


def own_command(run: Path, images: int) -> list[str]:
    """Return the arguments of Python that evaluate a run."""
    settings = {"--attack": "autoattack", "--eps": str(EPS), "--limit": str(images)}
    return [
        *("-m", "wmr_cli", "evaluate", str(run), "--metrics", "nat,rob", "--format", "json"),
        *(part for pair in settings.items() for part in pair),
    ]


def measure(command: Sequence[str]) -> tuple[float, float]:
    """Run a command; return its seconds without the start of Python, and A_rob."""
    arguments = list(command)
    with tempfile.TemporaryDirectory() as folder:
        # a new folder: a stored record would not be measured again
        if "evaluate" in arguments:
            arguments += ["--out", folder]
        output: Any = json.loads(run_python(arguments))
    if isinstance(output, list):  # records of `wmr evaluate`
        return output[0]["seconds"], output[0]["a_rob"]["value"]
    return output["seconds"], output["a_rob"]


def run_python(arguments: Sequence[str]) -> str:
    """Run Python with the settings that users have, and return its output."""
    own = ("GOMP_SPINCOUNT", "OMP_NUM_THREADS", "WMR_KEEP_MEMORY")
    environment = {name: value for name, value in os.environ.items() if name not in own}
    command = [sys.executable, *arguments]
    found = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return found.stdout


@contextmanager
def keep_cores_busy(is_busy: bool) -> Iterator[None]:
    """Run one busy loop per core inside, if `is_busy`."""
    loops: list[subprocess.Popen[bytes]] = []
    try:
        count = (os.cpu_count() or 1) if is_busy else 0
        loops += [subprocess.Popen([sys.executable, "-c", BUSY_LOOP]) for _ in range(count)]
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
