"""What attacks climb: `ce`, `kl`, `margin`, `pmargin`, and their weighted forms.

An objective is a function of (logits, labels); one that holds state per image can be indexed by rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from ..errors import UnknownName, did_you_mean
from .contracts import Evidence, Kernel, Objective
from .losses import cross_entropy, kl_divergence, log_probabilities
from .margins import logit_margin, probability_margin


def overtake(logits: Tensor, labels: Tensor) -> Tensor:
    """`margin`: the best other logit minus the true one, without a clamp."""
    return -logit_margin(logits, labels)


def probability_overtake(logits: Tensor, labels: Tensor) -> Tensor:
    """`pmargin`: minus the probability margin."""
    return -probability_margin(logits, labels)


@dataclass(frozen=True, eq=False)
class Divergence:
    """`kl`: KL(p(x) || p(x')). The natural log-probabilities (N, C) are constant during an attack: computed once."""

    natural: Tensor

    @classmethod
    def from_logits(cls, clean_logits: Tensor) -> "Divergence":
        return cls(log_probabilities(clean_logits.detach()))

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        return kl_divergence(self.natural, log_probabilities(logits))

    def __getitem__(self, rows: Tensor) -> "Divergence":
        return Divergence(self.natural[rows])


@dataclass(frozen=True, eq=False)
class Weighted:
    """`wce`, `wkl`: weight times loss, in the form that cannot overflow.

    exp(a - stopgrad(a)) * loss has the value of the loss and the gradient of exp(a) * loss divided by exp(a): with a
    step per image that knows no scale (sign, unit norm) the iterates are the same. A detached weight would cancel.
    """

    loss: Objective
    kernel: Kernel

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        values = self.loss(logits, labels)
        log_weights = self.kernel(Evidence(logits, labels, loss=values))
        return (log_weights - log_weights.detach()).exp() * values

    def __getitem__(self, rows: Tensor) -> "Weighted":
        return Weighted(self.loss[rows] if hasattr(self.loss, "__getitem__") else self.loss, self.kernel)


def positive_overtake(logits: Tensor, labels: Tensor) -> Tensor:
    """softplus of the margin loss. The margin loss is negative where the image survives: a larger weight would lower it."""
    return functional.softplus(overtake(logits, labels))


def positive_probability_overtake(logits: Tensor, labels: Tensor) -> Tensor:
    """1 - m, for the same reason."""
    return 1 - probability_margin(logits, labels)


OBJECTIVES: Mapping[str, Objective] = {"ce": cross_entropy, "margin": overtake, "pmargin": probability_overtake}
"""Objectives that need nothing but logits and labels, so that an attack may name one as its `loss`."""

_WEIGHABLE: Mapping[str, Objective] = {"margin": positive_overtake, "pmargin": positive_probability_overtake}


def objective_named(loss: str) -> Objective:
    """The objective that an attack names as its `loss`."""
    if loss not in OBJECTIVES:
        raise UnknownName(f"no objective is called {loss!r}", hint=did_you_mean(loss, OBJECTIVES))
    return OBJECTIVES[loss]


def weighted_objective(loss: str, kernel: Kernel) -> Objective:
    """The objective of A_tr for an attack that climbs `loss`: weights need a loss that is never negative."""
    return Weighted(_WEIGHABLE.get(loss) or objective_named(loss), kernel)
