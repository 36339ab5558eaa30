"""Small data sets that live in memory."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .contracts import Batch


@dataclass(frozen=True, eq=False)
class MemorySplit:
    """Images (N, C, H, W) as uint8 in 0…255 or float32 in [0, 1], labels (N,), and each image's index (N,) in its data set."""

    images: Tensor
    labels: Tensor
    index: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, positions: Tensor) -> Batch:
        """The images at these positions, as float32 in [0, 1]."""
        images = self.images[positions]
        if images.dtype == torch.uint8:
            images = images.float() / 255
        return Batch(images, self.labels[positions], self.index[positions])

    @cached_property
    def sha256(self) -> str:
        """Over images, labels and indices, so that results are compared on the same images only."""
        digest = hashlib.sha256()
        for part in (self.images, self.labels, self.index):
            digest.update(f"{part.dtype} {tuple(part.shape)}".encode())
            digest.update(part.contiguous().numpy().tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class MemorySource:
    """A data set of splits in memory."""

    num_classes: int
    splits: Mapping[str, MemorySplit]

    @property
    def input_shape(self) -> tuple[int, int, int]:
        channels, height, width = self.splits["train"].images.shape[1:]
        return channels, height, width


def balanced_subset(labels: Tensor, size: int, seed: int) -> Tensor:
    """Positions (size,), in ascending order, of a random subset with as equal a share of every class as there can be."""
    generator = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(len(labels), generator=generator)
    turn = torch.empty_like(shuffled)
    for label in labels.unique():
        members = labels[shuffled] == label
        turn[members] = torch.arange(int(members.sum()))
    # every class gives its first image, then its second, …
    order = torch.argsort(turn, stable=True)
    return shuffled[order[:size]].sort().values
