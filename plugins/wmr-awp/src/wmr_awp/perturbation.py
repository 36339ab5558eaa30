"""Perturbed weights, and snapshots of what a step changes besides weights. Both undo exactly."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class ModelSnapshot:
    """Buffers, such as batch-norm statistics, and the states of the generators of dropout."""

    buffers: tuple[Tensor, ...]
    generators: tuple[Tensor, ...]

    @classmethod
    def take(cls, model: nn.Module) -> "ModelSnapshot":
        """Copy the current state."""
        buffers = tuple(buffer.clone() for buffer in model.buffers())
        return cls(buffers, tuple(source.get_rng_state() for source in _generators(model)))

    def restore(self, model: nn.Module) -> None:
        """Write the state back."""
        with torch.no_grad():
            for buffer, before in zip(model.buffers(), self.buffers, strict=True):
                buffer.copy_(before)
        for source, before in zip(_generators(model), self.generators, strict=True):
            source.set_rng_state(before)


def _generators(model: nn.Module) -> list[Any]:
    """Return the modules of torch whose generators a forward pass may use."""
    device = next(model.parameters()).device
    if device.type == "cpu":
        return [torch]
    return [torch, torch.get_device_module(device)]


class WeightPerturbation:
    """Perturbed values of weights, which can be swapped in and out."""

    def __init__(self, perturbed: dict[nn.Parameter, Tensor]) -> None:
        self._other_values = perturbed
        """The values that the weights do not have at the moment."""
        self.is_applied = False

    @classmethod
    def along_gradient(cls, model: nn.Module, gamma: float) -> "WeightPerturbation":
        """Move each weight of more than one dimension by gamma times its norm.

        The direction is that of its gradient. Where the gradient is zero, or overflowed in half
        precision, the weight does not move.
        """
        perturbed = {}
        for weight in model.parameters():
            gradient = weight.grad
            if weight.ndim <= 1 or gradient is None:
                continue
            value = weight.detach()
            length = gradient.norm()
            if length > 0 and length.isfinite():
                perturbed[weight] = value + gradient * (gamma * value.norm() / length)
        return cls(perturbed)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Perturb the weights inside, unless `undo` is called before the end."""
        self._swap()
        try:
            yield
        finally:
            self.undo()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Give the weights their original values inside."""
        was_applied = self.is_applied
        self.undo()
        try:
            yield
        finally:
            if was_applied:
                self._swap()

    def undo(self) -> None:
        """Restore the original weights, bit-identical, if they are perturbed."""
        if self.is_applied:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        # in place: a backward pass through weights that changed after its forward pass then fails
        for weight, other in self._other_values.items():
            current = weight.clone()
            weight.copy_(other)
            self._other_values[weight] = current
        self.is_applied = not self.is_applied
