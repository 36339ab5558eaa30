"""What a step changes in a network beside its parameters, and a shift of its weights. Both can be undone exactly."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Moment:
    """Buffers such as the statistics of batch-norm, and the state of the generators that dropout draws from."""

    buffers: tuple[Tensor, ...]
    generators: tuple[Tensor, ...]

    @classmethod
    def of(cls, model: nn.Module) -> "Moment":
        """How things are now."""
        buffers = tuple(buffer.clone() for buffer in model.buffers())
        return cls(buffers, tuple(source.get_rng_state() for source in _generators(model)))

    def bring_back(self, model: nn.Module) -> None:
        """How things were."""
        with torch.no_grad():
            for buffer, before in zip(model.buffers(), self.buffers, strict=True):
                buffer.copy_(before)
        for source, before in zip(_generators(model), self.generators, strict=True):
            source.set_rng_state(before)


def _generators(model: nn.Module) -> list[Any]:
    """The modules of torch that hold the generators a forward pass may draw from."""
    device = next(model.parameters()).device
    return [torch, *([] if device.type == "cpu" else [torch.get_device_module(device)])]


class Shift:
    """Weights of a network and where they are to be for a while."""

    def __init__(self, moved: dict[nn.Parameter, Tensor]) -> None:
        self._elsewhere = moved
        """the values that the weights do not have at the moment"""
        self.is_applied = False

    @classmethod
    def up_the_gradient(cls, model: nn.Module, gamma: float) -> "Shift":
        """Each weight of more than one dimension by gamma times its length, in the direction of its gradient.

        Where the gradient is zero, or overflowed in half precision, there is no direction and the weight stays.
        """
        moved = {}
        for weight in (
            parameter
            for parameter in model.parameters()
            if parameter.ndim > 1 and parameter.grad is not None
        ):
            value = weight.detach()
            gradient = weight.grad
            assert gradient is not None
            length = gradient.norm()
            if length > 0 and length.isfinite():
                moved[weight] = value + gradient * (gamma * value.norm() / length)
        return cls(moved)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the weights are shifted, unless they are put back before the end."""
        self._swap()
        try:
            yield
        finally:
            self.undo()

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Inside, the weights are as they were."""
        was_applied = self.is_applied
        self.undo()
        try:
            yield
        finally:
            if was_applied:
                self._swap()

    def undo(self) -> None:
        """Put the weights back, bit for bit, if they are shifted."""
        if self.is_applied:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        # in place: a backward pass through weights that have changed since its forward pass then fails loudly
        for weight, other in self._elsewhere.items():
            here = weight.clone()
            weight.copy_(other)
            self._elsewhere[weight] = here
        self.is_applied = not self.is_applied
