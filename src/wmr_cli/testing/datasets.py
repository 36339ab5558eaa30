"""The contract of a dataset."""

import re

import torch
from torch import Tensor

from ..core.protocols import DataSource, Split
from ..core.run_attack import is_in_unit_range
from ..core.traits import MIGRATION_PAGE
from .fixtures import require, require_spelling

SPLITS = ("train", "val", "test")
IMAGES_PER_BATCH = 500
SPLIT_ABILITIES = ("index", "note", "prepare", "streams")
"""Optional members of a split."""
MAX_CHECKED_IMAGES = 100_000
"""Of a larger split this many images are checked, evenly spaced."""


def check_dataset(source: DataSource) -> None:
    """Check the splits of a dataset, their images, labels and indices.

    No image is in two splits. Images are in [0, 1] and have the declared shape. An image and its
    index do not depend on the other images of a batch.
    """
    _check_members(source)
    split_of_index: dict[int, str] = {}
    for name in SPLITS:
        require(name in source.splits, f"the split {name!r} is missing")
        split = source.splits[name]
        require_spelling(split, SPLIT_ABILITIES, f"the split {name!r}")
        _check_labels(name, split, source.num_classes)
        positions = _choose_positions(len(split)).split(IMAGES_PER_BATCH)
        index = torch.cat([_check_batch(name, split, source, rows) for rows in positions])
        require(len(index.unique()) == len(index), f"{name}: an index occurs twice")
        _check_stable(name, split)
        require(
            re.fullmatch("[0-9a-f]{64}", split.sha256) is not None,
            f"{name}: sha256 is not a SHA-256 hash",
        )
        indices = index.tolist()
        others = {split_of_index[number] for number in indices if number in split_of_index}
        require(not others, f"{name} has images of {', '.join(sorted(others))}")
        # indices identify images across splits: random numbers of attacks derive from them
        split_of_index |= dict.fromkeys(indices, name)
    hashes = {source.splits[name].sha256 for name in SPLITS}
    require(
        len(hashes) == len(SPLITS),
        "two splits have the same sha256: it is a hash of their images and labels",
    )


def _check_members(source: DataSource) -> None:
    require(source.num_classes >= 2, "num_classes is below 2")
    require(
        len(source.input_shape) == 3,
        f"input_shape is {source.input_shape}, not (channels, height, width)",
    )
    for member in ("class_names", "random_split_sha256"):
        is_declared = hasattr(source, member)
        require(is_declared, f"the dataset has no `{member}`: set it to None if unknown")
    require(
        not hasattr(source, "drawn"),
        "the dataset has the attribute `drawn` of wmr 0.1: "
        f"rename it to `random_split_sha256`; see {MIGRATION_PAGE}",
    )
    names = source.class_names
    require(
        names is None or len(names) == source.num_classes,
        f"class_names does not name {source.num_classes} classes",
    )


def _choose_positions(size: int) -> Tensor:
    if size <= MAX_CHECKED_IMAGES:
        return torch.arange(size)
    # float64: float32 cannot represent every position above 2**24
    return torch.linspace(0, size - 1, MAX_CHECKED_IMAGES, dtype=torch.float64).long()


def _check_labels(name: str, split: Split, num_classes: int) -> None:
    labels = split.labels
    require(len(split) == len(labels) > 0, f"{name}: {len(split)} images and {len(labels)} labels")
    require(
        labels.dtype == torch.int64 and labels.ndim == 1,
        f"{name}: labels are not integers (int64), one per image",
    )
    require(
        bool((labels >= 0).all() and (labels < num_classes).all()),
        f"{name}: labels are not in 0…{num_classes - 1}",
    )


def _check_batch(name: str, split: Split, source: DataSource, positions: Tensor) -> Tensor:
    """Check one batch of a split; return its indices (N,)."""
    batch = split.batch(positions)
    shape = tuple(batch.images.shape)
    expected = (len(positions), *source.input_shape)
    require(shape == expected, f"{name}: images of shape {shape} instead of {expected}")
    require(
        batch.images.dtype == torch.float32, f"{name}: images are {batch.images.dtype}, not float32"
    )
    require(is_in_unit_range(batch.images).all(), f"{name}: images are not in [0, 1]")
    require(
        torch.equal(batch.labels, split.labels[positions]),
        f"{name}: labels of batch and split differ",
    )
    is_index = batch.index.shape == positions.shape and batch.index.dtype == torch.int64
    require(is_index, f"{name}: index is not one integer (int64) per image")
    return batch.index


def _check_stable(name: str, split: Split) -> None:
    """Check that an image and its index are the same in any order, alone, and each time."""
    positions = torch.arange(min(16, len(split)))
    batch = split.batch(positions)
    reverse = split.batch(positions.flip(0))
    require(
        torch.equal(batch.index, reverse.index.flip(0)),
        f"{name}: an image's index depends on the order",
    )
    require(
        torch.equal(batch.images, reverse.images.flip(0)),
        f"{name}: an image depends on the order",
    )
    alone = split.batch(positions[-1:])
    require(
        torch.equal(alone.index, batch.index[-1:]),
        f"{name}: an image's index depends on the rest of the batch",
    )
    require(
        torch.equal(alone.images, batch.images[-1:]),
        f"{name}: an image depends on the rest of the batch",
    )
    require(
        torch.equal(batch.images, split.batch(positions).images),
        f"{name}: a second read gives other images",
    )
