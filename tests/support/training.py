"""Start trainings and build learners with few words."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wmr_cli.config import TrainConfig
from wmr_cli.events import Event
from wmr_cli.registry import Registry
from wmr_cli.runtime.fabric import Hardware
from wmr_cli.training import loop


def train(
    config: TrainConfig,
    path: Path,
    registry: Registry,
    *,
    data_dir: Path = Path(),
    device: str = "cpu",
    **options: Any,
) -> Iterator[Event]:
    """Train in this process."""
    run_options = loop.TrainOptions(data_dir=data_dir, hardware=Hardware(device), **options)
    return loop.train(config, path, registry, run_options)
