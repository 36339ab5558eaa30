"""A set of MedMNIST (Yang et al. 2023, doi:10.1038/s41597-022-01721-8) from its one file."""

import zipfile
import zlib
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from wmr_cli.core.downloads import Remote, fetch
from wmr_cli.core.splits import LazySplits, MemorySplit, Source
from wmr_cli.errors import BadFile, BadInput

from .facts import FOLDER, SETS, Facts


def medmnist(root: Path, name: str, size: Literal[28, 64, 128, 224] = 28) -> Source:
    """Train, val and test as published, images of size x size. An image's index counts through the three in this order."""
    facts = SETS[name]
    if not facts.is_single_label:
        raise BadInput(
            f"{name} has several labels per image: {len(facts.classes)} findings, each there or not",
            hint="margins and accuracies here are those of one class per image; choose another set, such as pneumoniamnist",
        )
    remote = Remote(facts.archive(size), (facts.url(size),), facts.md5[str(size)])
    (path,) = fetch([remote], root / FOLDER)

    def split(part: str) -> MemorySplit:
        names = list(facts.images)
        first = sum(facts.images[earlier] for earlier in names[: names.index(part)])
        return _read(path, facts, size, part, first)

    makers = {part: cache(lambda part=part: split(part)) for part in facts.images}
    return Source(len(facts.classes), (facts.channels, size, size), LazySplits(makers), class_names=facts.classes)


def _read(path: Path, facts: Facts, size: int, part: str, first: int) -> MemorySplit:
    """One split of the file. It is the official one, and nothing in it can run code all the same."""
    try:
        with np.load(path, allow_pickle=False) as file:
            images, labels = file[f"{part}_images"], file[f"{part}_labels"]
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise BadFile(f"{path} cannot be read: {error}", hint="move it away and repeat the command") from None
    count = facts.images[part]
    expected = (count, size, size, *((3,) if facts.channels == 3 else ()))
    found = f"{images.dtype} images {images.shape} and {labels.dtype} labels {labels.shape}"
    is_layout = images.dtype == np.uint8 and images.shape == expected and labels.shape in ((count,), (count, 1))
    if not is_layout or labels.dtype.kind not in "iu":
        raise BadFile(f"{path} has {found} for {part!r} instead of uint8 {expected} and a whole number each")
    targets = torch.from_numpy(labels.reshape(count).astype(np.int64))
    if count and not 0 <= int(targets.min()) <= int(targets.max()) < len(facts.classes):
        raise BadFile(f"{path} has labels outside 0…{len(facts.classes) - 1} for {part!r}")
    return MemorySplit(_channels_first(images), targets, first + torch.arange(count))


def _channels_first(images: Any) -> torch.Tensor:
    """(N, H, W) or (N, H, W, 3) to (N, C, H, W)."""
    pixels = torch.from_numpy(images)
    return pixels.unsqueeze(1) if pixels.ndim == 3 else pixels.permute(0, 3, 1, 2).contiguous()
