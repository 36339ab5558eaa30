"""`iaat`: instance-adaptive adversarial training, with a radius for each image."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.losses import cross_entropy
from ...core.pgd import UniformStartPgd
from ...core.protocols import Batch, Learner, Losses, StepReport
from ...core.traits import DefenseTraits
from ...core.weighted_step import step_weighted
from ...errors import BadInput


@dataclass
class InstanceAdaptive:
    """PGD training in which the radius of an image grows while the image stays correct.

    For `warmup` epochs the radius is eps for correct images, else 0. Then it moves by the fraction
    beta towards a target: r + gamma if the image is correct in the ball of that radius, else r if
    it is correct there, else r - gamma; 0 if it is misclassified without an attack. gamma and
    `smallest_step` are fractions of eps. Radii may exceed eps.

    Objective: `weight(x') * CE(x')`, with x' maximising `weight * CE` in the image's own ε-ball
    Cost: 3K + 2
    Good for: natural accuracy where one radius does not fit all images
    Reference: Balaji et al. 2019, arXiv:1910.08051
    """

    steps: int = 10
    smallest_step: float = 0.25
    gamma: float = 0.2375
    beta: float = 0.1
    warmup: int = 10

    def __post_init__(self) -> None:
        is_valid = {
            "steps": self.steps >= 1,
            "smallest_step": self.smallest_step >= 0,
            "gamma": self.gamma >= 0,
            "beta": 0 <= self.beta <= 1,
            "warmup": self.warmup >= 0,
        }
        invalid = [f"`{name}`" for name, valid in is_valid.items() if not valid]
        if invalid:
            raise BadInput(
                f"iaat: {' and '.join(invalid)} out of range",
                hint="`steps` is at least 1, `beta` at most 1, and no value is negative",
            )
        # grows with the largest index: the size of the dataset is not known here
        self._radii = torch.zeros(0)

    @property
    def traits(self) -> DefenseTraits:
        return DefenseTraits(
            provides=frozenset({"steps_survived"}),
            uses_attack=False,
            own_attack_steps=self.steps,
            warmup_epochs=self.warmup,
        )

    def step(self, learner: Learner, batch: Batch) -> StepReport:
        radii = self._update_radii(learner, batch)
        # the radii of all ranks: in the next epoch another rank may get this image
        self._store_radii(learner.gather(batch.index).cpu(), learner.gather(radii).cpu())
        attacked = learner.attack(batch, cross_entropy, self._make_attack(learner, radii))
        logits = learner.forward(attacked.images)
        loss = learner.label_loss(logits, batch.labels)
        evidence = batch.evidence(logits, steps_survived=attacked.steps_survived)
        return step_weighted(learner, batch, Losses(weighted=loss, evidence=evidence))

    def _update_radii(self, learner: Learner, batch: Batch) -> Tensor:
        """Return the radius of each image (N,) in this step."""
        is_correct = _find_correct(learner, batch, batch.images)
        if learner.epoch < self.warmup:
            return is_correct.float() * learner.eps
        radii = self._load_radii(batch.index)
        growth = self.gamma * learner.eps
        survives_radius = self._survives(learner, batch, radii)
        survives_larger = self._survives(learner, batch, radii + growth)
        target = choose_radii(
            radii,
            growth,
            is_correct=is_correct,
            survives_radius=survives_radius,
            survives_larger=survives_larger,
        )
        return self.beta * target + (1 - self.beta) * radii

    def _survives(self, learner: Learner, batch: Batch, radii: Tensor) -> Tensor:
        """Return which images (N,) are correct under the attack with these radii."""
        attacked = learner.attack(batch, cross_entropy, self._make_attack(learner, radii))
        return _find_correct(learner, batch, attacked.images)

    def _make_attack(self, learner: Learner, radii: Tensor) -> UniformStartPgd:
        # twice the distance is possible in all steps; a radius of 0 still needs a step to grow
        step = (radii / (self.steps / 2)).clamp(min=self.smallest_step * learner.eps)
        return UniformStartPgd(learner.norm, radii, step, self.steps)

    def _load_radii(self, index: Tensor) -> Tensor:
        """Return the radii (N,) of these images; 0 for an image that was not seen before."""
        self._grow(index.cpu())
        return self._radii[index.cpu()].to(index.device)

    def _store_radii(self, index: Tensor, radii: Tensor) -> None:
        self._grow(index)
        self._radii[index] = radii

    def _grow(self, index: Tensor) -> None:
        num_missing = max(int(index.max()) + 1 - len(self._radii), 0)
        self._radii = torch.cat([self._radii, torch.zeros(num_missing)])

    def state(self) -> dict[str, Tensor]:
        """Return the radii, by the index of their image."""
        return {"radii": self._radii}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self._radii = state["radii"]


def _find_correct(learner: Learner, batch: Batch, images: Tensor) -> Tensor:
    """Return which of these images (N,), made from a batch, are classified correctly."""
    with learner.attack_mode() as model, torch.no_grad():
        is_correct: Tensor = model(images).argmax(dim=1) == batch.labels
    return is_correct


def choose_radii(
    radii: Tensor,
    growth: float,
    *,
    is_correct: Tensor,
    survives_radius: Tensor,
    survives_larger: Tensor,
) -> Tensor:
    """Return the target radii (N,), by whether an image is correct clean, at r, at r + growth."""
    # radii shrink only where the attack within the current radius succeeds
    smaller_or_same = torch.where(survives_radius, radii, radii - growth)
    target = torch.where(survives_larger, radii + growth, smaller_or_same)
    return (target * is_correct).clamp(min=0)
