"""Random crops and flips of a whole batch, as a pure function of (seed, image index)."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from ..rng import random_words


@dataclass(frozen=True)
class Augmentation:
    """Shift images by up to `padding` pixels in both directions, and mirror half of them.

    All offsets are equally likely. New pixels at the border are black, or mirrored at the edge.
    """

    padding: int = 0
    border: Literal["zero", "reflect"] = "zero"
    flips: bool = False

    def __call__(self, images: Tensor, index: Tensor, seed: int) -> Tensor:
        """Augment images (N, C, H, W) on their device, by numbers drawn on that of the index."""
        if not (self.padding or self.flips):
            return images
        height, width = images.shape[2:]
        down, right, flip = random_words(index, 3, seed).unbind(dim=1)
        offsets = 2 * self.padding + 1
        # the highest of 32 random bits decides; `%` of such numbers was wrong on MPS in torch 2.7
        drawn = torch.stack([down % offsets, right % offsets, flip >> 31])
        # where the index is pinned, the host does not wait for this copy either
        if index.is_pinned():
            drawn = drawn.pin_memory()
        drawn = drawn.to(images.device, non_blocking=index.is_pinned())
        down, right, flip = drawn[:, :, None]
        rows = down + torch.arange(height, device=images.device)
        columns = torch.arange(width, device=images.device)
        if self.flips:
            columns = torch.where(flip.bool(), columns.flip(0), columns)
        columns = right + columns
        if self.padding:
            mode = "constant" if self.border == "zero" else "reflect"
            images = functional.pad(images, (self.padding,) * 4, mode=mode)
        # one flat position per pixel is much faster than indexing by image, channel, row, column
        flat = (rows[:, :, None] * images.shape[3] + columns[:, None, :]).flatten(1)
        picked = images.flatten(2).gather(2, flat[:, None, :].expand(-1, images.shape[1], -1))
        return picked.reshape(*picked.shape[:2], height, width)
