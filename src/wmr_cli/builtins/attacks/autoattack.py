"""`autoattack`: several different attacks in sequence."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

from torch import Tensor, nn

from ...core.contexts import report_part
from ...core.eot import average_draws
from ...core.losses import get_objective
from ...core.pgd import with_logits
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
RANDOM = ("apgd-ce", "apgd-dlr")
"""The attacks of the version for stochastic models."""
RANDOM_EOT = 20
"""Draws per gradient of that version."""


@dataclass(frozen=True)
class AutoAttack:
    """AutoAttack (Croce and Hein 2020, arXiv:2003.01690). (N, C, H, W) in [0, 1].

    Runs its `attacks` in order, each on the images that are still correct, each with its own
    objective: it gives A_rob. Images that survive all attacks are returned clean. `version=rand` is
    the published version for stochastic models: `apgd-ce` and `apgd-dlr` with all their steps and
    `eot=20`; one further draw decides about each result.
    """

    norm: Literal["linf", "l2"] = "linf"
    eps: float = 8 / 255
    steps: int = 100
    queries: int = 5000
    attacks: tuple[str, ...] = STANDARD
    version: Literal["standard", "rand"] = "standard"
    # None: that of the version
    eot: int | None = None

    def __post_init__(self) -> None:
        if self.eot is not None and self.eot < 1:
            raise BadInput(f"{self} cannot be run", hint="`eot` is at least 1")
        if self.is_random and self.attacks != STANDARD:
            raise BadInput(
                "`version=rand` of autoattack has its own attacks",
                hint="leave out `attacks`, or `version`",
            )
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

    @property
    def is_random(self) -> bool:
        """Whether this is the version for stochastic models."""
        return self.version == "rand"

    @property
    def draws(self) -> int:
        """Draws over which each gradient is averaged."""
        return self.eot or (RANDOM_EOT if self.is_random else 1)

    @property
    def traits(self) -> AttackTraits:
        return AttackTraits(stops_early=True, gathers_images=not self.is_random, eot=self.draws)

    def remarks(self, num_classes: int) -> Iterator[str]:
        """Yield what its parts do differently with this number of classes."""
        for part in self.parts():
            # FAB and Square do not depend on the number of classes
            if isinstance(part, Apgd | TargetedApgd):
                yield from part.remarks(num_classes)

    def parts(self) -> list[Part]:
        """Return the attacks in their order."""
        available = self._available()
        return [available[name] for name in self._names]

    @property
    def _names(self) -> tuple[str, ...]:
        return RANDOM if self.is_random else self.attacks

    def _available(self) -> dict[str, Part]:
        """Return all attacks that `attacks` may name."""
        norm = self.norm
        eps = self.eps
        steps = self.steps
        draws = self.draws
        # the first misclassified draw of a stochastic model may be an accident
        stops = not self.is_random
        return {
            "apgd-ce": Apgd(norm, eps, steps, stops_early=stops, eot=draws),
            "apgd-dlr": Apgd(norm, eps, steps, loss="dlr", stops_early=stops, eot=draws),
            "apgd-t": TargetedApgd(norm, eps, steps, eot=draws),
            "fab-t": TargetedFab(norm, eps, steps, eot=draws),
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
        def run(rows: Tensor, name: str, part: Part) -> AttackResult:
            report_part(name, len(rows), len(batch.labels))
            # published numbers are those of the own losses, whatever objective the caller passes
            own_objective = get_objective(part.traits.objective)
            attacked = part(model, batch.select(rows), own_objective, seed=seed)
            # as published: one draw that the attack has not seen decides about each image
            return with_logits(model, attacked) if self.is_random else attacked

        attempts = [
            partial(run, name=name, part=part)
            for name, part in zip(self._names, self.parts(), strict=True)
        ]
        judge = model if self.is_random else average_draws(model, self.draws)
        return attack_until_misclassified(judge, batch, attempts)
