"""`free`: one backward pass updates both parameters and perturbation."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.protocols import Batch, Learner, Losses, StepReport
from ...core.traits import DefenseTraits
from ...core.weighted_step import step_weighted
from ...errors import BadInput


@dataclass
class Free:
    """Replays each batch m times; one backward pass updates parameters and perturbation.

    The perturbation moves by steps of eps. It has the shape of a batch and is kept from one batch
    to the next; a smaller batch uses its first rows. Epochs and milestones are divided by m.

    Objective: `weight(x') * CE(x')`, with x' = x + the perturbation
    Cost: 1
    Good for: robust training at the cost of natural training
    Reference: Shafahi et al. 2019, arXiv:1904.12843
    """

    m: int = 8

    def __post_init__(self) -> None:
        if self.m < 1:
            raise BadInput(f"`m` of free is {self.m}", hint="`m` is at least 1")
        self._kept: Tensor | None = None

    @property
    def traits(self) -> DefenseTraits:
        return DefenseTraits(
            uses_attack=False,
            shares_gradient=True,
            replays=self.m,
            state_per_rank=True,
            mixes_labels=True,
        )

    def step(self, learner: Learner, batch: Batch) -> StepReport:
        delta = self._load_perturbation(batch.images)
        for _ in range(self.m):
            delta.requires_grad_()
            logits = learner.forward((batch.images + delta).clamp(0, 1))
            loss = learner.label_loss(logits, batch.labels, batch.second)
            evidence = batch.evidence(logits)
            report = step_weighted(learner, batch, Losses(weighted=loss, evidence=evidence))
            assert delta.grad is not None
            # a scaled loss in half precision may overflow; the optimizer then skips its step
            direction = learner.norm.direction(delta.grad.nan_to_num())
            delta = learner.norm.project(delta.detach() + learner.eps * direction, learner.eps)
        self._store_perturbation(delta)
        return report

    def _load_perturbation(self, images: Tensor) -> Tensor:
        """Return the stored perturbation of as many rows as there are images, zero at first."""
        if self._kept is None:
            kept = images.new_zeros(0, *images.shape[1:])
        else:
            kept = self._kept.to(images)
        num_missing = max(len(images) - len(kept), 0)
        self._kept = torch.cat([kept, images.new_zeros(num_missing, *images.shape[1:])])
        return self._kept[: len(images)].clone()

    def _store_perturbation(self, delta: Tensor) -> None:
        assert self._kept is not None
        self._kept[: len(delta)] = delta

    def state(self) -> dict[str, Tensor]:
        """Return the perturbation."""
        return {} if self._kept is None else {"perturbation": self._kept}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self._kept = state["perturbation"]
