"""The two networks of the benchmarks, each with a batch size, an ε-ball and attack settings."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wmr_cli.config import TrainConfig

CLASSES = 10
LR = 0.001
MOMENTUM = 0.9
BETA = 6.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """A network on images (C, H, W), a batch size, and PGD in an L-infinity ball."""

    model: str
    shape: tuple[int, int, int]
    batch: int
    eps: float
    step: float
    steps: int

    def config(self, data: Path, defense: str, attack: str) -> TrainConfig:
        """Return settings of a training that does what the public loops do.

        Loss weights and validation are off, because those loops have neither.
        """
        return TrainConfig(
            dataset=f"arrays:path={data},classes={CLASSES}",
            model=self.model,
            defense=defense,
            kernel="none",
            eps=self.eps,
            attack=attack,
            steps=self.steps,
            step_size=self.step,
            batch_size=self.batch,
            optimizer="sgd",
            lr=LR,
            momentum=MOMENTUM,
            schedule="constant",
            validate_every=0,
            select="none",
        )


CASES = {
    "small-cnn": Case(
        model="small-cnn", shape=(1, 28, 28), batch=128, eps=0.3, step=0.01, steps=10
    ),
    "resnet18": Case(
        model="resnet18", shape=(3, 32, 32), batch=64, eps=8 / 255, step=2 / 255, steps=10
    ),
}


def write_data(case: Case, path: Path, images: int) -> None:
    """Write random images and labels to a file that `arrays:path=…` reads."""
    # speed does not depend on the content of images
    generator = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for split, count in (("train", case.batch), ("val", case.batch), ("test", images)):
        arrays[f"{split}_images"] = generator.integers(0, 256, (count, *case.shape), dtype=np.uint8)
        arrays[f"{split}_labels"] = np.arange(count) % CLASSES
    np.savez(path, **arrays)
