"""Free adversarial training."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.protocols import Batch, Evidence, Learner, Losses, StepReport
from ...core.traits import DefenseTraits
from ...core.weighted_step import step_weighted
from ...errors import BadInput


@dataclass
class Free:
    """Each batch m times; one backward pass moves the parameters and, by a step of eps, the perturbation.

    The perturbation has the shape of a batch and is kept from one batch to the next; a smaller batch uses its first rows.
    Epochs and milestones are divided by m.

    Objective: `weight(x') * CE(x')`, with x' = x + the perturbation
    Cost: 1
    Good for: robust training for the price of natural training
    Reference: Shafahi et al. 2019, arXiv:1904.12843
    """

    m: int = 8

    def __post_init__(self) -> None:
        if self.m < 1:
            raise BadInput(f"free replays each batch {self.m} times", hint="m is 1 or more")
        self._kept: Tensor | None = None

    @property
    def traits(self) -> DefenseTraits:
        return DefenseTraits(
            uses_attack=False, shares_gradient=True, replays=self.m, state_per_rank=True
        )

    def step(self, learner: Learner, batch: Batch) -> StepReport:
        delta = self._perturbation(batch.images)
        for _ in range(self.m):
            delta.requires_grad_()
            logits = learner.forward((batch.images + delta).clamp(0, 1))
            loss = learner.label_loss(logits, batch.labels)
            report = step_weighted(
                learner, batch, Losses(loss, Evidence(logits, batch.labels, batch.index, loss=loss))
            )
            assert delta.grad is not None
            # a scaled loss in half precision may overflow, and its step is then skipped
            climbed = delta.detach() + learner.eps * learner.norm.direction(delta.grad.nan_to_num())
            delta = learner.norm.project(climbed, learner.eps)
        self._keep(delta)
        return report

    def _perturbation(self, images: Tensor) -> Tensor:
        """What is kept for as many rows as there are images; zero at first."""
        kept = (
            images.new_zeros(0, *images.shape[1:]) if self._kept is None else self._kept.to(images)
        )
        missing = max(len(images) - len(kept), 0)
        self._kept = torch.cat([kept, images.new_zeros(missing, *images.shape[1:])])
        return self._kept[: len(images)].clone()

    def _keep(self, delta: Tensor) -> None:
        assert self._kept is not None
        self._kept[: len(delta)] = delta

    def state(self) -> dict[str, Tensor]:
        """The perturbation."""
        return {} if self._kept is None else {"perturbation": self._kept}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Bring back what `state` gave."""
        self._kept = state["perturbation"]
