"""TRADES, with weights on its divergence."""

from dataclasses import dataclass

import torch

from ...core.contracts import Batch, Evidence, Learner, Losses, StepReport
from ...core.losses import cross_entropy, kl_divergence, log_probabilities
from ...core.objectives import Divergence
from ...core.training import descend
from ...errors import BadInput


@dataclass(frozen=True)
class Trades:
    """mean of CE(x) + beta * weight(x') * KL(p(x) || p(x')), with x' climbing weight * KL.

    Zhang et al. 2019 (arXiv:1901.08573), weighted as by Zeng et al. 2021: the natural term carries no weight. Gradient
    flows through both arguments of the divergence. K + 2 forward-backward passes per step for an attack of K steps.
    """

    beta: float = 6.0

    def __post_init__(self) -> None:
        if self.beta < 0:
            raise BadInput(f"beta of trades is {self.beta:g}", hint="beta is not negative")

    def step(self, learner: Learner, batch: Batch) -> StepReport:
        with learner.attack_mode(), torch.no_grad():
            natural = Divergence.from_logits(learner.model(batch.images))
        attacked = learner.attack(batch, natural)
        # two forwards, not one over both: together they would share batch statistics
        clean, adversarial = learner.forward(batch.images), learner.forward(attacked.images)
        divergence = kl_divergence(log_probabilities(clean), log_probabilities(adversarial))
        evidence = Evidence(
            adversarial, batch.labels, batch.index, clean_logits=clean, steps_survived=attacked.steps_survived, loss=divergence
        )
        plain = cross_entropy(clean, batch.labels)
        return descend(learner, batch, Losses(weighted=self.beta * divergence, evidence=evidence, plain=plain))
