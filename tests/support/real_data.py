"""Real datasets and published checkpoints, in the folders that two environment variables name."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

DATA_DIR = Path(os.environ.get("WMR_DATA_DIR", ""))
CHECKPOINTS = Path(os.environ.get("WMR_TEST_CHECKPOINTS", ""))
MNIST_WEIGHTS = CHECKPOINTS / "alpha-beta-CROWN" / "mnist_cnn_a_adv.model"
MNIST_MODEL = f"{Path(__file__).parents[2]}/studies/published_networks.py:Cnn"
"""The architecture of `MNIST_WEIGHTS`."""

needs_data = pytest.mark.skipif(
    "WMR_DATA_DIR" not in os.environ, reason="WMR_DATA_DIR is not set: it names the datasets"
)
needs_checkpoints = pytest.mark.skipif(
    "WMR_TEST_CHECKPOINTS" not in os.environ,
    reason="WMR_TEST_CHECKPOINTS is not set: it names the published checkpoints",
)


def run_wmr(folder: Path, *args: object) -> str:
    """Run a `wmr` command as a process in a folder, and return its stdout."""
    command = [sys.executable, "-m", "wmr_cli", *map(str, args)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
