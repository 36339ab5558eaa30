"""Tests on the emulated device have a process of their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from emulated.runtime import emulation

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect these tests beside others, whose torch they would change."""
    of_device = [item for item in items if FOLDER in item.path.parents]
    if len(of_device) < len(items):
        config.hook.pytest_deselected(items=of_device)
        items[:] = [item for item in items if item not in of_device]


@pytest.fixture
def cuda_like() -> Iterator[torch.device]:
    """Return the device, with float64 and asynchronous copies."""
    with emulation() as device:
        yield device


@pytest.fixture(params=["like-cuda", "like-mps"])
def any_device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Return the device, once as on CUDA and once without float64 and asynchronous copies."""
    with emulation(like_mps=request.param == "like-mps") as device:
        yield device
