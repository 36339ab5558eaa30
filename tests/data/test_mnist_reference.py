"""A published MNIST network on the whole test set, against numbers that an independent computation found.

Reads MNIST from WMR_DATA_DIR and the network from WMR_TEST_CHECKPOINTS.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT, PUBLISHED = os.environ.get("WMR_DATA_DIR"), os.environ.get("WMR_TEST_CHECKPOINTS")
pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(
        not (ROOT and PUBLISHED),
        reason="WMR_DATA_DIR and WMR_TEST_CHECKPOINTS name no data and checkpoints",
    ),
]
NETWORK = """
from torch import nn


def cnn():
    convolutions = (nn.Conv2d(1, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU())
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(1568, 100), nn.ReLU(), nn.Linear(100, 10))
"""


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """40 steps of 0.01 at eps 0.3 from a start of 0.001, the last iterate, on all 10,000 images."""
    folder = tmp_path_factory.mktemp("mnist")
    (folder / "cnn.py").write_text(NETWORK, encoding="utf-8")
    weights = Path(PUBLISHED) / "alpha-beta-CROWN" / "mnist_cnn_a_adv.model"
    words = [
        "evaluate",
        weights,
        "--model",
        "cnn.py:cnn",
        "--dataset",
        "mnist",
        "--out",
        folder,
        "--format",
        "json",
    ]
    words += [
        "--attack",
        "pgd:start=gauss:0.001,steps=40,step=0.01",
        "--eps",
        "0.3",
        "--alpha-test",
        "1,2",
        "--devices",
        "2",
    ]
    command = [sys.executable, "-m", "wmr_cli", *map(str, words)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    (record,) = json.loads(done.stdout)
    return record


def test_natural_accuracy_is_exact(record: dict) -> None:
    assert record["dataset"]["n"] == 10_000
    assert record["a_nat"]["value"] == 0.9633


def test_robust_accuracy_agrees(record: dict) -> None:
    assert record["a_rob"]["value"] == pytest.approx(0.799, abs=0.005)


@pytest.mark.parametrize(
    ("position", "metric", "value"), [(0, "a_sa", 0.556), (1, "a_sa", 0.284), (1, "a_tr", 0.264)]
)
def test_weighted_accuracies_agree(record: dict, position: int, metric: str, value: float) -> None:
    assert record["by_alpha"][position][metric]["value"] == pytest.approx(value, abs=0.005)
