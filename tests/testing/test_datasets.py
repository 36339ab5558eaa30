"""`check_dataset` passes a data set that keeps its promises, and names the one promise that another breaks."""

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


def sound() -> MemorySource:
    def split(first: int) -> MemorySplit:
        images = torch.rand(SIZE, 1, 4, 4, generator=torch.Generator().manual_seed(first))
        return MemorySplit(images, torch.arange(SIZE) % 2, first + torch.arange(SIZE))

    return MemorySource(2, {"train": split(0), "val": split(SIZE), "test": split(2 * SIZE)})


def last(tensor: Tensor, value: float) -> Tensor:
    """With this as the last entry."""
    changed = tensor.clone()
    changed[-1] = value
    return changed


@dataclass(frozen=True, eq=False)
class Splits:
    """A split that others are made from."""

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


class CountsOne(Splits):
    def __len__(self) -> int:
        return len(self.inner) + 1


class OtherLabels(Splits):
    @property
    def labels(self) -> Tensor:
        return 1 - self.inner.labels


class NumbersByOrder(Splits):
    def batch(self, positions: Tensor) -> Batch:
        batch = self.inner.batch(positions)
        return Batch(batch.images, batch.labels, self.inner.index[positions.sort().values])


class NumbersByCompany(Splits):
    def batch(self, positions: Tensor) -> Batch:
        batch = self.inner.batch(positions)
        return Batch(batch.images, batch.labels, batch.index + 10_000 * (len(positions) == 1))


class ImagesByOrder(Splits):
    def batch(self, positions: Tensor) -> Batch:
        batch = self.inner.batch(positions)
        return Batch(
            batch.images / (1 + (torch.arange(len(positions)) % 3)[:, None, None, None]),
            batch.labels,
            batch.index,
        )


class ImagesByCompany(Splits):
    def batch(self, positions: Tensor) -> Batch:
        batch = self.inner.batch(positions)
        return Batch(batch.images / batch.images.max(), batch.labels, batch.index)


@dataclass(frozen=True, eq=False)
class Augments(Splits):
    """A flip for whoever asks twice."""

    asked: set[tuple[int, ...]] = field(default_factory=set)

    def batch(self, positions: Tensor) -> Batch:
        batch, asked = self.inner.batch(positions), tuple(positions.tolist())
        images = batch.images.flip(3) if asked in self.asked else batch.images
        self.asked.add(asked)
        return Batch(images, batch.labels, batch.index)


class NoHash(Splits):
    sha256 = "unknown"


class OneHash(Splits):
    sha256 = "0" * 64


class FewerRows(Splits):
    def batch(self, positions: Tensor) -> Batch:
        return self.inner.batch(positions[:-1])


class NumbersAsFloats(Splits):
    def batch(self, positions: Tensor) -> Batch:
        batch = self.inner.batch(positions)
        return Batch(batch.images, batch.labels, batch.index.float())


MUTANTS = {
    "a pixel above 1": (
        lambda split: replace(split, images=last(split.images, 1.1)),
        r"images are not in \[0, 1\]",
    ),
    "a pixel that is none": (
        lambda split: replace(split, images=last(split.images, float("nan"))),
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
        lambda split: replace(split, labels=last(split.labels, 2)),
        "labels are not in 0…1",
    ),
    "a negative label": (
        lambda split: replace(split, labels=last(split.labels, -1)),
        "labels are not in 0…1",
    ),
    "labels as floats": (
        lambda split: replace(split, labels=split.labels.float()),
        "labels are not whole numbers",
    ),
    "labels of another order": (OtherLabels, "labels of batch and split differ"),
    "another length": (CountsOne, "601 images and 600 labels"),
    "no images": (lambda split: split.subset(torch.arange(0)), "0 images and 0 labels"),
    "an index twice": (
        lambda split: replace(split, index=last(split.index, 2 * SIZE)),
        "an index occurs twice",
    ),
    "an index as a float": (NumbersAsFloats, "index is not one whole number"),
    "images of the training": (
        lambda split: replace(split, index=split.index - 2 * SIZE),
        "test shares images with train",
    ),
    "an index by order": (NumbersByOrder, "index depends on order"),
    "an index by company": (NumbersByCompany, "index depends on what else is asked for"),
    "images by order": (ImagesByOrder, "asked for in another order"),
    "images by company": (ImagesByCompany, "an image depends on what else is asked for"),
    "images by turn": (Augments, "other images when asked for again"),
    "no hash": (NoHash, "no content hash"),
}


def test_a_data_set_that_keeps_its_promises_passes() -> None:
    check_dataset(sound())


@pytest.mark.parametrize(("damage", "broken"), MUTANTS.values(), ids=MUTANTS)
def test_a_broken_promise_is_named(damage: Callable[..., Any], broken: str) -> None:
    source = sound()
    splits = {**source.splits, "test": damage(source.splits["test"])}
    with pytest.raises(AssertionError, match=broken):
        check_dataset(Source(2, (1, 4, 4), splits))


def test_a_hash_tells_splits_apart() -> None:
    source = sound()
    with pytest.raises(AssertionError, match="two splits have the same sha256"):
        check_dataset(
            Source(2, (1, 4, 4), {name: OneHash(split) for name, split in source.splits.items()})
        )


@pytest.mark.parametrize("name", ["train", "val", "test"])
def test_a_missing_split_is_named(name: str) -> None:
    source = sound()
    splits = {other: split for other, split in source.splits.items() if other != name}
    with pytest.raises(AssertionError, match=f"there is no split '{name}'"):
        check_dataset(Source(2, (1, 4, 4), splits))


@pytest.mark.parametrize(
    ("facts", "broken"),
    [
        ({"num_classes": 1}, "two classes"),
        ({"input_shape": (4, 4)}, "not \\(channels, height, width\\)"),
        ({"class_names": ("cat", "dog", "eel")}, "class_names does not name 2 classes"),
    ],
)
def test_facts_that_cannot_be_are_named(facts: dict[str, Any], broken: str) -> None:
    with pytest.raises(AssertionError, match=broken):
        check_dataset(
            Source(
                **{"num_classes": 2, "input_shape": (1, 4, 4), "splits": sound().splits, **facts}
            )
        )


def test_a_large_split_is_looked_at_from_end_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wmr_cli.testing.datasets.MANY", 50)
    check_dataset(sound())
    source = sound()
    damaged = replace(source.splits["test"], images=last(source.splits["test"].images, 1.1))
    with pytest.raises(AssertionError, match="not in"):
        check_dataset(MemorySource(2, {**source.splits, "test": damaged}))


@pytest.mark.parametrize("member", ["class_names", "random_split_sha256"])
def test_a_dataset_declares_what_is_unknown_as_none(member: str) -> None:
    members = {
        "num_classes": 2,
        "input_shape": (1, 4, 4),
        "splits": sound().splits,
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
        check_dataset(Drawn(2, sound().splits))
