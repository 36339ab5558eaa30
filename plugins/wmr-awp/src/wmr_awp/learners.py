"""Learners for the two passes of a step: one for the gradient, one at the perturbed weights.

Both forward everything else to the real learner.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from wmr_cli import BrokenContract
from wmr_cli.core import Attack, AttackResult, Batch, Learner, Objective

from .perturbation import ModelSnapshot, WeightPerturbation


class GradientLearner:
    """Computes gradients without an optimizer step, and records the attacks."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._has_stepped = False
        self.attacks: list[tuple[AttackResult, ModelSnapshot]] = []
        """The result of each attack, and the model's buffers after it."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of the learner
        return getattr(self._learner, name)

    def attack(self, batch: Batch, objective: Objective, own: Attack | None = None) -> AttackResult:
        attacked = self._learner.attack(batch, objective, own)
        self.attacks.append((attacked, ModelSnapshot.take(self._learner.model)))
        return attacked

    def optimizer_step(self) -> None:
        if self._has_stepped:
            raise BrokenContract(
                "the base of awp takes several optimizer steps on one batch",
                hint="choose another `base`: awp perturbs the weights for one step",
            )
        self._has_stepped = True


class PerturbedLearner:
    """Repeats the recorded attacks at perturbed weights, and steps from the original ones."""

    def __init__(
        self,
        learner: Learner,
        attacks: Iterable[tuple[AttackResult, ModelSnapshot]],
        perturbation: WeightPerturbation,
    ) -> None:
        self._learner = learner
        self._attacks = iter(attacks)
        self._perturbation = perturbation

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of the learner
        return getattr(self._learner, name)

    def attack(self, batch: Batch, objective: Objective, own: Attack | None = None) -> AttackResult:
        recorded = next(self._attacks, None)
        if recorded is None:
            raise BrokenContract(
                "the base of awp attacks more often at perturbed weights",
                hint="choose another `base`: its attacks must not depend on learner.forward",
            )
        attacked, snapshot = recorded
        # as after a real attack: one in train mode changes batch statistics and generators
        snapshot.restore(self._learner.model)
        return attacked

    @contextmanager
    def attack_mode(self) -> Iterator[nn.Module]:
        """Give the model at its original weights, which attacks use."""
        with self._perturbation.suspended(), self._learner.attack_mode() as model:
            yield model

    def optimizer_step(self) -> None:
        self._perturbation.undo()
        self._learner.optimizer_step()
