"""`authors-eval`: the evaluation attack in the code released with the paper."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from ...core.eot import average_draws
from ...core.losses import get_objective
from ...core.norms import NORMS
from ...core.pgd import PgdSettings, run_pgd
from ...core.protocols import AttackResult, Batch, Objective
from ...core.traits import AttackTraits
from ...errors import BadInput


@dataclass(frozen=True)
class AuthorsEval:
    """PGD with chained restarts, as in the code of the paper (Zeng et al. 2021, arXiv:2010.12989).

    (N, C, H, W) in [0, 1]. For comparison with the paper only. Each restart starts at the end of
    the previous one plus uniform noise, without projection: up to twice eps away and outside
    [0, 1]. The result is the final iterate of highest unweighted `loss`, or the clean image if
    that is below 0: with `loss=margin` every image that survives is returned clean. Without
    `step` the step size is `eps / 10`.
    """

    norm: Literal["linf", "l2"] = "linf"
    eps: float = 8 / 255
    steps: int = 20
    step: float | None = None
    restarts: int = 10
    loss: str = "ce"
    eot: int = 1

    def __post_init__(self) -> None:
        is_negative = self.eps < 0 or (self.step or 0) < 0
        if is_negative or self.steps < 1 or self.restarts < 1 or self.eot < 1:
            raise BadInput(
                f"{self} cannot be run",
                hint="`eps` and `step` are at least 0, `steps`, `restarts` and `eot` at least 1",
            )
        get_objective(self.loss)

    @property
    def traits(self) -> AttackTraits:
        return AttackTraits(objective=self.loss, follows_preset=True, eot=self.eot)

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
        model = average_draws(model, self.eot)
        loss = get_objective(self.loss)
        step = self.eps / 10 if self.step is None else self.step
        settings = PgdSettings(norm, self.eps, step, self.steps)
        current = batch.images
        kept = batch.images
        with torch.no_grad():
            logits = model(batch.images)
        highest = torch.zeros_like(loss(logits, batch.labels))
        steps_survived = torch.full_like(batch.labels, self.steps)
        for restart in range(self.restarts):
            noise = norm.random(batch.images, self.eps, batch.index, seed, restart)
            final = run_pgd(model, batch, objective, current + noise, settings)
            current = final.images
            final_logits = final.require_logits()
            value = loss(final_logits, batch.labels)
            improves = value >= highest  # the later one at a tie, as in the released code
            kept = torch.where(improves[:, None, None, None], current, kept)
            logits = torch.where(improves[:, None], final_logits, logits)
            highest = torch.where(improves, value, highest)
            steps_survived = torch.minimum(steps_survived, final.steps_survived)
        return AttackResult(kept, steps_survived, logits)
