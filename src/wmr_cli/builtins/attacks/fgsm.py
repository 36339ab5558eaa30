"""The fast gradient sign method (FGSM)."""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from ...core.norms import NORMS
from ...core.pgd import PgdSettings, run_pgd
from ...core.protocols import AttackResult, Batch, Objective
from ...core.traits import AttackTraits
from ...errors import BadInput


@dataclass(frozen=True)
class Fgsm:
    """One step of length eps from the image (Goodfellow et al. 2015, arXiv:1412.6572). (N, C, H, W) in [0, 1] to the same.

    Maximises the objective it is given; in evaluation that is the cross-entropy.
    """

    norm: Literal["linf", "l2"] = "linf"
    eps: float = 8 / 255

    traits = AttackTraits()

    def __post_init__(self) -> None:
        if self.eps < 0:
            raise BadInput(f"{self} cannot be run", hint="eps is not negative")

    def __call__(
        self,
        model: nn.Module,
        batch: Batch,
        objective: Objective,
        *,
        seed: int,
        need_logits: bool = True,
    ) -> AttackResult:
        one_step = PgdSettings(NORMS[self.norm], self.eps, step=self.eps, steps=1)
        return run_pgd(model, batch, objective, batch.images, one_step, need_logits=need_logits)
