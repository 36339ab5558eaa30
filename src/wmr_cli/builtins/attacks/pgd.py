"""`pgd`, `pgd-margin` and `fgsm`: projected gradient descent with many steps or with one."""

import functools
from dataclasses import dataclass, replace
from typing import Literal

from torch import nn

from ...core.eot import average_draws
from ...core.losses import get_objective
from ...core.norms import NORMS
from ...core.pgd import GAUSS_SCALE, PgdSettings, StartKind, run_pgd, start_images
from ...core.protocols import AttackResult, Batch, Objective
from ...core.restarts import pick_lower_margin
from ...core.traits import AttackTraits
from ...errors import BadInput
from ...spec import parse_number


@dataclass(frozen=True)
class Pgd:
    """Projected gradient ascent (Madry et al. 2018, arXiv:1706.06083). (N, C, H, W) in [0, 1].

    Maximises the given objective; in evaluation that is its `loss`. Restarts are independent, and
    the result of lowest margin is kept for each image, whatever the objective. `keep=best` selects
    among iterates in the same way. Without `step` the step size is `2.5 * eps / steps`. `start` may
    also be `none`, or `gauss:0.001` for normal noise.
    """

    norm: Literal["linf", "l2"] = "linf"
    eps: float = 8 / 255
    steps: int = 20
    step: float | None = None
    start: str = "uniform"
    restarts: int = 1
    keep: Literal["last", "best"] = "last"
    loss: str = "ce"
    eot: int = 1

    def __post_init__(self) -> None:
        is_negative = self.eps < 0 or self.steps < 0 or (self.step or 0) < 0
        if is_negative or self.restarts < 1 or self.eot < 1:
            raise BadInput(
                f"{self} cannot be run",
                hint="`eps`, `step` and `steps` are at least 0, `restarts` and `eot` at least 1",
            )
        get_objective(self.loss)
        _parse_start(self.start)

    @property
    def traits(self) -> AttackTraits:
        return AttackTraits(objective=self.loss, eot=self.eot)

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
        step = 2.5 * self.eps / max(self.steps, 1) if self.step is None else self.step
        settings = PgdSettings(norm, self.eps, step, self.steps)
        kind, scale = _parse_start(self.start)
        result: AttackResult | None = None
        for restart in range(self.restarts):
            start = start_images(
                kind, batch, norm, self.eps, seed=seed, restart=restart, scale=scale
            )
            final = run_pgd(
                model,
                batch,
                objective,
                start,
                settings,
                keep_lowest_margin=self.keep == "best",
                # margins decide between restarts, and need logits
                need_logits=need_logits or self.restarts > 1,
            )
            if result is not None:
                final = pick_lower_margin(result, final, batch.labels)
            result = final
        assert result is not None  # restarts is 1 or more
        return result if need_logits else replace(result, logits=None)


@dataclass(frozen=True)
class Fgsm:
    """One step of length eps (Goodfellow et al. 2015, arXiv:1412.6572). (N, C, H, W) in [0, 1].

    Starts at the image and maximises the given objective; in evaluation that is the cross-entropy.
    """

    norm: Literal["linf", "l2"] = "linf"
    eps: float = 8 / 255
    eot: int = 1

    def __post_init__(self) -> None:
        if self.eps < 0 or self.eot < 1:
            raise BadInput(f"{self} cannot be run", hint="`eps` is at least 0, `eot` is at least 1")

    @property
    def traits(self) -> AttackTraits:
        return AttackTraits(eot=self.eot)

    def __call__(
        self,
        model: nn.Module,
        batch: Batch,
        objective: Objective,
        *,
        seed: int,
        need_logits: bool = True,
    ) -> AttackResult:
        model = average_draws(model, self.eot)
        one_step = PgdSettings(NORMS[self.norm], self.eps, step=self.eps, steps=1)
        return run_pgd(model, batch, objective, batch.images, one_step, need_logits=need_logits)


@functools.cache
def _parse_start(text: str) -> tuple[StartKind, float]:
    """Split `uniform`, `none`, `gauss` or `gauss:0.001` into kind and scale."""
    kind, _, scale = text.partition(":")
    match kind, scale:
        case "uniform", "":
            return "uniform", GAUSS_SCALE
        case "none", "":
            return "none", GAUSS_SCALE
        case "gauss", "":
            return "gauss", GAUSS_SCALE
        case "gauss", _:
            return "gauss", parse_number(scale)
    raise BadInput(f"`start` is {text!r}", hint="`start` is uniform, gauss:0.001 or none")
