"""AutoAttack: four attacks that fail in different ways, one after the other."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from torch import Tensor, nn

from ...core.contracts import Attacked, Objective
from ...core.objectives import objective_named
from ...core.turns import take_turns
from ...errors import BadInput, UnknownName, did_you_mean
from .apgd import Apgd
from .apgd_targeted import TargetedApgd
from .fab_targeted import TargetedFab
from .square import Square

Part = Apgd | TargetedApgd | TargetedFab | Square
STANDARD = ("apgd-ce", "apgd-t", "fab-t", "square")


@dataclass(frozen=True)
class AutoAttack:
    """The standard AutoAttack (Croce and Hein 2020, arXiv:2003.01690). (N, C, H, W) in [0, 1] to the same.

    Runs its `attacks` in order, each on the images that all before it left standing, each with its own loss whatever objective
    it is given. An image is right only where it withstands all of them: it gives A_rob. Survivors come back clean.
    """

    norm: Literal["linf", "l2"] = "linf"
    eps: float = 8 / 255
    steps: int = 100
    queries: int = 5000
    attacks: tuple[str, ...] = STANDARD
    stops_early: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.attacks:
            raise BadInput("autoattack has no attacks to run", hint=f"choose from {', '.join(self._offered())}")
        for name in self.attacks:
            if name not in self._offered():
                raise UnknownName(f"autoattack has no part {name!r}", hint=did_you_mean(name, self._offered()))

    def remarks(self, num_classes: int) -> Iterator[str]:
        """What its parts do differently with so few classes."""
        for part in self.parts():
            if isinstance(part, Apgd | TargetedApgd):
                yield from part.remarks(num_classes)

    def parts(self) -> list[Part]:
        """The attacks in their order."""
        return [self._offered()[name] for name in self.attacks]

    def _offered(self) -> dict[str, Part]:
        norm, eps, steps = self.norm, self.eps, self.steps
        return {
            "apgd-ce": Apgd(norm, eps, steps, stops_early=True),
            "apgd-dlr": Apgd(norm, eps, steps, loss="dlr", stops_early=True),
            "apgd-t": TargetedApgd(norm, eps, steps),
            "fab-t": TargetedFab(norm, eps, steps),
            "square": Square(norm, eps, self.queries, stops_early=True),
        }

    def __call__(
        self, model: nn.Module, images: Tensor, labels: Tensor, objective: Objective, index: Tensor, seed: int
    ) -> Attacked:
        def run(rows: Tensor, part: Part) -> Attacked:
            own = objective_named(getattr(part, "loss", "ce"))
            return part(model, images[rows], labels[rows], own, index[rows], seed)

        return take_turns(model, images, labels, [partial(run, part=part) for part in self.parts()])
