"""`wat`: weights of classes by their loss on the validation set."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.losses import cross_entropy, kl_divergence, log_probabilities
from ...core.protocols import Evidence
from ...core.traits import KernelTraits
from ...errors import BadInput


@dataclass
class Wat:
    """Weights classes by their loss on the validation set, updated after every epoch.

    The C classes and their mean are C + 1 experts of the hedge algorithm. Each sums its loss,
    `CE(x) + beta * KL(p(x) || p(x'))`, over the epochs and gets the weight
    `C * softmax(eta * sum)`. An image has the weight of its class plus that of the mean. The
    authors apply it to all of TRADES: `trades:terms=both`.

    Weight: `w_class + w_mean`, without gradient
    Good for: raising the accuracy of the worst class
    Reference: Li and Liu 2023, arXiv:2302.04025
    """

    eta: float = 0.1
    beta: float = 6.0

    traits = KernelTraits(differentiable=False, usable_as_metric=False)

    def __post_init__(self) -> None:
        if self.eta < 0 or self.beta < 0:
            raise BadInput(
                f"`eta` is {self.eta:g}, `beta` is {self.beta:g}", hint="both are at least 0"
            )
        self._costs: Tensor | None = None

    def __call__(self, evidence: Evidence) -> Tensor:
        num_classes = evidence.logits.shape[1]
        costs = self._costs
        if costs is None:  # before the first validation all experts are equal
            costs = torch.zeros(num_classes + 1, dtype=torch.float64)
        experts = num_classes * torch.softmax(self.eta * costs, dim=0)
        return (experts[:-1] + experts[-1]).log().to(evidence.logits)[evidence.labels]

    def observe(self, evidence: Evidence) -> None:
        """Add the mean loss of each class and of all images; a class without images adds 0."""
        assert evidence.clean_logits is not None  # validation computes them
        # to the CPU first: not every device has float64
        clean = evidence.clean_logits.cpu().double()
        adversarial = evidence.logits.cpu().double()
        labels = evidence.labels.cpu()
        divergence = kl_divergence(log_probabilities(clean), log_probabilities(adversarial))
        losses = cross_entropy(clean, labels) + self.beta * divergence
        num_classes = clean.shape[1]
        sums = torch.zeros(num_classes, dtype=torch.float64).index_add(0, labels, losses)
        means = sums / labels.bincount(minlength=num_classes).clamp(min=1)
        costs = torch.cat([means, losses.mean()[None]])
        self._costs = costs if self._costs is None else self._costs + costs

    def state(self) -> dict[str, Tensor]:
        """Return the summed losses."""
        return {} if self._costs is None else {"costs": self._costs}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self._costs = state["costs"]
