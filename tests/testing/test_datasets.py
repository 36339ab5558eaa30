"""`check_dataset` accepts a correct dataset and names the rule that each mutant violates."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from wmr_cli.core.data.splits import MemorySource, MemorySplit, Source
from wmr_cli.core.protocols import Batch
from wmr_cli.testing import check_dataset

SIZE = 600  # more than are read at once


def correct_dataset() -> MemorySource:
    def split(first: int) -> MemorySplit:
        images = torch.rand(SIZE, 1, 4, 4, generator=torch.Generator().manual_seed(first))
        return MemorySplit(images, torch.arange(SIZE) % 2, first + torch.arange(SIZE))

    return MemorySource(2, {"train": split(0), "val": split(SIZE), "test": split(2 * SIZE)})


def with_last(tensor: Tensor, value: float) -> Tensor:
    """Return a copy with this value as the last entry."""
    changed = tensor.clone()
    changed[-1] = value
    return changed


@dataclass(frozen=True, eq=False)
class WrappedSplit:
    """A split around another one, to be overridden."""

    inner: MemorySplit

    def __len__(self) -> int:
        return len(self.inner)

    @property
    def labels(self) -> Tensor:
        return self.inner.labels

    @property
    def sha256(self) -> object:
        return self.inner.sha256

    def batch(self, positions: Tensor) -> Batch:
        return self.inner.batch(positions)


class WrongLength(WrappedSplit):
    def __len__(self) -> int:
        return len(self.inner) + 1


class OtherLabels(WrappedSplit):
    @property
    def labels(self) -> Tensor:
        return 1 - self.inner.labels


class IndexByOrder(WrappedSplit):
    def batch(self, positions: Tensor) -> Batch:
        batch = self.inner.batch(positions)
        return Batch(batch.images, batch.labels, self.inner.index[positions.sort().values])


class IndexByBatchSize(WrappedSplit):
    def batch(self, positions: Tensor) -> Batch:
        batch = self.inner.batch(positions)
        return Batch(batch.images, batch.labels, batch.index + 10_000 * (len(positions) == 1))


class ImagesByOrder(WrappedSplit):
    def batch(self, positions: Tensor) -> Batch:
        batch = self.inner.batch(positions)
        return Batch(
            batch.images / (1 + (torch.arange(len(positions)) % 3)[:, None, None, None]),
            batch.labels,
            batch.index,
        )


class ImagesByBatch(WrappedSplit):
    def batch(self, positions: Tensor) -> Batch:
        batch = self.inner.batch(positions)
        return Batch(batch.images / batch.images.max(), batch.labels, batch.index)


@dataclass(frozen=True, eq=False)
class AugmentsSecondRead(WrappedSplit):
    """Flips the images of every second read."""

    read_before: set[tuple[int, ...]] = field(default_factory=set)

    def batch(self, positions: Tensor) -> Batch:
        batch = self.inner.batch(positions)
        key = tuple(positions.tolist())
        images = batch.images.flip(3) if key in self.read_before else batch.images
        self.read_before.add(key)
        return Batch(images, batch.labels, batch.index)


class InvalidHash(WrappedSplit):
    sha256 = "unknown"


class ConstantHash(WrappedSplit):
    sha256 = "0" * 64


class MisspeltAbility(WrappedSplit):
    notes = "a subset"


class FewerRows(WrappedSplit):
    def batch(self, positions: Tensor) -> Batch:
        return self.inner.batch(positions[:-1])


class IndexAsFloats(WrappedSplit):
    def batch(self, positions: Tensor) -> Batch:
        batch = self.inner.batch(positions)
        return Batch(batch.images, batch.labels, batch.index.float())


MUTANTS = {
    "a misspelt ability": (MisspeltAbility, "`notes`.*`note`"),
    "a pixel above 1": (
        lambda split: replace(split, images=with_last(split.images, 1.1)),
        r"images are not in \[0, 1\]",
    ),
    "a pixel that is NaN": (
        lambda split: replace(split, images=with_last(split.images, float("nan"))),
        r"not in \[0, 1\]",
    ),
    "another type": (
        lambda split: replace(split, images=split.images.double()),
        "images are torch.float64",
    ),
    "another shape": (
        lambda split: replace(split, images=split.images[..., 1:]),
        r"images of shape \(500, 1, 4, 3\)",
    ),
    "too few rows": (FewerRows, r"images of shape \(499, 1, 4, 4\) instead of \(500, 1, 4, 4\)"),
    "a label too large": (
        lambda split: replace(split, labels=with_last(split.labels, 2)),
        "labels are not in 0…1",
    ),
    "a negative label": (
        lambda split: replace(split, labels=with_last(split.labels, -1)),
        "labels are not in 0…1",
    ),
    "labels as floats": (
        lambda split: replace(split, labels=split.labels.float()),
        "labels are not integers",
    ),
    "labels of another order": (OtherLabels, "labels of batch and split differ"),
    "another length": (WrongLength, "601 images and 600 labels"),
    "no images": (lambda split: split.subset(torch.arange(0)), "0 images and 0 labels"),
    "an index twice": (
        lambda split: replace(split, index=with_last(split.index, 2 * SIZE)),
        "an index occurs twice",
    ),
    "an index as a float": (IndexAsFloats, "index is not one integer"),
    "images of train": (
        lambda split: replace(split, index=split.index - 2 * SIZE),
        "test has images of train",
    ),
    "an index by order": (IndexByOrder, "index depends on the order"),
    "an index by batch size": (IndexByBatchSize, "index depends on the rest of the batch"),
    "images by order": (ImagesByOrder, "an image depends on the order"),
    "images by batch": (ImagesByBatch, "an image depends on the rest of the batch"),
    "other images at the second read": (AugmentsSecondRead, "a second read gives other images"),
    "no hash": (InvalidHash, "not a SHA-256 hash"),
}


def test_a_correct_dataset_passes() -> None:
    check_dataset(correct_dataset())


@pytest.mark.parametrize(("damage", "problem"), MUTANTS.values(), ids=MUTANTS)
def test_the_check_names_the_violated_rule(damage: Callable[..., Any], problem: str) -> None:
    source = correct_dataset()
    splits = {**source.splits, "test": damage(source.splits["test"])}
    with pytest.raises(AssertionError, match=problem):
        check_dataset(Source(2, (1, 4, 4), splits))


def test_equal_hashes_of_splits_are_refused() -> None:
    source = correct_dataset()
    with pytest.raises(AssertionError, match="two splits have the same sha256"):
        check_dataset(
            Source(
                2, (1, 4, 4), {name: ConstantHash(split) for name, split in source.splits.items()}
            )
        )


@pytest.mark.parametrize("name", ["train", "val", "test"])
def test_a_missing_split_is_named(name: str) -> None:
    source = correct_dataset()
    splits = {other: split for other, split in source.splits.items() if other != name}
    with pytest.raises(AssertionError, match=f"'{name}' is missing"):
        check_dataset(Source(2, (1, 4, 4), splits))


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ({"num_classes": 1}, "num_classes"),
        ({"input_shape": (4, 4)}, "not \\(channels, height, width\\)"),
        ({"class_names": ("cat", "dog", "eel")}, "class_names does not name 2 classes"),
    ],
)
def test_invalid_members_are_named(members: dict[str, Any], problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        check_dataset(
            Source(
                **{
                    "num_classes": 2,
                    "input_shape": (1, 4, 4),
                    "splits": correct_dataset().splits,
                    **members,
                }
            )
        )


def test_a_large_split_is_checked_from_end_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wmr_cli.testing.datasets.MAX_CHECKED_IMAGES", 50)
    check_dataset(correct_dataset())
    source = correct_dataset()
    damaged = replace(source.splits["test"], images=with_last(source.splits["test"].images, 1.1))
    with pytest.raises(AssertionError, match="not in"):
        check_dataset(MemorySource(2, {**source.splits, "test": damaged}))


@pytest.mark.parametrize("member", ["class_names", "random_split_sha256"])
def test_a_dataset_declares_what_is_unknown_as_none(member: str) -> None:
    members = {
        "num_classes": 2,
        "input_shape": (1, 4, 4),
        "splits": correct_dataset().splits,
        "class_names": None,
        "random_split_sha256": None,
    }
    check_dataset(SimpleNamespace(**members))
    del members[member]
    with pytest.raises(AssertionError, match=member):
        check_dataset(SimpleNamespace(**members))


def test_the_attribute_drawn_of_0_1_is_refused() -> None:
    class Drawn(MemorySource):
        drawn = "abc"

    with pytest.raises(AssertionError, match=r"`drawn` of wmr 0.1.*random_split_sha256"):
        check_dataset(Drawn(2, correct_dataset().splits))
