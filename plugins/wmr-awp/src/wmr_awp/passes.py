"""The learner as the base sees it, once to find the gradient and once to step: what it may touch, with a few things watched."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from wmr_cli import BrokenContract
from wmr_cli.core import Attack, AttackResult, Batch, Learner, Objective

from .state import Moment, Shift


class Rehearsal:
    """A step that leaves its gradients where they are and moves nothing; the attacked images are kept."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._has_stepped = False
        self.attacks: list[tuple[AttackResult, Moment]] = []
        """each with the state in which it left the network"""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._learner, name)

    def attack(self, batch: Batch, objective: Objective, own: Attack | None = None) -> AttackResult:
        attacked = self._learner.attack(batch, objective, own)
        self.attacks.append((attacked, Moment.of(self._learner.model)))
        return attacked

    def optimizer_step(self) -> None:
        if self._has_stepped:
            problem = "the base of awp takes several optimizer steps on one batch"
            raise BrokenContract(
                problem, hint="awp perturbs the weights for one step; choose another base"
            )
        self._has_stepped = True


class Performance:
    """The step that counts: the same attacked images, at shifted weights, which are put back before the optimizer moves them."""

    def __init__(
        self, learner: Learner, attacks: Iterable[tuple[AttackResult, Moment]], shift: Shift
    ) -> None:
        self._learner = learner
        self._attacks = iter(attacks)
        self._shift = shift

    def __getattr__(self, name: str) -> Any:
        return getattr(self._learner, name)

    def attack(self, batch: Batch, objective: Objective, own: Attack | None = None) -> AttackResult:
        kept = next(self._attacks, None)
        if kept is None:
            problem = "the base of awp attacks more often at other weights"
            raise BrokenContract(
                problem,
                hint="its attacks must not depend on what learner.forward gives; choose another base",
            )
        attacked, moment = kept
        moment.bring_back(self._learner.model)
        return attacked

    @contextmanager
    def attack_mode(self) -> Iterator[nn.Module]:
        """Attacks see the weights as they are."""
        with self._shift.lifted(), self._learner.attack_mode() as network:
            yield network

    def optimizer_step(self) -> None:
        self._shift.undo()
        self._learner.optimizer_step()
