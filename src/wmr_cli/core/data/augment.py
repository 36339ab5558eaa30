"""Random changes of a whole batch of images, as a pure function of (seed, image index)."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from ..contexts import exact_float32
from ..rng import random_words
from .color import ColorJitter, copy_drawn
from .mixing import Mixer
from .rand_augment import RandAugment

LARGEST_ASPECT = 4 / 3
"""Ratio of the sides of a random box, at most; the same as in torchvision."""
BOX_ATTEMPTS = 10
"""Boxes that are drawn until one fits into the image; the same as in torchvision."""
ERASED_AREA = (0.02, 0.33)
"""Smallest and largest fraction of an image that is erased; the same as in torchvision."""
ERASED_ASPECT = (0.3, 3.3)
"""Ratio of height to width of an erased box; the same as in torchvision."""
ERASING_STEP = 4
"""Random words of step 3 are those of RandAugment."""


@dataclass(frozen=True)
class Augmentation:
    """Crop images at random, or shift them by up to `padding` pixels, and mirror half of them.

    All offsets are equally likely. New pixels at the border are black, or mirrored at the edge.
    With `smallest_area`, a box of at least this fraction of the image is resized to the whole.
    Colours change after that, then RandAugment, and then a box is erased with probability `erase`.
    `mixer` mixes the images of a batch; `TrainingBatches` applies it last.
    """

    padding: int = 0
    border: Literal["zero", "reflect"] = "zero"
    flips: bool = False
    smallest_area: float | None = None
    jitter: ColorJitter | None = None
    rand_augment: RandAugment | None = None
    erase: float = 0.0
    mixer: Mixer | None = None

    def __call__(self, images: Tensor, index: Tensor, seed: int) -> Tensor:
        """Augment images (N, C, H, W) on their device, by numbers drawn on that of the index."""
        images = self._crop_and_mirror(images, index, seed)
        for change in (self.jitter, self.rand_augment):
            if change is not None:
                images = change(images, index, seed)
        if self.erase:
            height, width = images.shape[2:]
            boxes = draw_erased_boxes(index, height, width, seed, self.erase)
            images = erase_boxes(images, copy_drawn(boxes, index, images.device))
        return images

    def _crop_and_mirror(self, images: Tensor, index: Tensor, seed: int) -> Tensor:
        if self.smallest_area is not None:
            height, width = images.shape[2:]
            boxes = draw_boxes(index, height, width, seed, self.smallest_area)
            images = crop_and_resize(images, copy_drawn(boxes, index, images.device))
        if not (self.padding or self.flips):
            return images
        height, width = images.shape[2:]
        down, right, flip = random_words(index, 3, seed).unbind(dim=1)
        offsets = 2 * self.padding + 1
        # the highest of 32 random bits decides; `%` of such numbers was wrong on MPS in torch 2.7
        drawn = torch.stack([down % offsets, right % offsets, flip >> 31])
        down, right, flip = copy_drawn(drawn, index, images.device)[:, :, None]
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


def draw_boxes(
    index: Tensor, height: int, width: int, seed: int, smallest_area: float = 0.08
) -> Tensor:
    """Draw a box (top, left, height, width) for each index (N,), as (N, 4) on its device.

    The distribution is that of torchvision's RandomResizedCrop: the area is uniform, the ratio of
    width to height is log-uniform in [3/4, 4/3], and the position is uniform.
    """
    # step 1: the words of step 0 shift and mirror
    words = random_words(index, 2 * BOX_ATTEMPTS + 2, seed, step=1).double() * 2**-32
    areas = height * width * (smallest_area + (1 - smallest_area) * words[:, :BOX_ATTEMPTS])
    exponents = 2 * words[:, BOX_ATTEMPTS:-2] - 1
    aspects = (math.log(LARGEST_ASPECT) * exponents).exp()
    widths = (areas * aspects).sqrt().round()
    heights = (areas / aspects).sqrt().round()
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
    # argmax of equal values is the first one
    first = fits.int().argmax(dim=1, keepdim=True)
    # otherwise the largest box in the centre whose ratio is allowed
    widest = min(width, round(height * LARGEST_ASPECT))
    highest = min(height, round(width * LARGEST_ASPECT))
    has_box = fits.any(dim=1)
    box_width = widths.gather(1, first)[:, 0].where(has_box, widest)
    box_height = heights.gather(1, first)[:, 0].where(has_box, highest)
    top = (words[:, -2] * (height - box_height + 1)).floor()
    left = (words[:, -1] * (width - box_width + 1)).floor()
    top = top.where(has_box, (height - highest) // 2)
    left = left.where(has_box, (width - widest) // 2)
    return torch.stack([top, left, box_height, box_width], dim=1).long()


def crop_and_resize(images: Tensor, boxes: Tensor) -> Tensor:
    """Resize the box (top, left, height, width) of each image to the size of the image.

    Bilinear with antialiasing, as `interpolate(..., antialias=True)` of the box alone. (N, C, H, W)
    and (N, 4) to (N, C, H, W).
    """
    boxes = boxes.to(images.device, images.dtype)
    rows = _resizing_weights(boxes[:, 0], boxes[:, 2], images.shape[2])
    columns = _resizing_weights(boxes[:, 1], boxes[:, 3], images.shape[3])
    with exact_float32():
        # two products of matrices: boxes of different sizes stay one batch
        resized = rows[:, None] @ (images @ columns.transpose(1, 2)[:, None])
    # weights sum to 1 up to rounding
    return resized.clamp(0, 1)


def _resizing_weights(starts: Tensor, sizes: Tensor, length: int) -> Tensor:
    """Return the weights (N, length, length) of input pixels in each output pixel."""
    pixels = torch.arange(length, device=starts.device, dtype=starts.dtype) + 0.5
    scales = sizes / length
    centres = starts[:, None] + scales[:, None] * pixels
    # a triangle of one input pixel, or of one output pixel where that is larger
    distances = (pixels - centres[:, :, None]) / scales.clamp(min=1)[:, None, None]
    is_inside = (pixels > starts[:, None]) & (pixels < (starts + sizes)[:, None])
    weights = (1 - distances.abs()).clamp(min=0) * is_inside[:, None]
    return weights / weights.sum(dim=2, keepdim=True)


def draw_erased_boxes(
    index: Tensor, height: int, width: int, seed: int, probability: float
) -> Tensor:
    """Draw a box (top, left, height, width) for each index (N,), as (N, 4); an empty one for none.

    The distribution is that of torchvision's RandomErasing: the area is uniform, the ratio of
    height to width is log-uniform, and the position is uniform.
    """
    words = random_words(index, 2 * BOX_ATTEMPTS + 3, seed, step=ERASING_STEP).double() * 2**-32
    smallest, largest = ERASED_AREA
    areas = height * width * (smallest + (largest - smallest) * words[:, :BOX_ATTEMPTS])
    low, high = map(math.log, ERASED_ASPECT)
    aspects = (low + (high - low) * words[:, BOX_ATTEMPTS:-3]).exp()
    heights = (areas * aspects).sqrt().round()
    widths = (areas / aspects).sqrt().round()
    fits = (heights < height) & (widths < width)
    first = fits.int().argmax(dim=1, keepdim=True)
    is_erased = fits.any(dim=1) & (words[:, -3] < probability)
    box_height = heights.gather(1, first)[:, 0] * is_erased
    box_width = widths.gather(1, first)[:, 0] * is_erased
    top = (words[:, -2] * (height - box_height + 1)).floor()
    left = (words[:, -1] * (width - box_width + 1)).floor()
    return torch.stack([top, left, box_height, box_width], dim=1).long()


def erase_boxes(images: Tensor, boxes: Tensor) -> Tensor:
    """Make the pixels in the box (top, left, height, width) of each image black."""
    top, left, height, width = boxes.T[:, :, None]
    rows = torch.arange(images.shape[2], device=images.device)
    columns = torch.arange(images.shape[3], device=images.device)
    in_rows = (rows >= top) & (rows < top + height)
    in_columns = (columns >= left) & (columns < left + width)
    return images.masked_fill((in_rows[:, :, None] & in_columns[:, None, :])[:, None], 0)
