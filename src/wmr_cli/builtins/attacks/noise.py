"""`noise`: uniform noise, a lower bound for the strength of any attack."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ...core.norms import NORMS
from ...core.pgd import start_images
from ...core.protocols import AttackResult, Batch, Objective
from ...core.restarts import run_restarts
from ...core.traits import AttackTraits
from ...errors import BadInput


@dataclass(frozen=True)
class Noise:
    """Uniform noise in the ε-ball, the strongest of `restarts` samples. (N, C, H, W) in [0, 1].

    A sanity check without gradients: any attack should be stronger. Samples are ranked by the given
    objective; in evaluation that is the cross-entropy.
    """

    norm: Literal["linf", "l2"] = "linf"
    eps: float = 8 / 255
    restarts: int = 10

    traits = AttackTraits()

    def __post_init__(self) -> None:
        if self.eps < 0 or self.restarts < 1:
            raise BadInput(
                f"{self} cannot be run", hint="`eps` is at least 0, `restarts` is at least 1"
            )

    def __call__(
        self,
        model: nn.Module,
        batch: Batch,
        objective: Objective,
        *,
        seed: int,
        need_logits: bool = True,
    ) -> AttackResult:
        norm = NORMS[self.norm]

        def sample(rows: Tensor, restart: int) -> AttackResult:
            part = batch.select(rows)
            images = start_images("uniform", part, norm, self.eps, seed=seed, restart=restart)
            return AttackResult(images, torch.zeros_like(part.labels), model(images))

        with torch.no_grad():
            return run_restarts(
                sample, model, batch, objective, restarts=self.restarts, stops_early=False
            )
