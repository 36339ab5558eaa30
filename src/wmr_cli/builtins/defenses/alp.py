"""Adversarial logit pairing."""

from dataclasses import dataclass, replace
from typing import Literal

import torch

from ...core.losses import cross_entropy, upcast_half
from ...core.protocols import Batch, Evidence, Learner, Losses, StepReport
from ...core.traits import DefenseTraits
from ...core.weighted_step import step_weighted
from ...errors import BadInput


@dataclass(frozen=True)
class LogitPairing:
    """Clean and attacked images together, whose logits are drawn to each other.

    The attack climbs away from the predicted class, as the authors have it, so that no label leaks into the images;
    `labels=true` has it climb away from the true one.

    Objective: `(CE(x) + weight(x') * CE(x')) / 2 + lam * mean over classes of (z(x) - z(x'))^2`, with x' climbing `weight * CE`
    Cost: K + 3
    Good for: comparison; its robustness was found to rest on masked gradients (arXiv:1807.10272)
    Reference: Kannan et al. 2018, arXiv:1803.06373
    """

    lam: float = 0.5
    labels: Literal["predicted", "true"] = "predicted"

    traits = DefenseTraits(provides=frozenset({"clean_logits", "steps_survived"}))

    def __post_init__(self) -> None:
        if self.lam < 0:
            raise BadInput(f"lam of alp is {self.lam:g}", hint="lam is not negative")

    def step(self, learner: Learner, batch: Batch) -> StepReport:
        target = self._target(learner, batch)
        attacked = learner.attack(target, cross_entropy)
        clean, adversarial = learner.forward(batch.images), learner.forward(attacked.images)
        natural, robust = (
            learner.label_loss(logits, batch.labels) for logits in (clean, adversarial)
        )
        pairing = (upcast_half(clean) - upcast_half(adversarial)).square().mean(dim=1)
        # the attack counts steps before which the prediction stayed; an image that was wrong was never still right
        survived = attacked.steps_survived * (target.labels == batch.labels)
        evidence = Evidence(
            adversarial,
            batch.labels,
            batch.index,
            clean_logits=clean,
            steps_survived=survived,
            loss=robust,
        )
        return step_weighted(
            learner,
            batch,
            Losses(weighted=robust / 2, evidence=evidence, plain=natural / 2 + self.lam * pairing),
        )

    def _target(self, learner: Learner, batch: Batch) -> Batch:
        """The batch with the labels that the attack climbs away from."""
        if self.labels == "true":
            return batch
        with learner.attack_mode() as network, torch.no_grad():
            return replace(batch, labels=network(batch.images).argmax(dim=1))
