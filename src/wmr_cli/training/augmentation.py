"""The setting `augment`: what is drawn at random for every training image."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from ..core.data.augment import Augmentation
from ..core.data.color import ColorJitter
from ..core.data.mixing import Mixer
from ..core.data.rand_augment import MAX_MAGNITUDE, RandAugment
from ..errors import BadInput
from ..spec import parse_number

SMALLEST_AREA = 0.08
"""Smallest fraction of an image that `resized-crop` keeps, as in torchvision."""
MAX_OPERATIONS = 8
"""Operations of RandAugment: more leave nothing of an image."""
MIN_BETA = 0.01
MAX_BETA = 100.0
"""Parameters of mixup and CutMix; beyond them images are hardly mixed, or all by half."""


def build_augmentation(text: str, input_shape: tuple[int, int, int]) -> Augmentation:
    """Parse `crop:4,flip`: random crops after padding by 4 pixels, and random flips.

    `crop:4:reflect` pads by mirroring the border. `resized-crop` resizes a random box of at least
    8 % of the image, `resized-crop:0.25` of at least a quarter. `jitter`, `randaugment`, `erase`,
    `mixup` and `cutmix` have numbers, too. `none` changes nothing.
    """
    words = [] if text == "none" else [word.strip() for word in text.split(",")]
    parts: dict[str, Any] = {}
    for word in words:
        name, *values = word.split(":")
        if name == "none":
            raise BadInput(
                "augmentation none excludes all others", hint="leave out none, or the others"
            )
        if name not in _AUGMENTATIONS:
            raise BadInput(f"unknown augmentation {word!r}", hint=_AUGMENTATION_HINT)
        if name in parts:
            raise BadInput(f"augmentation {name} is set twice", hint="keep one of the two")
        parts[name] = _AUGMENTATIONS[name](word, values)
    padding, border = parts.get("crop", (0, "zero"))
    if padding and "resized-crop" in parts:
        raise BadInput("crop and resized-crop exclude each other", hint="keep one of the two")
    side = min(input_shape[1:])
    if padding >= side:
        raise BadInput(
            f"a crop of {padding} pixels may remove all of an image of side {side}",
            hint="use a smaller crop",
        )
    for name in ("jitter", "randaugment"):
        if name in parts and input_shape[0] not in (1, 3):
            raise BadInput(
                f"{name} needs images of 1 or 3 channels, those of the dataset have"
                f" {input_shape[0]}",
                hint=f"leave out {name}",
            )
    has_mixer = "mixup" in parts or "cutmix" in parts
    return Augmentation(
        padding,
        border,
        flips="flip" in parts,
        smallest_area=parts.get("resized-crop"),
        jitter=parts.get("jitter"),
        rand_augment=parts.get("randaugment"),
        erase=parts.get("erase", 0.0),
        mixer=Mixer(parts.get("mixup", 0.0), parts.get("cutmix", 0.0)) if has_mixer else None,
    )


_AUGMENTATION_HINT = (
    "write crop:4, crop:4:reflect, resized-crop, flip, jitter:0.4, randaugment:2:9, erase:0.5,"
    " mixup:0.2, cutmix:1, several joined by commas, or none"
)


def _parse_crop(word: str, values: list[str]) -> tuple[int, str]:
    """Return the padding, and how the border is filled."""
    if re.fullmatch("crop:([0-9]+)(:zero|:reflect)?", word) is None:
        raise BadInput(
            f"augmentation {word!r} does not have the form crop:PIXELS or crop:PIXELS:BORDER",
            hint="write crop:4, or crop:4:reflect",
        )
    return int(values[0]), values[1] if len(values) > 1 else "zero"


def _parse_area(word: str, values: list[str]) -> float:
    """Return the smallest area of a random box, as a fraction of the image."""
    (area,) = _parse_numbers(word, values, (SMALLEST_AREA,))
    if not 0 < area <= 1:
        raise BadInput(
            f"the smallest area of resized-crop is {area:g}, not in (0, 1]",
            hint="resized-crop:0.25 crops a quarter of the image or more",
        )
    return area


def _parse_flip(word: str, values: list[str]) -> bool:
    _parse_numbers(word, values, ())
    return word == "flip"


def _parse_jitter(word: str, values: list[str]) -> ColorJitter:
    """Return the strengths of the colour jitter; one number is that of all but the hue."""
    numbers = _parse_numbers(word, values, (0.4, 0.4, 0.4, 0.0))
    if len(values) == 1:
        numbers = (*numbers[:1] * 3, 0.0)
    brightness, contrast, saturation, hue = numbers
    if min(numbers) < 0 or hue > 0.5:
        raise BadInput(
            f"{word}: a strength is negative, or that of the hue is above 0.5",
            hint="write jitter:0.4, or jitter:0.4:0.4:0.4:0.1",
        )
    return ColorJitter(brightness, contrast, saturation, hue)


def _parse_rand_augment(word: str, values: list[str]) -> RandAugment:
    numbers = _parse_numbers(word, values, (2.0, 9.0))
    operations, magnitude = (int(number) for number in numbers)
    is_whole = (operations, magnitude) == numbers
    if not (is_whole and 1 <= operations <= MAX_OPERATIONS and 0 <= magnitude <= MAX_MAGNITUDE):
        raise BadInput(
            f"{word}: operations or magnitude out of range",
            hint=f"write randaugment:2:9: 1 to {MAX_OPERATIONS} operations of a magnitude"
            f" from 0 to {MAX_MAGNITUDE}",
        )
    return RandAugment(operations, magnitude)


def _parse_erase(word: str, values: list[str]) -> float:
    (probability,) = _parse_numbers(word, values, (0.5,))
    if not 0 < probability <= 1:
        raise BadInput(
            f"{word}: the probability is not in (0, 1]", hint="erase:0.25 erases in every 4th image"
        )
    return probability


def _parse_beta(word: str, values: list[str]) -> float:
    """Return the parameter of the Beta distribution of mixup or CutMix."""
    (parameter,) = _parse_numbers(word, values, (1.0,))
    if not MIN_BETA <= parameter <= MAX_BETA:
        raise BadInput(
            f"{word}: the parameter is not in [{MIN_BETA:g}, {MAX_BETA:g}]",
            hint="write mixup:0.2 or cutmix:1",
        )
    return parameter


def _parse_numbers(word: str, values: list[str], defaults: tuple[float, ...]) -> tuple[float, ...]:
    """Return the numbers after a name, with the defaults of those that are missing."""
    if len(values) > len(defaults):
        raise BadInput(f"augmentation {word!r} has too many numbers", hint=_AUGMENTATION_HINT)
    return (*map(parse_number, values), *defaults[len(values) :])


_AUGMENTATIONS: Mapping[str, Callable[[str, list[str]], object]] = {
    "crop": _parse_crop,
    "resized-crop": _parse_area,
    "flip": _parse_flip,
    "jitter": _parse_jitter,
    "randaugment": _parse_rand_augment,
    "erase": _parse_erase,
    "mixup": _parse_beta,
    "cutmix": _parse_beta,
}
