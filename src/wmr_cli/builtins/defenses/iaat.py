"""Instance-adaptive adversarial training: a radius for each image."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.losses import cross_entropy
from ...core.pgd import UniformStartPgd
from ...core.protocols import Batch, Evidence, Learner, Losses, StepReport
from ...core.traits import DefenseTraits
from ...core.weighted_step import step_weighted
from ...errors import BadInput


@dataclass
class InstanceAdaptive:
    """PGD training in which the ball of each image grows while the image stays right, and shrinks when it does not.

    For `warmup` epochs the radius is eps for images that are right, else 0. Then the attack tries the radius r that an
    image has and r + gamma. It goes for r + gamma, r or r - gamma, the first at which the image is right, and for 0 where
    the image is wrong without an attack; of the change it takes the share beta. gamma and the smallest step are shares of
    eps. No radius is cut at eps.

    Objective: `weight(x') * CE(x')`, with x' climbing `weight * CE` in the image's own ball
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
        least = {"steps": 1, "smallest_step": 0, "gamma": 0, "beta": 0, "warmup": 0}
        wrong = [name for name, smallest in least.items() if getattr(self, name) < smallest] + [
            "beta"
        ] * (self.beta > 1)
        if wrong:
            problem = f"{wrong[0]} of iaat is {getattr(self, wrong[0]):g}"
            raise BadInput(
                problem, hint="steps is 1 or more, beta at most 1, and nothing is negative"
            )
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
        radii = self._updated(learner, batch)
        self._remember(learner.gather(batch.index).cpu(), learner.gather(radii).cpu())
        attacked = learner.attack(batch, cross_entropy, self._attack(learner, radii))
        logits = learner.forward(attacked.images)
        loss = learner.label_loss(logits, batch.labels)
        evidence = Evidence(
            logits, batch.labels, batch.index, steps_survived=attacked.steps_survived, loss=loss
        )
        return step_weighted(learner, batch, Losses(weighted=loss, evidence=evidence))

    def _updated(self, learner: Learner, batch: Batch) -> Tensor:
        """The radius of each image (N,) in this step."""
        is_right = _right(learner, batch, batch.images)
        if learner.epoch < self.warmup:
            return is_right.float() * learner.eps
        before, growth = self._remembered(batch.index), self.gamma * learner.eps
        stays, holds = (
            _right(
                learner,
                batch,
                learner.attack(batch, cross_entropy, self._attack(learner, radius)).images,
            )
            for radius in (before, before + growth)
        )
        new = adapted(before, growth, is_right=is_right, stays=stays, holds=holds)
        return self.beta * new + (1 - self.beta) * before

    def _attack(self, learner: Learner, radii: Tensor) -> UniformStartPgd:
        step = (radii / (self.steps / 2)).clamp(min=self.smallest_step * learner.eps)
        return UniformStartPgd(learner.norm, radii, step, self.steps)

    def _remembered(self, index: Tensor) -> Tensor:
        """The radii (N,) of these images; 0 for one that was never seen."""
        self._grow(index.cpu())
        return self._radii[index.cpu()].to(index.device)

    def _remember(self, index: Tensor, radii: Tensor) -> None:
        self._grow(index)
        self._radii[index] = radii

    def _grow(self, index: Tensor) -> None:
        missing = max(int(index.max()) + 1 - len(self._radii), 0)
        self._radii = torch.cat([self._radii, torch.zeros(missing)])

    def state(self) -> dict[str, Tensor]:
        """The radii, by the index of their image."""
        return {"radii": self._radii}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Bring back what `state` gave."""
        self._radii = state["radii"]


def _right(learner: Learner, batch: Batch, images: Tensor) -> Tensor:
    """Which of the images (N,) that were made of a batch are right."""
    with learner.attack_mode() as network, torch.no_grad():
        right: Tensor = network(images).argmax(dim=1) == batch.labels
    return right


def adapted(
    before: Tensor, growth: float, *, is_right: Tensor, stays: Tensor, holds: Tensor
) -> Tensor:
    """The radius to go for, (N,): whether the image is right clean, at its radius, and at the next larger one decides."""
    new = torch.where(holds, before + growth, torch.where(stays, before, before - growth))
    return (new * is_right).clamp(min=0)
