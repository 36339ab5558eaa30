"""Bounds of published MNIST networks agree with exact errors.

These were proved by mixed-integer programming over all 10,000 test images, and published with the
networks, in Hadisalman/robust-verify-benchmark.
"""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

NEEDED = ("WMR_DATA_DIR", "WMR_TEST_CHECKPOINTS")
pytestmark = pytest.mark.skipif(
    any(name not in os.environ for name in NEEDED),
    reason=f"{' or '.join(NEEDED)} is not set: they name datasets and published checkpoints",
)
NETWORK = """
from torch import nn

class Mlp(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(),
            nn.Linear(100, 10),
        )
"""
EXACT_ERRORS = {"0.1": 0.1445, "0.3": 0.5985}
"""By the eps of training and of the measurement."""
IMAGES = 200
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.mark.parametrize("eps", EXACT_ERRORS)
def test_bounds_contain_the_exact_error_and_splits_leave_few_images(
    wmr: Run, eps: str, tmp_path: Path
) -> None:
    (tmp_path / "network.py").write_text(NETWORK)
    folder = Path(os.environ["WMR_TEST_CHECKPOINTS"]) / "robust-verify-benchmark"
    words = f"evaluate {folder}/LPD_MLP_B_{eps}.pth --model network.py:Mlp --dataset mnist"
    attack = "--attack pgd:start=none,steps=40,step=0.01 --metrics rob,sa --format json --out out"

    def measure(verifier: str) -> dict[str, Any]:
        ran = wmr(
            *words.split(), *attack.split(),
            "--eps", eps, "--limit", str(IMAGES), "--certify", verifier,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        (record,) = json.loads(ran.stdout)
        return dict(record["bounds"])

    bounds = measure("crown:steps=10,splits=50")
    # 1.2 and 2.6 % of all 10,000 images are unknown
    assert bounds["unknown"] <= 0.06 * IMAGES
    # the subset is a sample of the images of the exact error
    assert bounds["a_rob"]["low"] <= 1 - EXACT_ERRORS[eps] <= bounds["a_rob"]["high"]
    loose = measure("crown:steps=0")
    assert loose["certified"] < bounds["certified"]
    assert loose["broken"] == bounds["broken"]
