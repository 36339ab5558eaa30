"""Random crops and flips of a whole batch at once, on whatever device it is, as a pure function of (seed, image index)."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from ..rng import random_words


@dataclass(frozen=True)
class Augmentation:
    """Every image is moved by up to `padding` pixels in both directions, each offset as likely as any other, and mirrored or not.

    What comes in at the border is black, or the image mirrored at its edge.
    """

    padding: int = 0
    border: Literal["zero", "reflect"] = "zero"
    flips: bool = False

    def __call__(self, images: Tensor, index: Tensor, seed: int) -> Tensor:
        """(N, C, H, W) to the same."""
        if not (self.padding or self.flips):
            return images
        height, width = images.shape[2:]
        down, right, flip = random_words(index, 3, seed).to(images.device).unbind(dim=1)
        rows, columns = (
            torch.arange(height, device=images.device),
            torch.arange(width, device=images.device),
        )
        reach = 2 * self.padding + 1
        rows = (down % reach)[:, None] + rows
        mirrored = (
            (flip >> 31)[:, None].bool() if self.flips else torch.zeros_like(flip)[:, None].bool()
        )
        columns = (right % reach)[:, None] + torch.where(mirrored, columns.flip(0), columns)
        if self.padding:
            images = functional.pad(
                images, (self.padding,) * 4, mode="constant" if self.border == "zero" else "reflect"
            )
        # one flat position per pixel is much faster than indexing by image, channel, row and column
        flat = (rows[:, :, None] * images.shape[3] + columns[:, None, :]).flatten(1)
        picked = images.flatten(2).gather(2, flat[:, None, :].expand(-1, images.shape[1], -1))
        return picked.reshape(*picked.shape[:2], height, width)
