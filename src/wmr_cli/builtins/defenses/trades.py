"""`trades`: clean cross-entropy plus a weighted divergence."""

from dataclasses import dataclass
from typing import Literal

import torch

from ...core.losses import KlObjective, cross_entropy, kl_divergence, log_probabilities
from ...core.protocols import Batch, Learner, Objective, StepReport
from ...core.traits import DefenseTraits
from ...core.weighted_step import step_weighted, weight_terms
from ...errors import BadInput


@dataclass(frozen=True)
class Trades:
    """Trades natural accuracy for stability under attack; `beta` weights stability.

    The natural term is not weighted by default: `terms` puts the weight on the divergence (kl), on
    the natural term (nat), on both or on none. The attack maximises the divergence, with
    `climbs=ce` the cross-entropy. The gradient flows through both arguments of the divergence.

    Objective: `CE(x) + beta * weight(x') * KL(p(x) || p(x'))`, with x' maximising `weight * KL`
    Cost: K + 3
    Good for: choosing the balance of natural and robust accuracy
    Reference: Zhang et al. 2019, arXiv:1901.08573; weighted: Zeng et al. 2021, arXiv:2010.12989
    """

    beta: float = 6.0
    terms: Literal["kl", "nat", "both", "none"] = "kl"
    climbs: Literal["kl", "ce"] = "kl"

    def __post_init__(self) -> None:
        if self.beta < 0:
            raise BadInput(f"`beta` of trades is {self.beta:g}", hint="`beta` is at least 0")

    @property
    def traits(self) -> DefenseTraits:
        return DefenseTraits(
            provides=frozenset({"clean_logits", "steps_survived"}),
            mixes_labels=True,
            weight_factor=self.beta if self.terms in ("kl", "both") else None,
        )

    def step(self, learner: Learner, batch: Batch) -> StepReport:
        attacked = learner.attack(batch, self._attack_objective(learner, batch))
        # two forward passes, not one over both: together they would share batch statistics
        clean = learner.forward(batch.images)
        adversarial = learner.forward(attacked.images)
        divergence = kl_divergence(log_probabilities(clean), log_probabilities(adversarial))
        evidence = batch.evidence(
            adversarial,
            clean_logits=clean,
            steps_survived=attacked.steps_survived,
        )
        losses = weight_terms(
            learner.label_loss(clean, batch.labels, batch.second),
            self.beta * divergence,
            evidence,
            weights_first=self.terms in ("nat", "both"),
            weights_second=self.terms in ("kl", "both"),
        )
        return step_weighted(learner, batch, losses)

    def _attack_objective(self, learner: Learner, batch: Batch) -> Objective:
        if self.climbs == "ce":
            return cross_entropy
        # the model that the attack uses, so that the divergence is zero at the clean image
        with learner.attack_mode() as model, torch.no_grad():
            return KlObjective.from_logits(model(batch.images))
