"""AutoAttack of pyautoattack on a checkpoint of `wmr`, as a program of its own.

Prints seconds and robust accuracy as JSON.
"""

import json
import time
import warnings
from pathlib import Path

import torch
import typer

from wmr_cli.core import torchvision_compat
from wmr_cli.plugins import load_plugins
from wmr_cli.runtime import components, datasets
from wmr_cli.storage import checkpoints

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    assert torchvision_compat.torchvision
    from pyautoattack import AutoAttack


def main(checkpoint: Path, images: int, eps: float) -> None:
    """Attack the first test images in batches of 250, the default of the library."""
    warnings.simplefilter("ignore")
    registry = load_plugins().registry
    loaded = checkpoints.load(checkpoint)
    model = components.restore_model(registry, loaded).eval()
    split = datasets.build_dataset(registry, loaded.config.dataset, Path()).splits["test"]
    batch = split.batch(torch.arange(images))
    started = time.perf_counter()
    attack = AutoAttack(model, norm="Linf", eps=eps, seed=0, device="cpu")
    found, _ = attack.run_standard_evaluation(batch.images, batch.labels)
    seconds = time.perf_counter() - started
    with torch.no_grad():
        a_rob = float((model(found).argmax(dim=1) == batch.labels).float().mean())
    typer.echo(json.dumps({"seconds": seconds, "a_rob": a_rob}))


if __name__ == "__main__":
    typer.run(main)
