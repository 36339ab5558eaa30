"""The network as torchattacks is to see it: it can be asked and differentiated, and not changed."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Watched(nn.Module):
    """A network whose mode nobody can set from here, and the passes (N,) in which each image was still right."""

    def __init__(self, network: nn.Module, labels: Tensor) -> None:
        super().__init__()
        self.network = network
        self._labels, self._passes = labels, 0
        self._right = torch.zeros_like(labels)

    def train(self, mode: bool = True) -> "Watched":
        """Nothing: the network comes in the mode in which it is to be attacked."""
        return self

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network(images)
        if len(logits) == len(self._labels):
            self._passes += 1
            self._right += logits.argmax(dim=1) == self._labels
        return logits

    def steps_survived(self, steps: int, was_right: Tensor) -> Tensor:
        """Before how many of `steps` steps each image was right, (N,): several passes may make one step."""
        if not self._passes:
            return was_right.long()
        return (self._right * steps + self._passes - 1) // self._passes


@contextmanager
def parameters_at_rest(network: nn.Module) -> Iterator[None]:
    """Inside, no gradient reaches the parameters: some attacks call `backward` and would leave it there."""
    moving = [parameter for parameter in network.parameters() if parameter.requires_grad]
    for parameter in moving:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in moving:
            parameter.requires_grad_(True)
