"""`gairat`: weights by the number of attack steps that an image survived."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from ...core.protocols import Evidence
from ...core.traits import KernelTraits
from ...errors import BadInput


@dataclass(frozen=True)
class Gairat:
    """Weights by k, the number of the attack's K steps before which an image was still correct.

    `form=sigmoid` is the sigmoid of the same argument, `form=discrete` is `(K + 1 - k) / (K + 1)`.
    It is used after a burn-in of `start-epoch` epochs. K is that of the training attack.

    Weight: `(1 + tanh(shift + 5 * (1 - 2k / K))) / 2`, divided by the batch's mean, without
        gradient
    Good for: training on the images that an attack reaches first; weak under stronger attacks
    Reference: Zhang et al. 2021, arXiv:2010.01736
    """

    steps: int = 10
    shift: float = -1.0
    form: Literal["tanh", "sigmoid", "discrete"] = "tanh"
    start_epoch: int = 60

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise BadInput(
                "gairat counts the steps of an attack, and this attack has none",
                hint="train with `steps=10`",
            )
        if self.start_epoch < 0:
            raise BadInput(
                f"`start-epoch` is {self.start_epoch}", hint="`start-epoch` is at least 0"
            )

    @property
    def traits(self) -> KernelTraits:
        return KernelTraits(
            needs=frozenset({"steps_survived"}),
            differentiable=False,
            normalized=True,
            start_epoch=self.start_epoch,
            usable_as_metric=False,
        )

    def __call__(self, evidence: Evidence) -> Tensor:
        assert evidence.steps_survived is not None  # a trait requires it
        # restarts of an attack may add up to more steps than K
        survived = evidence.steps_survived.to(evidence.logits.dtype).clamp(max=self.steps)
        if self.form == "discrete":
            return torch.log((self.steps + 1 - survived) / (self.steps + 1))
        argument = self.shift + 5 * (1 - 2 * survived / self.steps)
        # (1 + tanh(u)) / 2 is the sigmoid of 2u
        return functional.logsigmoid(2 * argument if self.form == "tanh" else argument)
