"""RandAugment of a whole batch (Cubuk et al. 2020, arXiv:1909.13719).

Operations and magnitudes are those of torchvision's RandAugment, with black pixels where an
operation moves the border into the image.
"""

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from types import ModuleType

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..rng import random_words
from .color import adjust_brightness, adjust_contrast, adjust_saturation, apply_by_kind, blend

RAND_AUGMENT_STEP = 3
"""Random words of step 2 are those of the colour jitter."""
MAX_MAGNITUDE = 30
"""The largest magnitude; each operation divides its range by it."""
OPERATIONS = (
    "Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color",
    "Contrast", "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize",
)  # fmt: skip
"""In the order of torchvision; an image gets each with equal probability."""
LARGEST = {
    "ShearX": 0.3, "ShearY": 0.3, "Rotate": 30.0, "Brightness": 0.9, "Color": 0.9, "Contrast": 0.9,
    "Sharpness": 0.9,
}  # fmt: skip
"""Largest values of operations whose value is proportional to the magnitude; half are negative."""
LARGEST_SHIFT = 150 / 331
"""Largest translation, as a fraction of the side."""


@dataclass(frozen=True)
class RandAugment:
    """Apply `operations` random operations to each image, all of one magnitude in 0…30."""

    operations: int = 2
    magnitude: int = 9

    def draw(self, index: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """Return the operations (N, operations), and which of them have a negative value."""
        words = random_words(index, 2 * self.operations, seed, step=RAND_AUGMENT_STEP)
        # the highest of 32 random bits decide
        kinds = (words[:, : self.operations] * len(OPERATIONS)) >> 32
        return kinds, words[:, self.operations :] >> 31 == 1

    def __call__(self, images: Tensor, index: Tensor, seed: int) -> Tensor:
        """Change images (N, C, H, W) on their device, by numbers drawn on that of the index."""
        kinds, negative = self.draw(index, seed)
        height, width = images.shape[2:]
        # an operation for each name and sign
        steps = [
            make_operation(name, self.value(name, height, width), sign)
            for sign in (1, -1)
            for name in OPERATIONS
        ]
        unused = images.new_zeros(len(images), len(steps))
        for place in range(self.operations):
            chosen = kinds[:, place] + len(OPERATIONS) * negative[:, place]
            images = apply_by_kind(images, chosen, index, steps, unused)
        # posterized and equalized values are rounded quotients
        return images.clamp(0, 1)

    def value(self, name: str, height: int, width: int) -> float:
        """Return the value of an operation at this magnitude, without its sign."""
        fraction = self.magnitude / MAX_MAGNITUDE
        if name in LARGEST:
            return LARGEST[name] * fraction
        if name in ("TranslateX", "TranslateY"):
            side = width if name == "TranslateX" else height
            return int(LARGEST_SHIFT * side * fraction)
        if name == "Posterize":
            return 8 - round(4 * fraction)
        return 1 - fraction if name == "Solarize" else 0.0


def make_operation(name: str, value: float, sign: int) -> Callable[[Tensor, Tensor], Tensor] | None:
    """Return an operation on images (N, C, H, W); its second argument is not used."""
    if name == "Identity":
        return None
    return lambda images, _: apply_operation(name, images, value, sign)


def apply_operation(name: str, images: Tensor, value: float, sign: int) -> Tensor:
    """Apply one operation to all images; the sign matters only where the value is symmetric."""
    functional = _load_functional()
    signed = sign * value
    changed: Tensor
    match name:
        case "ShearX" | "ShearY" | "TranslateX" | "TranslateY" | "Rotate":
            height, width = images.shape[2:]
            sources = find_sources(name, signed, height, width, images.device)
            # pixel 0 is black, for places whose source is outside of the image
            pixels = pad(images.flatten(2), (1, 0))
            changed = pixels.index_select(2, sources).reshape(images.shape)
        case "Brightness":
            changed = adjust_brightness(images, _repeat(1 + signed, images))
        case "Color":
            changed = adjust_saturation(images, _repeat(1 + signed, images))
        case "Contrast":
            changed = adjust_contrast(images, _repeat(1 + signed, images))
        case "Sharpness":
            changed = adjust_sharpness(images, _repeat(1 + signed, images))
        case "Posterize":
            changed = functional.posterize(images, int(value))
        case "Solarize":
            changed = functional.solarize(images, value)
        case "AutoContrast":
            changed = functional.autocontrast(images)
        case _:
            changed = functional.equalize(images)
    return changed


@lru_cache(maxsize=64)
def find_sources(name: str, value: float, height: int, width: int, device: torch.device) -> Tensor:
    """Return for each pixel (H * W,) the number of its source, from 1, or 0 where there is none.

    torchvision moves an image whose pixels are their numbers, so that the sources are its own. A
    number moves no differently from a colour, because the nearest pixel is taken.
    """
    functional = _load_functional()
    numbers = torch.arange(1.0, height * width + 1).reshape(1, 1, height, width)
    moved: Tensor
    if name == "Rotate":
        moved = functional.rotate(numbers, value)
    elif name in ("TranslateX", "TranslateY"):
        shift = [int(value), 0] if name == "TranslateX" else [0, int(value)]
        moved = functional.affine(numbers, 0.0, shift, 1.0, [0.0, 0.0])
    else:
        degrees = math.degrees(math.atan(value))
        shear = [degrees, 0.0] if name == "ShearX" else [0.0, degrees]
        moved = functional.affine(numbers, 0.0, [0, 0], 1.0, shear, center=[0, 0])
    # copied once for each device: a copy makes the host wait
    return moved.flatten().round().long().to(device)


def adjust_sharpness(images: Tensor, factors: Tensor) -> Tensor:
    """Blend each image with a blurred copy of it, whose border is that of the image."""
    if min(images.shape[2:]) <= 2:
        return images
    height, width = images.shape[2] - 2, images.shape[3] - 2
    windows = [
        images[:, :, row : row + height, column : column + width]
        for row in range(3)
        for column in range(3)
    ]
    # a weight of 5 in the middle and of 1 around it
    inner = (torch.stack(windows).sum(dim=0) + 4 * windows[4]) / 13
    blurred = images.clone()
    blurred[:, :, 1:-1, 1:-1] = inner
    return blend(images, blurred, factors)


def _repeat(factor: float, images: Tensor) -> Tensor:
    return torch.full((len(images),), factor, device=images.device)


@cache
def _load_functional() -> ModuleType:
    """Import torchvision's functions when they are first needed."""
    from ..torchvision_compat import torchvision

    return importlib.import_module(f"{torchvision.__name__}.transforms.v2.functional")
