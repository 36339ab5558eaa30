"""Target classes, and what an attack climbs to reach one."""

from dataclasses import dataclass

from torch import Tensor

from .margins import at_least_float32

MOST_TARGETS = 9
"""As in the standard AutoAttack: of ten classes, all that are wrong."""
RATIO_CLASSES = 4
"""The targeted ratio divides by the distance from the first logit to the third and fourth."""
_TINY = 1e-12


def likely_wrong(logits: Tensor, labels: Tensor, count: int = MOST_TARGETS) -> Tensor:
    """The most likely wrong classes of each image, the likeliest first. (N, C) to (N, min(count, C - 1))."""
    others = logits.detach().scatter(1, labels[:, None], float("-inf"))
    return others.topk(min(count, logits.shape[1] - 1), dim=1).indices


def targeted_overtake(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """The target's logit minus the true one, (N,)."""
    return (at_least_float32(logits).gather(1, targets[:, None]) - at_least_float32(logits).gather(1, labels[:, None])).squeeze(1)


@dataclass(frozen=True, eq=False)
class TargetedRatio:
    """The targeted difference-of-logits ratio (Croce and Hein 2020, arXiv:2003.01690), for targets (N,).

    The target's logit minus the true one, over the distance from the largest logit to the mean of the third and the
    fourth; with fewer than four classes without that denominator.
    """

    targets: Tensor

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        ahead = targeted_overtake(logits, labels, self.targets)
        if logits.shape[1] < RATIO_CLASSES:
            return ahead
        largest = at_least_float32(logits).topk(4, dim=1).values
        return ahead / (largest[:, 0] - (largest[:, 2] + largest[:, 3]) / 2 + _TINY)

    def __getitem__(self, rows: Tensor) -> "TargetedRatio":
        return TargetedRatio(self.targets[rows])
