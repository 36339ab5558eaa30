"""The model as torchattacks gets it: callable and differentiable, but protected from changes."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class CountingModel(nn.Module):
    """A model with a fixed mode, which counts the passes (N,) in which each image is correct."""

    def __init__(self, model: nn.Module, labels: Tensor) -> None:
        super().__init__()
        self.model = model
        self._labels = labels
        self._num_passes = 0
        self._num_correct = torch.zeros_like(labels)

    def train(self, mode: bool = True) -> "CountingModel":
        """Do nothing: the model is in the mode in which it should be attacked."""
        return self

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images)
        if len(logits) == len(self._labels):
            self._num_passes += 1
            self._num_correct += logits.argmax(dim=1) == self._labels
        return logits

    def steps_survived(self, steps: int, was_correct: Tensor) -> Tensor:
        """Return how many of `steps` steps each image (N,) survived.

        One step may be several passes, so the counts of passes are scaled and rounded up.
        """
        if not self._num_passes:
            return was_correct.long()
        return (self._num_correct * steps + self._num_passes - 1) // self._num_passes


@contextmanager
def frozen_parameters(model: nn.Module) -> Iterator[None]:
    """Disable gradients of the parameters: attacks that call `backward` would leave them there."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
