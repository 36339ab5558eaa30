"""Two published checkpoints reach their accuracies with commands alone."""

import json
from pathlib import Path

import pytest

from support.real_data import (
    MNIST_MODEL,
    MNIST_WEIGHTS,
    RESNET_WEIGHTS,
    needs_checkpoints,
    needs_data,
    run_wmr,
)

pytestmark = [pytest.mark.data, needs_checkpoints, needs_data]
RESNET = "resnet20:mean=0.485:0.456:0.406,std=0.229:0.224:0.225"


@pytest.mark.parametrize(
    ("weights", "model", "dataset", "percent"),
    [
        (MNIST_WEIGHTS, "network.py:Cnn", "mnist", 96.33),
        (RESNET_WEIGHTS, RESNET, "cifar10", 91.7),
    ],
    ids=["mnist", "cifar10"],
)
def test_a_published_checkpoint_reaches_its_accuracy(
    weights: Path, model: str, dataset: str, percent: float, tmp_path: Path
) -> None:
    (tmp_path / "network.py").write_text(MNIST_MODEL, encoding="utf-8")
    imported = run_wmr(tmp_path, "import", weights, "--model", model, "--dataset", dataset)
    evaluate = ("evaluate", imported.strip(), "--metrics", "nat", "--format", "json")
    (record,) = json.loads(run_wmr(tmp_path, *evaluate))
    assert record["dataset"]["n"] == 10_000
    assert 100 * record["a_nat"]["value"] == pytest.approx(percent, abs=0.1)
