"""WAT's weights of classes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.losses import cross_entropy, kl_divergence, log_probabilities
from ...core.protocols import Evidence
from ...core.traits import KernelTraits
from ...errors import BadInput


@dataclass
class Wat:
    """Weighs classes by what they have cost on held-out images so far, updated after every epoch.

    C classes and their mean are C + 1 experts of the hedge algorithm: with the sum of costs, `CE(x) + beta * KL(p(x) || p(x'))`,
    over the epochs, each weighs `C * softmax(eta * sum)`. An image is paid for by its class and by the mean. The authors put
    it on all of TRADES: `trades:terms=both`.

    Weight: `w_class + w_mean`, without gradient
    Good for: raising the class that does worst
    Reference: Li and Liu 2023, arXiv:2302.04025
    """

    eta: float = 0.1
    beta: float = 6.0

    traits = KernelTraits(differentiable=False, usable_as_metric=False)

    def __post_init__(self) -> None:
        if self.eta < 0 or self.beta < 0:
            raise BadInput(
                f"eta is {self.eta:g}, beta is {self.beta:g}", hint="neither is negative"
            )
        self._costs: Tensor | None = None

    def __call__(self, evidence: Evidence) -> Tensor:
        classes = evidence.logits.shape[1]
        costs = (
            torch.zeros(classes + 1, dtype=torch.float64) if self._costs is None else self._costs
        )
        experts = classes * torch.softmax(self.eta * costs, dim=0)
        return (experts[:-1] + experts[-1]).log().to(evidence.logits)[evidence.labels]

    def observe(self, evidence: Evidence) -> None:
        """Add what each class costs on held-out images, and what all cost on average; a class without images costs nothing."""
        assert evidence.clean_logits is not None
        # to the CPU first: not every device has float64
        clean, adversarial, labels = (
            evidence.clean_logits.cpu().double(),
            evidence.logits.cpu().double(),
            evidence.labels.cpu(),
        )
        paid = cross_entropy(clean, labels)
        paid = paid + self.beta * kl_divergence(
            log_probabilities(clean), log_probabilities(adversarial)
        )
        sums = torch.zeros(clean.shape[1], dtype=torch.float64).index_add(0, labels, paid)
        costs = torch.cat(
            [sums / labels.bincount(minlength=clean.shape[1]).clamp(min=1), paid.mean()[None]]
        )
        self._costs = costs if self._costs is None else self._costs + costs

    def state(self) -> dict[str, Tensor]:
        """The costs so far."""
        return {} if self._costs is None else {"costs": self._costs}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Bring back what `state` gave."""
        self._costs = state["costs"]
