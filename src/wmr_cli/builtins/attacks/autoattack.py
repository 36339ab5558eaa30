"""`autoattack`: four different attacks in sequence."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

from torch import Tensor, nn

from ...core.losses import get_objective
from ...core.protocols import AttackResult, Batch, Objective
from ...core.restarts import attack_until_misclassified
from ...core.traits import AttackTraits
from ...errors import BadInput, UnknownName, did_you_mean
from .apgd import Apgd, TargetedApgd
from .fab_targeted import TargetedFab
from .square import Square

Part = Apgd | TargetedApgd | TargetedFab | Square
# the order of the paper: cheap attacks first, as each one leaves fewer images to the next
STANDARD = ("apgd-ce", "apgd-t", "fab-t", "square")


@dataclass(frozen=True)
class AutoAttack:
    """The standard AutoAttack (Croce and Hein 2020, arXiv:2003.01690). (N, C, H, W) in [0, 1].

    Runs its `attacks` in order, each on the images that are still correct, each with its own
    objective whatever the given one. An image counts as correct only if it survives all of them:
    it gives A_rob. Images that survive all attacks are returned clean.
    """

    norm: Literal["linf", "l2"] = "linf"
    eps: float = 8 / 255
    steps: int = 100
    queries: int = 5000
    attacks: tuple[str, ...] = STANDARD

    traits = AttackTraits(stops_early=True, gathers_images=True)

    def __post_init__(self) -> None:
        available = self._available()
        if not self.attacks:
            raise BadInput(
                "autoattack has no attacks to run", hint=f"choose from {', '.join(available)}"
            )
        for name in self.attacks:
            if name not in available:
                raise UnknownName(
                    f"autoattack has no part {name!r}", hint=did_you_mean(name, available)
                )

    def remarks(self, num_classes: int) -> Iterator[str]:
        """Yield what its parts do differently with this number of classes."""
        for part in self.parts():
            # FAB and Square do not depend on the number of classes
            if isinstance(part, Apgd | TargetedApgd):
                yield from part.remarks(num_classes)

    def parts(self) -> list[Part]:
        """Return the attacks in their order."""
        available = self._available()
        return [available[name] for name in self.attacks]

    def _available(self) -> dict[str, Part]:
        """Return all attacks that `attacks` may name."""
        norm = self.norm
        eps = self.eps
        steps = self.steps
        return {
            "apgd-ce": Apgd(norm, eps, steps, stops_early=True),
            "apgd-dlr": Apgd(norm, eps, steps, loss="dlr", stops_early=True),
            "apgd-t": TargetedApgd(norm, eps, steps),
            "fab-t": TargetedFab(norm, eps, steps),
            "square": Square(norm, eps, self.queries, stops_early=True),
        }

    def __call__(
        self,
        model: nn.Module,
        batch: Batch,
        objective: Objective,
        *,
        seed: int,
        need_logits: bool = True,
    ) -> AttackResult:
        def run(rows: Tensor, part: Part) -> AttackResult:
            # published numbers are those of the own losses, whatever objective the caller passes
            own_objective = get_objective(part.traits.objective)
            return part(model, batch.select(rows), own_objective, seed=seed)

        attempts = [partial(run, part=part) for part in self.parts()]
        return attack_until_misclassified(model, batch, attempts)
