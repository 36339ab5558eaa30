"""Norms of perturbations: each is an object with four short methods.

Perturbations are (N, C, H, W), sizes (N,).
"""

import math
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from . import rng

Radius = float | Tensor
"""One for all images, or one per image, (N, 1, 1, 1)."""


class Norm(Protocol):
    """The geometry of a threat model."""

    def size(self, delta: Tensor) -> Tensor:
        """Return the size of each perturbation, (N,)."""
        ...

    def project(self, delta: Tensor, eps: Radius) -> Tensor:
        """Return the nearest perturbation of size at most eps."""
        ...

    def direction(self, gradient: Tensor) -> Tensor:
        """Return the perturbation of size 1 with the largest product with the gradient."""
        ...

    def random(self, like: Tensor, eps: Radius, index: Tensor, seed: int, restart: int) -> Tensor:
        """Return perturbations that are uniform in the ε-ball."""
        ...


class Linf:
    """The largest absolute change of any pixel."""

    def size(self, delta: Tensor) -> Tensor:
        return delta.abs().flatten(1).amax(dim=1)

    def project(self, delta: Tensor, eps: Radius) -> Tensor:
        return delta.clamp(-eps, eps)  # type: ignore[arg-type]  # two numbers or two tensors

    def direction(self, gradient: Tensor) -> Tensor:
        return gradient.sign()

    def random(self, like: Tensor, eps: Radius, index: Tensor, seed: int, restart: int) -> Tensor:
        return (2 * rng.uniform(like, index, seed, restart) - 1) * eps


class L2:
    """The Euclidean length of the change."""

    def size(self, delta: Tensor) -> Tensor:
        lengths: Tensor = torch.linalg.vector_norm(delta.flatten(1), dim=1)
        return lengths

    def project(self, delta: Tensor, eps: Radius) -> Tensor:
        size = self._nonzero_size(delta)
        # torch divides a number by a tensor like this, and a number is a tensor when compiled
        is_number = not isinstance(eps, Tensor) or eps.ndim == 0
        scale = size.reciprocal() * eps if is_number else eps / size
        return delta * scale.clamp(max=1)

    def direction(self, gradient: Tensor) -> Tensor:
        # divided by its largest entry first: small gradients would underflow when squared
        largest = gradient.abs().flatten(1).amax(dim=1).reshape(-1, 1, 1, 1)
        scaled = gradient / torch.where(largest > 0, largest, 1)
        return scaled / self._nonzero_size(scaled)

    def random(self, like: Tensor, eps: Radius, index: Tensor, seed: int, restart: int) -> Tensor:
        # normal noise has a uniform direction
        direction = self.direction(rng.normal(like, index, seed, restart))
        radius = rng.uniform(like.new_empty(len(like), 1, 1, 1), index, seed, restart, step=1)
        # the volume of a d-dimensional ball grows with r^d, so u^(1/d) is uniform in volume
        return direction * eps * radius ** (1 / math.prod(like.shape[1:]))

    def _nonzero_size(self, delta: Tensor) -> Tensor:
        """Return the size, (N, 1, 1, 1), or 1 instead of 0, so that it can be a divisor."""
        size = self.size(delta).reshape(-1, 1, 1, 1)
        return torch.where(size > 0, size, 1)


NORMS: Mapping[str, Norm] = {"linf": Linf(), "l2": L2()}
