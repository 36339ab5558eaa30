"""What a data set promises."""

import re

import torch
from torch import Tensor

from ..core.protocols import DataSource, Split
from ..core.run_attack import is_in_unit_range
from ..core.traits import MIGRATION_PAGE
from .assertions import require

CHUNK = 500
MANY = 100_000
"""Of a larger split so many images are looked at, evenly spread."""


def check_dataset(source: DataSource) -> None:
    """Splits train, val and test without a common image; images in [0, 1] of the promised shape; labels in range; every
    image with an index of its own, whatever is asked for with it.
    """
    require(source.num_classes >= 2, "a classifier needs two classes")
    require(
        len(source.input_shape) == 3,
        f"input_shape is {source.input_shape}, not (channels, height, width)",
    )
    for member in ("class_names", "random_split_sha256"):
        require(
            hasattr(source, member), f"the dataset has no `{member}`: set it to None if unknown"
        )
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
    seen: dict[int, str] = {}
    for name in ("train", "val", "test"):
        require(name in source.splits, f"there is no split {name!r}")
        split = source.splits[name]
        _check_labels(name, split, source.num_classes)
        index = torch.cat(
            [_check_rows(name, split, source, rows) for rows in _looked_at(len(split)).split(CHUNK)]
        )
        require(len(index.unique()) == len(index), f"{name}: an index occurs twice")
        _check_stable(name, split)
        require(
            re.fullmatch("[0-9a-f]{64}", split.sha256) is not None,
            f"{name}: sha256 is no content hash",
        )
        shared = {seen[number] for number in index.tolist() if number in seen}
        require(not shared, f"{name} shares images with {', '.join(sorted(shared))}")
        seen |= dict.fromkeys(index.tolist(), name)
    hashes = {source.splits[name].sha256 for name in ("train", "val", "test")}
    require(
        len(hashes) == 3, "two splits have the same sha256: it is a hash of their images and labels"
    )


def _looked_at(size: int) -> Tensor:
    return (
        torch.arange(size)
        if size <= MANY
        else torch.linspace(0, size - 1, MANY, dtype=torch.float64).long()
    )


def _check_labels(name: str, split: Split, num_classes: int) -> None:
    labels = split.labels
    require(len(split) == len(labels) > 0, f"{name}: {len(split)} images and {len(labels)} labels")
    require(
        labels.dtype == torch.int64 and labels.ndim == 1,
        f"{name}: labels are not whole numbers (int64), one per image",
    )
    require(
        bool((labels >= 0).all() and (labels < num_classes).all()),
        f"{name}: labels are not in 0…{num_classes - 1}",
    )


def _check_rows(name: str, split: Split, source: DataSource, rows: Tensor) -> Tensor:
    """The indices of these rows, all else about them being well."""
    batch = split.batch(rows)
    shape, wanted = tuple(batch.images.shape), (len(rows), *source.input_shape)
    require(shape == wanted, f"{name}: images of shape {shape} instead of {wanted}")
    require(
        batch.images.dtype == torch.float32, f"{name}: images are {batch.images.dtype}, not float32"
    )
    require(is_in_unit_range(batch.images).all(), f"{name}: images are not in [0, 1]")
    require(
        torch.equal(batch.labels, split.labels[rows]), f"{name}: labels of batch and split differ"
    )
    is_index = batch.index.shape == rows.shape and batch.index.dtype == torch.int64
    require(is_index, f"{name}: index is not one whole number (int64) per image")
    return batch.index


def _check_stable(name: str, split: Split) -> None:
    """An image is the same, and has the same index, in any order and company, and each time."""
    rows = torch.arange(min(16, len(split)))
    batch, turned = split.batch(rows), split.batch(rows.flip(0))
    require(
        torch.equal(batch.index, turned.index.flip(0)), f"{name}: an image's index depends on order"
    )
    require(
        torch.equal(batch.images, turned.images.flip(0)),
        f"{name}: other images when asked for in another order",
    )
    alone = split.batch(rows[-1:])
    require(
        torch.equal(alone.index, batch.index[-1:]),
        f"{name}: an image's index depends on what else is asked for",
    )
    require(
        torch.equal(alone.images, batch.images[-1:]),
        f"{name}: an image depends on what else is asked for",
    )
    require(
        torch.equal(batch.images, split.batch(rows).images),
        f"{name}: other images when asked for again",
    )
