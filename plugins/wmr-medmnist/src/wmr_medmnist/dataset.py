"""Read a dataset of MedMNIST (Yang et al. 2023, doi:10.1038/s41597-022-01721-8) from its file."""

import zipfile
import zlib
from functools import cache, partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wmr_cli import BadFile, BadInput
from wmr_cli.core import LazySplits, MemorySplit, Remote, Source, fetch

from .catalog import DATASETS, FOLDER, DatasetInfo


def medmnist(root: Path, name: str, size: Literal[28, 64, 128, 224] = 28) -> Source:
    """Return the published train, val and test splits, with images of size x size.

    The index of an image counts through train, val and test in this order.
    """
    info = DATASETS[name]
    if not info.is_single_label:
        raise BadInput(
            f"{name} has several labels per image ({len(info.classes)} independent findings)",
            hint="wmr needs one class per image; choose another dataset, such as pneumoniamnist",
        )
    remote = Remote(info.file_name(size), (info.url(size),), info.md5[str(size)])
    (path,) = fetch([remote], root / FOLDER)
    # cached: each split is read at most once, when it is first used
    readers = {split: cache(partial(_read_split, path, info, size, split)) for split in info.images}
    return Source(
        len(info.classes),
        (info.channels, size, size),
        LazySplits(readers),
        class_names=info.classes,
    )


def _read_split(path: Path, info: DatasetInfo, size: int, split: str) -> MemorySplit:
    images, labels = _load_arrays(path, split)
    count = info.images[split]
    image_shape: tuple[int, ...] = (count, size, size)
    if info.channels == 3:
        image_shape = (*image_shape, 3)
    has_images = images.dtype == np.uint8 and images.shape == image_shape
    has_labels = labels.dtype.kind in "iu" and labels.shape in ((count,), (count, 1))
    if not has_images or not has_labels:
        found = f"{images.dtype} images {images.shape} and {labels.dtype} labels {labels.shape}"
        expected = f"uint8 images {image_shape} and integer labels ({count},)"
        raise BadFile(f"{path} has {found} in split {split!r}, expected {expected}")

    targets = torch.from_numpy(labels.reshape(count).astype(np.int64))
    last_class = len(info.classes) - 1
    if count and not 0 <= int(targets.min()) <= int(targets.max()) <= last_class:
        raise BadFile(f"{path} has labels outside 0…{last_class} in split {split!r}")
    index = _first_index(info, split) + torch.arange(count)
    return MemorySplit(_channels_first(images), targets, index)


def _load_arrays(path: Path, split: str) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    try:
        # the checksum was verified, and yet pickled objects are never loaded: they can run code
        with np.load(path, allow_pickle=False) as file:
            return file[f"{split}_images"], file[f"{split}_labels"]
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise BadFile(
            f"{path} cannot be read: {error}", hint="move it away and repeat the command"
        ) from None


def _first_index(info: DatasetInfo, split: str) -> int:
    """Return the number of images in the splits before this one."""
    splits = list(info.images)
    return sum(info.images[earlier] for earlier in splits[: splits.index(split)])


def _channels_first(images: NDArray[np.generic]) -> Tensor:
    """Convert (N, H, W) or (N, H, W, 3) to (N, C, H, W)."""
    pixels = torch.from_numpy(images)
    if pixels.ndim == 3:
        return pixels.unsqueeze(1)
    return pixels.permute(0, 3, 1, 2).contiguous()
