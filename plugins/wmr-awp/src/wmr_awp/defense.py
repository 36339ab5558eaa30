"""A defense around another one: the same images and the same loss, at weights moved to where that loss is higher."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from wmr_cli import BadInput, Spec, create
from wmr_cli.core import Batch, Defense, DefenseTraits, HasState, Learner, StepReport

from .passes import Performance, Rehearsal
from .state import Moment, Shift


def awp(base: Spec = Spec("pgd"), gamma: float = 0.005, warmup: int = 0) -> "Awp":  # noqa: B008 - a spec is frozen
    """The defense `base`, such as pgd or (trades:beta=6), perturbed by gamma after `warmup` epochs."""
    if gamma < 0 or warmup < 0:
        raise BadInput(
            f"awp cannot take gamma {gamma:g} and warmup {warmup}", hint="neither is negative"
        )
    made = create("defense", base)
    if reason := misfit(made):
        raise BadInput(
            f"awp cannot be put around {base}: {reason}",
            hint="use pgd, trades, mart, alp or combined as its base",
        )
    # two classes: `wmr` tells by its methods whether a defense has a state to save
    kind = StatefulAwp if isinstance(made, HasState) else Awp
    return kind(made, gamma, warmup)


def misfit(base: Defense) -> str | None:
    """Why the weights cannot be perturbed in a step of this defense, if they cannot."""
    if isinstance(base, Awp):
        return "it perturbs the weights already"
    if base.traits.shares_gradient:
        return "one backward pass moves its images and its weights, so no images are there before the weights are perturbed"
    if base.traits.replays > 1:
        return f"it steps {base.traits.replays} times on each batch, and the weights are perturbed for one step"
    return None


@dataclass(frozen=True)
class Awp:
    """Adversarial weight perturbation: the base's loss at weights that were moved up its gradient, layer by layer.

    Every weight of more than one dimension moves by gamma times its own length; biases and scales of normalisation stay.
    Images are attacked before, at the weights as they are. The gradient found at the moved weights moves the old ones.

    Objective: that of the base at `w + v`, with `v` the step of length `gamma * |w|` up its gradient
    Cost: that of the base, and once more what it costs without its attack
    Good for: robust accuracy that lasts to the end of a long run
    Reference: Wu et al. 2020, arXiv:2004.05884
    """

    base: Defense
    gamma: float = 0.005
    warmup: int = 0

    @property
    def traits(self) -> DefenseTraits:
        """Those of the base, with the longer warm-up of the two."""
        traits = self.base.traits
        return replace(traits, warmup_epochs=max(self.warmup, traits.warmup_epochs))

    def step(self, learner: Learner, batch: Batch) -> StepReport:
        if learner.epoch < self.warmup:
            return self.base.step(learner, batch)
        start, rehearsal = Moment.of(learner.model), Rehearsal(learner)
        copy.deepcopy(self.base).step(
            rehearsal, batch
        )  # a copy: what the base remembers it remembers once
        shift = Shift.up_the_gradient(learner.model, self.gamma)
        learner.model.zero_grad()
        start.bring_back(learner.model)
        with shift.applied():
            return self.base.step(Performance(learner, rehearsal.attacks, shift), batch)


@dataclass(frozen=True)
class StatefulAwp(Awp):
    """The same around a base with a state, which is all that has to be saved."""

    def state(self) -> Mapping[str, Tensor]:
        """Return the state of the base."""
        return self._stateful_base().state()

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore the state of the base."""
        self._stateful_base().load_state(state)

    def _stateful_base(self) -> HasState:
        assert isinstance(self.base, HasState)  # see awp()
        return self.base
