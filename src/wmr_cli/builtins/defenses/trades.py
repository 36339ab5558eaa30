"""TRADES, with weights on its divergence."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ...core.contracts import Batch, Evidence, Learner, Losses, Objective, StepReport
from ...core.losses import cross_entropy, kl_divergence, log_probabilities
from ...core.objectives import Divergence
from ...core.training import descend
from ...errors import BadInput


@dataclass(frozen=True)
class Trades:
    """Natural accuracy against stability, beta to one.

    The natural term carries no weight: `terms` puts it on the divergence (kl), on the natural term (nat), on both or on
    none; with `climbs=ce` the attack climbs cross-entropy. Gradient flows through both arguments of the divergence.

    Objective: `CE(x) + beta * weight(x') * KL(p(x) || p(x'))`, with x' climbing `weight * KL`
    Cost: K + 3
    Good for: choosing the balance of natural and robust accuracy
    Reference: Zhang et al. 2019, arXiv:1901.08573; weighted: Zeng et al. 2021, arXiv:2010.12989
    """

    beta: float = 6.0
    terms: Literal["kl", "nat", "both", "none"] = "kl"
    climbs: Literal["kl", "ce"] = "kl"

    knows = ("clean_logits", "steps_survived")

    def __post_init__(self) -> None:
        if self.beta < 0:
            raise BadInput(f"beta of trades is {self.beta:g}", hint="beta is not negative")

    def step(self, learner: Learner, batch: Batch) -> StepReport:
        attacked = learner.attack(batch, self._objective(learner, batch))
        # two forwards, not one over both: together they would share batch statistics
        clean, adversarial = learner.forward(batch.images), learner.forward(attacked.images)
        divergence = kl_divergence(log_probabilities(clean), log_probabilities(adversarial))
        evidence = Evidence(
            adversarial, batch.labels, batch.index, clean_logits=clean, steps_survived=attacked.steps_survived, loss=divergence
        )
        return descend(learner, batch, self._losses(learner.label_loss(clean, batch.labels), self.beta * divergence, evidence))

    def _objective(self, learner: Learner, batch: Batch) -> Objective:
        if self.climbs == "ce":
            return cross_entropy
        with learner.attack_mode(), torch.no_grad():
            return Divergence.from_logits(learner.model(batch.images))

    def _losses(self, natural: Tensor, divergence: Tensor, evidence: Evidence) -> Losses:
        """Both terms (N,), where the weights belong."""
        match self.terms:
            case "kl":
                return Losses(weighted=divergence, evidence=evidence, plain=natural)
            case "nat":
                return Losses(weighted=natural, evidence=evidence, plain=divergence)
            case "both":
                return Losses(weighted=natural + divergence, evidence=evidence)
            case "none":
                return Losses(weighted=torch.zeros_like(natural), evidence=evidence, plain=natural + divergence)
