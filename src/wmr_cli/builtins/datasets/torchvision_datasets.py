"""Sets that torchvision reads, once their files are there and are what they claim."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from ...core.data.splits import LazySplits, MemorySplit, Source, add_missing_splits, check_fraction
from ...errors import BadFile

Read = Callable[[bool], tuple[Any, Any]]
"""True for the training images, False for the test images: uint8 (N, H, W), (N, H, W, C) or (N, C, H, W), and labels (N,)."""


def source(
    name: str,
    read: Read,
    *,
    holdout: float,
    split_seed: int,
    shape: tuple[int, int, int],
    sizes: tuple[int, int],
    classes: int,
) -> Source:
    """Train and test as published; `holdout` of the training images, chosen by `split_seed`, validate.

    Test images are numbered after the training images, so that every image has a number of its own.
    """
    check_fraction("holdout", holdout)

    def whole(training: bool) -> MemorySplit:
        try:
            images, labels = read(training)
        except (
            RuntimeError,
            ValueError,
            TypeError,
            AssertionError,
            LookupError,
            EOFError,
            MemoryError,
            OSError,
        ) as error:
            raise BadFile(
                f"the files of {name} cannot be read: {error}",
                hint="move them away and repeat the command",
            ) from None
        pixels = torch.as_tensor(images)
        if pixels.ndim == 3:
            pixels = pixels.unsqueeze(1)
        if pixels.shape[1:] != shape:  # the channels come last
            pixels = pixels.permute(0, 3, 1, 2).contiguous()
        first, count = (0, sizes[0]) if training else (sizes[0], sizes[1])
        if len(pixels) != count or len(labels) != count:
            problem = f"the files of {name} hold {len(pixels):,} images and {len(labels):,} labels instead of {count:,}"
            raise BadFile(problem, hint="move them away and repeat the command")
        return MemorySplit(pixels, torch.as_tensor(labels).long(), first + torch.arange(count))

    @cache
    def learning() -> dict[str, MemorySplit]:
        images = whole(True)  # let go of as soon as it is divided
        return add_missing_splits({"train": images}, holdout, 0, split_seed)

    makers = {
        "train": lambda: learning()["train"],
        "val": lambda: learning()["val"],
        "test": lambda: whole(False),
    }
    if not holdout:
        del makers["val"]
    return Source(classes, shape, LazySplits(makers))
