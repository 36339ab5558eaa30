"""The attack with which the paper's authors evaluated, as they released it."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from ...core.ascent import ascend
from ...core.contracts import Attacked, Objective
from ...core.norms import NORMS
from ...core.objectives import objective_named
from ...errors import BadInput


@dataclass(frozen=True)
class AuthorsEval:
    """PGD with chained restarts, as in the code released with the paper (Zeng et al. 2021, arXiv:2010.12989).

    (N, C, H, W) in [0, 1] to the same. To compare with the paper, not to trust: use `pgd` with restarts for that. Each restart
    begins at the end of the last plus uniform noise, without projection, so up to twice eps away and outside [0, 1]. The
    final iterates compete by the unweighted `loss` with the clean image, which counts as 0: no matter for the
    cross-entropy, but with `loss=margin` every image that survives comes back clean. Without `step` the step is eps / 10.
    """

    follows_preset: ClassVar[bool] = True
    """steps and step are those with which the checkpoint's preset evaluates"""

    norm: Literal["linf", "l2"] = "linf"
    eps: float = 8 / 255
    steps: int = 20
    step: float | None = None
    restarts: int = 10
    loss: str = "ce"

    def __post_init__(self) -> None:
        if self.eps < 0 or self.steps < 1 or self.restarts < 1 or (self.step or 0) < 0:
            raise BadInput(f"{self} cannot be run", hint="eps and step are not negative; steps and restarts are 1 or more")
        objective_named(self.loss)

    def __call__(
        self, model: nn.Module, images: Tensor, labels: Tensor, objective: Objective, index: Tensor, seed: int
    ) -> Attacked:
        norm, judge = NORMS[self.norm], objective_named(self.loss)
        step = self.eps / 10 if self.step is None else self.step
        with torch.no_grad():
            current, kept, logits = images, images, model(images)
        highest, survived = torch.zeros_like(judge(logits, labels)), torch.full_like(labels, self.steps)
        for restart in range(self.restarts):
            begin = current + norm.random(images, self.eps, index, seed, restart)
            final = ascend(model, images, labels, objective, begin, norm=norm, eps=self.eps, step=step, steps=self.steps)
            current, value = final.images, judge(final.logits, labels)
            takes = value >= highest  # the later of two alike
            kept = torch.where(takes[:, None, None, None], current, kept)
            logits = torch.where(takes[:, None], final.logits, logits)
            highest = torch.where(takes, value, highest)
            survived = torch.minimum(survived, final.steps_survived)
        return Attacked(kept, logits, survived)
