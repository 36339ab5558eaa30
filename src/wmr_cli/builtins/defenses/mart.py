"""`mart`: more weight on images that are misclassified without an attack."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ...core.losses import cross_entropy, kl_divergence, log_probabilities, upcast_half
from ...core.protocols import Batch, Learner, StepReport
from ...core.traits import DefenseTraits
from ...core.weighted_step import step_weighted, weight_terms
from ...errors import BadInput


@dataclass(frozen=True)
class Mart:
    """Boosted cross-entropy of adversarial images plus a divergence, scaled by `1 - p_y(x)`.

    `BCE(x') = CE(x') - log(1 - max p_t(x'))`. The kernel weights BCE (`terms=adv`), the
    divergence (`kl`), both or none.

    Objective: `weight(x') * BCE(x') + lam * (1 - p_y(x)) * KL(p(x) || p(x'))`, with x' maximising
        `weight * CE`
    Cost: K + 2
    Good for: images that are misclassified without an attack
    Reference: Wang et al. 2020, "Improving adversarial robustness requires revisiting
        misclassified examples"
    """

    lam: float = 5.0
    terms: Literal["adv", "kl", "both", "none"] = "adv"

    traits = DefenseTraits(provides=frozenset({"clean_logits", "steps_survived"}))

    def __post_init__(self) -> None:
        if self.lam < 0:
            raise BadInput(f"`lam` of mart is {self.lam:g}", hint="`lam` is at least 0")

    def step(self, learner: Learner, batch: Batch) -> StepReport:
        attacked = learner.attack(batch, cross_entropy)
        clean = learner.forward(batch.images)
        adversarial = learner.forward(attacked.images)
        label_loss = learner.label_loss(adversarial, batch.labels)
        boosted = label_loss + runner_up_loss(adversarial, batch.labels)
        true = log_probabilities(clean).gather(1, batch.labels[:, None]).squeeze(1).exp()
        divergence = kl_divergence(log_probabilities(clean), log_probabilities(adversarial))
        # the authors' constant keeps the factor positive where p_y is 1
        scaled_divergence = divergence * (1.0000001 - true)
        evidence = batch.evidence(
            adversarial,
            clean_logits=clean,
            steps_survived=attacked.steps_survived,
        )
        losses = weight_terms(
            boosted,
            self.lam * scaled_divergence,
            evidence,
            weights_first=self.terms in ("adv", "both"),
            weights_second=self.terms in ("kl", "both"),
        )
        return step_weighted(learner, batch, losses)


def runner_up_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """-log(1 - the largest probability of another class), (N,)."""
    others = upcast_half(logits).softmax(dim=1).scatter(1, labels[:, None], 0.0)
    # the authors' constants keep the logarithm finite where that probability is 1
    return -torch.log(1.0001 - others.amax(dim=1) + 1e-12)
