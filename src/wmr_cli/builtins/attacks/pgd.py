"""Projected gradient ascent, with any number of steps, restarts and starts."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from ...core.ascent import Route, ascend, climb, start, worse
from ...core.contracts import Attacked, Crafted, Objective
from ...core.norms import NORMS
from ...core.objectives import objective_named
from ...errors import BadInput
from ...spec import number


@dataclass(frozen=True)
class Pgd:
    """Projected gradient ascent (Madry et al. 2018, arXiv:1706.06083). (N, C, H, W) in [0, 1] to the same.

    Climbs the objective it is given; in evaluation that is its `loss`. Restarts are fresh and independent, and the
    result of lowest margin is kept image by image. Without `step` the step is 2.5 * eps / steps.
    """

    norm: Literal["linf", "l2"] = "linf"
    eps: float = 8 / 255
    steps: int = 20
    step: float | None = None
    start: str = "uniform"
    restarts: int = 1
    keep: Literal["last", "best"] = "last"
    loss: str = "ce"

    def __post_init__(self) -> None:
        if self.eps < 0 or self.steps < 0 or self.restarts < 1 or (self.step or 0) < 0:
            raise BadInput(f"{self} cannot be run", hint="eps, step and steps are not negative; restarts is 1 or more")
        objective_named(self.loss)
        _start_of(self.start)

    def __call__(
        self, model: nn.Module, images: Tensor, labels: Tensor, objective: Objective, index: Tensor, seed: int
    ) -> Attacked:
        result: Attacked | None = None
        for restart in range(self.restarts):
            begin = self._start(images, index, seed, restart)
            final = ascend(model, images, labels, objective, begin, **self._route, keep_best=self.keep == "best")
            result = worse(result, final, labels)
        assert result is not None  # there is one restart at least
        return result

    def craft(self, model: nn.Module, images: Tensor, labels: Tensor, objective: Objective, index: Tensor, seed: int) -> Crafted:
        """The same images without their logits, unless logits decide which images those are."""
        if self.restarts > 1 or self.keep == "best":
            chosen = self(model, images, labels, objective, index, seed)
            return Crafted(chosen.images, chosen.steps_survived)
        return climb(model, images, labels, objective, self._start(images, index, seed), **self._route)

    def _start(self, images: Tensor, index: Tensor, seed: int, restart: int = 0) -> Tensor:
        kind, scale = _start_of(self.start)
        return start(kind, images, NORMS[self.norm], self.eps, index, seed, restart, scale)

    @property
    def _route(self) -> Route:
        step = 2.5 * self.eps / max(self.steps, 1) if self.step is None else self.step
        return {"norm": NORMS[self.norm], "eps": self.eps, "step": step, "steps": self.steps}


def _start_of(text: str) -> tuple[str, float]:
    """`uniform`, `none`, `gauss` or `gauss:0.001` to kind and scale."""
    kind, _, scale = text.partition(":")
    if kind not in ("uniform", "gauss", "none") or (scale and kind != "gauss"):
        raise BadInput(f"an attack cannot start at {text!r}", hint="start is uniform, gauss:0.001 or none")
    return kind, number(scale) if scale else 0.001
