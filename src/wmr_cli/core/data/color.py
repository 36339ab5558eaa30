"""Brightness, contrast, saturation and hue of a batch, with a factor for each image (N,).

Each function equals the one of torchvision for a single image. Images are floats in [0, 1] with one
or three channels; saturation and hue leave greyscale images unchanged.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..losses import widest_float_dtype
from ..rng import random_words

LUMA = (0.2989, 0.587, 0.114)
"""Weights of red, green and blue in the grey value, as in torchvision."""
JITTER_STEP = 2
"""Random words of steps 0 and 1 shift, mirror and crop."""


def adjust_brightness(images: Tensor, factors: Tensor) -> Tensor:
    """Multiply images (N, C, H, W) by their factors (N,)."""
    return blend(images, torch.zeros((), device=images.device), factors)


def adjust_contrast(images: Tensor, factors: Tensor) -> Tensor:
    """Blend each image with its mean grey value."""
    grey = to_grey(images)
    # in float64 the rounded mean does not depend on the batch that the image is in
    mean = grey.mean(dim=(1, 2, 3), keepdim=True, dtype=widest_float_dtype(images.device))
    return blend(images, mean.to(images.dtype), factors)


def adjust_saturation(images: Tensor, factors: Tensor) -> Tensor:
    """Blend each image with its grey values."""
    return images if images.shape[1] == 1 else blend(images, to_grey(images), factors)


def adjust_hue(images: Tensor, shifts: Tensor) -> Tensor:
    """Shift hues by a fraction of the colour wheel, in [-0.5, 0.5]."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(dim=1)
    low, high = images.aminmax(dim=1)
    spread = high - low
    # a grey pixel has no hue; any number will do, because its spread is 0
    divisor = torch.where(spread == 0, 1, spread)
    hue = torch.where(
        high == red,
        (green - blue) / divisor,
        torch.where(high == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor),
    )
    # in sixths of the colour wheel: each channel falls from the maximum to the minimum and back
    turned = hue + 6 * shifts[:, None, None]
    channels = []
    for start in (5, 3, 1):
        place = (turned + start).remainder(6)
        channels.append(high - spread * torch.minimum(place, 4 - place).clamp(0, 1))
    return torch.stack(channels, dim=1).clamp(0, 1)


def to_grey(images: Tensor) -> Tensor:
    """Return grey values (N, 1, H, W)."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(dim=1)
    return (LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue)[:, None]


def blend(images: Tensor, others: Tensor, factors: Tensor) -> Tensor:
    """Return `factor * image + (1 - factor) * other`, in [0, 1]. A factor may exceed 1."""
    factors = factors[:, None, None, None]
    return (factors * images + (1 - factors) * others).clamp(0, 1)


ADJUSTMENTS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    adjust_brightness,
    adjust_contrast,
    adjust_saturation,
    adjust_hue,
)


@dataclass(frozen=True)
class ColorJitter:
    """Change brightness, contrast, saturation and hue in random order.

    The distribution is that of torchvision's ColorJitter: a factor is uniform in
    [1 - value, 1 + value], but not negative, and the shift of the hue in [-hue, hue].
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0

    def draw(self, index: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """Return the order of the adjustments (N, 4) and their factors (N, 4), by index (N,)."""
        words = random_words(index, 8, seed, step=JITTER_STEP)
        order = words[:, :4].argsort(dim=1, stable=True)
        uniform = words[:, 4:].double() * 2**-32
        ranges = ((self.brightness, 1.0), (self.contrast, 1.0), (self.saturation, 1.0))
        limits = [(max(0.0, centre - value), centre + value) for value, centre in ranges]
        limits.append((-self.hue, self.hue))
        low, high = uniform.new_tensor(limits).unbind(dim=1)
        return order, (low + (high - low) * uniform).float()

    def __call__(self, images: Tensor, index: Tensor, seed: int) -> Tensor:
        """Adjust images (N, C, H, W) on their device, by numbers drawn on that of the index."""
        order, factors = self.draw(index, seed)
        factors = copy_drawn(factors, index, images.device)
        is_used = (self.brightness, self.contrast, self.saturation, self.hue)
        steps = [
            adjustment if used else None
            for adjustment, used in zip(ADJUSTMENTS, is_used, strict=True)
        ]
        for place in range(len(ADJUSTMENTS)):
            images = apply_by_kind(images, order[:, place], index, steps, factors)
        return images


def apply_by_kind(
    images: Tensor,
    kinds: Tensor,
    index: Tensor,
    steps: Sequence[Callable[[Tensor, Tensor], Tensor] | None],
    factors: Tensor,
) -> Tensor:
    """Apply to each image the step of its kind (N,), to all images of a kind at once.

    A step gets images and their factors of its kind, a column of `factors` (N, kinds). None
    leaves images unchanged.
    """
    order = kinds.argsort(stable=True)
    counts = kinds.bincount(minlength=len(steps)).tolist()
    # one copy to the device for all kinds
    order, back = copy_drawn(torch.stack([order, order.argsort()]), index, images.device)
    done = []
    parts = zip(images[order].split(counts), factors[order].split(counts), steps, strict=True)
    for kind, (part, own_factors, step) in enumerate(parts):
        done.append(step(part, own_factors[:, kind]) if step and len(part) else part)
    return torch.cat(done)[back]


def copy_drawn(drawn: Tensor, index: Tensor, device: torch.device) -> Tensor:
    """Copy random numbers to a device."""
    # the host does not wait for a copy from pinned memory
    is_pinned = index.is_pinned()
    if is_pinned:
        drawn = drawn.pin_memory()
    return drawn.to(device, non_blocking=is_pinned)
