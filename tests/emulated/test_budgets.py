"""Launches, waits of the host and bytes from the host in one training step."""

from pathlib import Path
from typing import Any

import pytest

from emulated.measuring import check_budget, make_config, measure_step, save_images
from wmr_cli.registry import Registry

pytestmark = [pytest.mark.emulated, pytest.mark.usefixtures("cuda_like")]

MAX_WAITS = 8
MAX_LAUNCHES_PER_PGD_STEP = 110
MAX_LAUNCHES_OF_TRADES = 3300
MAX_BYTES_FROM_HOST = 10_000
SETTINGS: dict[str, dict[str, Any]] = {
    "resnet18-pgd": {"model": "resnet18", "kernel": "none", "steps": 10, "ema": 0},
    "resnet18-trades-bf16": {
        "model": "resnet18",
        "defense": "trades",
        "steps": 10,
        "precision": "bf16",
        "augment": "crop:1,flip",
    },
    "resnet20-pgd": {"model": "resnet20", "augment": "crop:1,flip"},
    "cnn-cifar10": {"augment": "crop:4,flip", "batch_size": 128},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_training_step_stays_within_its_budget(
    name: str, registry: Registry, tmp_path: Path
) -> None:
    settings = SETTINGS[name]
    if "batch_size" in settings:
        dataset = save_images(tmp_path, 384, 3, 32)
    else:
        dataset = save_images(tmp_path, channels=3)
    measured = measure_step(make_config(dataset, **settings), tmp_path / "run", registry)
    numbers = measured.numbers()
    assert numbers["launches_per_pgd_step"] > 0
    # limits that no budget may exceed
    assert numbers["waits"] <= MAX_WAITS, measured.step.list_places("waits")
    assert numbers["waits_per_pgd_step"] == 0, measured.pgd_step.list_places("waits")
    bytes_from_host = measured.step.list_places("bytes_from_host")
    assert 0 < numbers["bytes_from_host"] <= MAX_BYTES_FROM_HOST, bytes_from_host
    if name == "resnet18-pgd":
        assert numbers["launches_per_pgd_step"] <= MAX_LAUNCHES_PER_PGD_STEP
    if name == "resnet18-trades-bf16":
        assert numbers["launches"] <= MAX_LAUNCHES_OF_TRADES
    check_budget(name, measured)
