"""A published MNIST model on all test images, compared with an independent computation."""

import json
from typing import Any

import pytest

from support.real_data import (
    MNIST_MODEL,
    MNIST_WEIGHTS,
    needs_checkpoints,
    needs_data,
    run_wmr,
)

pytestmark = [pytest.mark.data, needs_checkpoints, needs_data]


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the record of PGD with 40 steps of 0.01 at eps 0.3, last iterate, on 2 devices."""
    folder = tmp_path_factory.mktemp("mnist")
    model = ("--model", MNIST_MODEL, "--dataset", "mnist")
    attack = ("--attack", "pgd:start=gauss:0.001,steps=40,step=0.01", "--eps", "0.3")
    output = ("--out", folder, "--format", "json")
    settings = ("--alpha-test", "1,2", "--devices", "2")
    stdout = run_wmr(folder, "evaluate", MNIST_WEIGHTS, *model, *attack, *settings, *output)
    (record,) = json.loads(stdout)
    assert isinstance(record, dict)
    return record


def test_natural_accuracy_is_exact(record: dict[str, Any]) -> None:
    assert record["dataset"]["n"] == 10_000
    assert record["a_nat"]["value"] == 0.9633


def test_robust_accuracy_agrees(record: dict[str, Any]) -> None:
    assert record["a_rob"]["value"] == pytest.approx(0.799, abs=0.005)


@pytest.mark.parametrize(
    ("position", "metric", "value"), [(0, "a_sa", 0.556), (1, "a_sa", 0.284), (1, "a_tr", 0.264)]
)
def test_weighted_accuracies_agree(
    record: dict[str, Any], position: int, metric: str, value: float
) -> None:
    assert record["by_alpha"][position][metric]["value"] == pytest.approx(value, abs=0.005)
