"""`combined` and `alp`: cross-entropy on clean and adversarial images, and paired logits."""

from dataclasses import dataclass, replace
from typing import Literal

import torch

from ...core.losses import cross_entropy, upcast_half
from ...core.protocols import Batch, Learner, Losses, StepReport
from ...core.traits import DefenseTraits
from ...core.weighted_step import step_weighted
from ...errors import BadInput


@dataclass(frozen=True)
class Combined:
    """Cross-entropy of clean and adversarial images. `rescale=false` omits the division.

    Objective: `(CE(x) + lam * weight(x') * CE(x')) / (1 + lam)`, with x' maximising `weight * CE`
    Cost: K + 2
    Good for: more natural accuracy than pgd, less robust accuracy
    Reference: Goodfellow et al. 2015, arXiv:1412.6572
    """

    lam: float = 1.0
    rescale: bool = True

    traits = DefenseTraits(
        provides=frozenset({"clean_logits", "steps_survived"}), mixes_labels=True
    )

    def __post_init__(self) -> None:
        if self.lam < 0:
            raise BadInput(f"`lam` of combined is {self.lam:g}", hint="`lam` is at least 0")

    def step(self, learner: Learner, batch: Batch) -> StepReport:
        attacked = learner.attack(batch, cross_entropy)
        clean = learner.forward(batch.images)
        adversarial = learner.forward(attacked.images)
        natural_loss = learner.label_loss(clean, batch.labels, batch.second)
        robust_loss = learner.label_loss(adversarial, batch.labels, batch.second)
        evidence = batch.evidence(
            adversarial,
            clean_logits=clean,
            steps_survived=attacked.steps_survived,
        )
        total = 1 + self.lam if self.rescale else 1.0
        losses = Losses(
            weighted=self.lam * robust_loss / total,
            evidence=evidence,
            plain=natural_loss / total,
        )
        return step_weighted(learner, batch, losses)


@dataclass(frozen=True)
class LogitPairing:
    """Adversarial logit pairing: clean and adversarial images with similar logits.

    The attack moves away from the predicted class, as in the paper, so that no label leaks into
    the images; with `labels=true` it moves away from the true class.

    Objective: `(CE(x) + weight(x') * CE(x')) / 2 + lam * mean over classes of (z(x) - z(x'))^2`,
        with x' maximising `weight * CE`
    Cost: K + 3
    Good for: comparison; its robustness rests on masked gradients (arXiv:1807.10272)
    Reference: Kannan et al. 2018, arXiv:1803.06373
    """

    lam: float = 0.5
    labels: Literal["predicted", "true"] = "predicted"

    traits = DefenseTraits(
        provides=frozenset({"clean_logits", "steps_survived"}), mixes_labels=True
    )

    def __post_init__(self) -> None:
        if self.lam < 0:
            raise BadInput(f"`lam` of alp is {self.lam:g}", hint="`lam` is at least 0")

    def step(self, learner: Learner, batch: Batch) -> StepReport:
        target = self._attack_target(learner, batch)
        attacked = learner.attack(target, cross_entropy)
        clean = learner.forward(batch.images)
        adversarial = learner.forward(attacked.images)
        natural_loss = learner.label_loss(clean, batch.labels, batch.second)
        robust_loss = learner.label_loss(adversarial, batch.labels, batch.second)
        pairing = (upcast_half(clean) - upcast_half(adversarial)).square().mean(dim=1)
        # the attack counts steps with an unchanged prediction: an image that was misclassified
        # before the attack survived none
        is_correct = target.labels == batch.labels
        evidence = batch.evidence(
            adversarial,
            clean_logits=clean,
            steps_survived=attacked.steps_survived * is_correct,
        )
        losses = Losses(
            weighted=robust_loss / 2,
            evidence=evidence,
            plain=natural_loss / 2 + self.lam * pairing,
        )
        return step_weighted(learner, batch, losses)

    def _attack_target(self, learner: Learner, batch: Batch) -> Batch:
        """Return the batch with the labels that the attack moves away from."""
        if self.labels == "true":
            return batch
        with learner.attack_mode() as model, torch.no_grad():
            return replace(batch, labels=model(batch.images).argmax(dim=1), second=None)
