"""Two checkpoints that other projects published reach their accuracies through the command line alone.

WMR_TEST_CHECKPOINTS names a folder with `alpha-beta-CROWN/mnist_cnn_a_adv.model` and
`akamaster_resnet/resnet20-12fca82f.th`; WMR_DATA_DIR holds MNIST and CIFAR-10.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKPOINTS, DATA = os.environ.get("WMR_TEST_CHECKPOINTS"), os.environ.get("WMR_DATA_DIR")
NETWORK = """
from torch import nn

class Cnn(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU(),
            nn.Flatten(), nn.Linear(1568, 100), nn.ReLU(), nn.Linear(100, 10),
        )
"""

pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(
        not CHECKPOINTS, reason="WMR_TEST_CHECKPOINTS names no folder of published checkpoints"
    ),
    pytest.mark.skipif(not DATA, reason="WMR_DATA_DIR names no folder with MNIST and CIFAR-10"),
]


def wmr(*args: object) -> str:
    """What the program prints on stdout."""
    command = [sys.executable, "-m", "wmr_cli", *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("file", "model", "dataset", "percent"),
    [
        ("alpha-beta-CROWN/mnist_cnn_a_adv.model", "network.py:Cnn", "mnist", 96.33),
        (
            "akamaster_resnet/resnet20-12fca82f.th",
            "resnet20:mean=0.485:0.456:0.406,std=0.229:0.224:0.225",
            "cifar10",
            91.7,
        ),
    ],
    ids=["mnist", "cifar10"],
)
def test_a_published_checkpoint_reaches_its_accuracy(
    file: str, model: str, dataset: str, percent: float
) -> None:
    Path("network.py").write_text(NETWORK, encoding="utf-8")
    checkpoint = wmr(
        "import", Path(CHECKPOINTS) / file, "--model", model, "--dataset", dataset
    ).strip()
    (record,) = json.loads(wmr("evaluate", checkpoint, "--metrics", "nat", "--format", "json"))
    assert record["dataset"]["n"] == 10_000
    assert 100 * record["a_nat"]["value"] == pytest.approx(percent, abs=0.1)
