"""MART: attention to images that are wrong already."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ...core.losses import cross_entropy, kl_divergence, log_probabilities, upcast_half
from ...core.protocols import Batch, Evidence, Learner, StepReport
from ...core.traits import DefenseTraits
from ...core.weighted_step import step_weighted, weight_terms
from ...errors import BadInput


@dataclass(frozen=True)
class Mart:
    """Boosted cross-entropy of attacked images, and a divergence that counts the more the less the clean image is right.

    `BCE(x') = CE(x') - log(1 - max p_t(x'))`. The kernel weighs BCE (`terms=adv`), the divergence (`kl`), both or none.

    Objective: `weight(x') * BCE(x') + lam * (1 - p_y(x)) * KL(p(x) || p(x'))`, with x' climbing `weight * CE`
    Cost: K + 2
    Good for: images that are wrong without any attack
    Reference: Wang et al. 2020, "Improving adversarial robustness requires revisiting misclassified examples"
    """

    lam: float = 5.0
    terms: Literal["adv", "kl", "both", "none"] = "adv"

    traits = DefenseTraits(provides=frozenset({"clean_logits", "steps_survived"}))

    def __post_init__(self) -> None:
        if self.lam < 0:
            raise BadInput(f"lam of mart is {self.lam:g}", hint="lam is not negative")

    def step(self, learner: Learner, batch: Batch) -> StepReport:
        attacked = learner.attack(batch, cross_entropy)
        clean, adversarial = learner.forward(batch.images), learner.forward(attacked.images)
        boosted = learner.label_loss(adversarial, batch.labels) + second_place(
            adversarial, batch.labels
        )
        true = log_probabilities(clean).gather(1, batch.labels[:, None]).squeeze(1).exp()
        divergence = kl_divergence(log_probabilities(clean), log_probabilities(adversarial)) * (
            1.0000001 - true
        )
        evidence = Evidence(
            adversarial,
            batch.labels,
            batch.index,
            clean_logits=clean,
            steps_survived=attacked.steps_survived,
            loss=boosted,
        )
        weighs = {
            "weights_first": self.terms in ("adv", "both"),
            "weights_second": self.terms in ("kl", "both"),
        }
        return step_weighted(
            learner, batch, weight_terms(boosted, self.lam * divergence, evidence, **weighs)
        )


def second_place(logits: Tensor, labels: Tensor) -> Tensor:
    """-log(1 - the largest probability of another class), (N,), with the authors' constants that keep it finite."""
    others = upcast_half(logits).softmax(dim=1).scatter(1, labels[:, None], 0.0)
    return -torch.log(1.0001 - others.amax(dim=1) + 1e-12)
