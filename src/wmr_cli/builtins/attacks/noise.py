"""Noise: what an attack must beat to be one."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ...core.ascent import start
from ...core.contracts import Attacked, Objective
from ...core.norms import NORMS
from ...core.turns import restarted
from ...errors import BadInput


@dataclass(frozen=True)
class Noise:
    """Uniform noise in the ball, the strongest of `restarts` draws. (N, C, H, W) in [0, 1] to the same.

    A floor for sanity, without gradients: any attack should do better. Ranks draws by the objective it is given; in
    evaluation that is the cross-entropy.
    """

    norm: Literal["linf", "l2"] = "linf"
    eps: float = 8 / 255
    restarts: int = 10

    def __post_init__(self) -> None:
        if self.eps < 0 or self.restarts < 1:
            raise BadInput(f"{self} cannot be run", hint="eps is not negative; restarts is 1 or more")

    def __call__(
        self, model: nn.Module, images: Tensor, labels: Tensor, objective: Objective, index: Tensor, seed: int
    ) -> Attacked:
        def draw(rows: Tensor, restart: int) -> Attacked:
            moved = start("uniform", images[rows], NORMS[self.norm], self.eps, index[rows], seed, restart)
            return Attacked(moved, model(moved), torch.zeros_like(labels[rows]))

        with torch.no_grad():
            return restarted(draw, model, images, labels, objective, self.restarts, stops_early=False)
