"""A defense around another one: the same images and loss, at weights where the loss is higher."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from wmr_cli import BadInput, Spec, create
from wmr_cli.core import Batch, Defense, DefenseTraits, HasState, Learner, StepReport

from .learners import GradientLearner, PerturbedLearner
from .perturbation import ModelSnapshot, WeightPerturbation

DEFAULT_BASE = Spec("pgd")


def awp(base: Spec = DEFAULT_BASE, gamma: float = 0.005, warmup: int = 0) -> "Awp":
    """Return the defense `base`, such as pgd or (trades:beta=6), with perturbed weights.

    The perturbation has the relative size gamma and starts after `warmup` epochs.
    """
    if gamma < 0 or warmup < 0:
        raise BadInput(
            f"awp: `gamma` is {gamma:g}, `warmup` is {warmup}", hint="both are at least 0"
        )
    defense = create("defense", base)
    reason = explain_unsupported(defense)
    if reason is not None:
        raise BadInput(
            f"`base` of awp cannot be {base}: {reason}",
            hint="use pgd, trades, mart, alp or combined",
        )
    # two classes: `wmr` saves the state of a defense that has the methods for it
    kind = StatefulAwp if isinstance(defense, HasState) else Awp
    return kind(defense, gamma, warmup)


def explain_unsupported(base: Defense) -> str | None:
    """Return why a step of this defense cannot run at perturbed weights, or None."""
    if isinstance(base, Awp):
        return "it perturbs the weights already"
    if base.traits.shares_gradient:
        # the images have to exist before the weights are perturbed
        return "one backward pass updates its images and its weights"
    if base.traits.replays > 1:
        return f"it steps {base.traits.replays} times on each batch"
    return None


@dataclass(frozen=True)
class Awp:
    """Adversarial weight perturbation: the base's loss at weights perturbed to increase it.

    Every weight of more than one dimension moves by gamma times its own norm; biases and scales of
    normalisation do not. Images are attacked at the original weights. The gradient at the perturbed
    weights updates the original ones.

    Objective: that of the base at `w + v`, with `v` of length `gamma * |w|` in the direction of
        its gradient
    Cost: that of the base, plus that of the base without its attack
    Good for: robust accuracy that lasts to the end of a long run
    Reference: Wu et al. 2020, arXiv:2004.05884
    """

    base: Defense
    gamma: float = 0.005
    warmup: int = 0

    @property
    def traits(self) -> DefenseTraits:
        """The traits of the base, with the longer warm-up of the two."""
        traits = self.base.traits
        return replace(traits, warmup_epochs=max(self.warmup, traits.warmup_epochs))

    def step(self, learner: Learner, batch: Batch) -> StepReport:
        if learner.epoch < self.warmup:
            return self.base.step(learner, batch)
        start = ModelSnapshot.take(learner.model)
        gradient_learner = GradientLearner(learner)
        # a copy: the base must update its own state only once per step
        copy.deepcopy(self.base).step(gradient_learner, batch)
        perturbation = WeightPerturbation.along_gradient(learner.model, self.gamma)
        learner.model.zero_grad()
        start.restore(learner.model)
        with perturbation.applied():
            perturbed = PerturbedLearner(learner, gradient_learner.attacks, perturbation)
            return self.base.step(perturbed, batch)


@dataclass(frozen=True)
class StatefulAwp(Awp):
    """The same around a base with a state; weight perturbation itself has none."""

    def state(self) -> Mapping[str, Tensor]:
        """Return the state of the base."""
        return self._stateful_base().state()

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore the state of the base."""
        self._stateful_base().load_state(state)

    def _stateful_base(self) -> HasState:
        assert isinstance(self.base, HasState)  # see awp()
        return self.base
