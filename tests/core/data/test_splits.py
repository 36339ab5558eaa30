"""Splits in memory and balanced subsets of them."""

import dataclasses
import time
from collections.abc import Iterator
from functools import cached_property, partial
from threading import Lock
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from wmr_cli.core.data.splits import (
    LazySplits,
    MemorySource,
    MemorySplit,
    _shuffle_with_class_ranks,
    balanced_subset,
    holdout_mask,
    read_ahead,
)
from wmr_cli.core.protocols import Batch

labels = st.lists(st.integers(0, 4), min_size=1, max_size=60)


def split(**changes: Any) -> MemorySplit:
    images = torch.arange(24, dtype=torch.uint8).reshape(6, 1, 2, 2)
    base = MemorySplit(
        images, torch.tensor([0, 1, 2, 0, 1, 2]), torch.tensor([10, 11, 12, 13, 14, 15])
    )
    return dataclasses.replace(base, **changes)


@settings(deadline=None)
@given(labels, st.integers(0, 70), st.integers(0, 3))
def test_subset_is_sorted_unique_and_of_the_given_size(
    given_labels: list[int], size: int, seed: int
) -> None:
    positions = balanced_subset(torch.tensor(given_labels), size, seed).tolist()
    assert positions == sorted(set(positions))
    assert len(positions) == min(size, len(given_labels))
    assert all(0 <= position < len(given_labels) for position in positions)


@settings(deadline=None)
@given(labels, st.integers(1, 60), st.integers(0, 3))
def test_subset_has_equal_class_sizes_up_to_one(
    given_labels: list[int], size: int, seed: int
) -> None:
    chosen = [
        given_labels[position]
        for position in balanced_subset(torch.tensor(given_labels), size, seed)
    ]
    most = max(chosen.count(label) for label in set(given_labels))
    for label in set(given_labels):
        assert chosen.count(label) >= min(most - 1, given_labels.count(label))


def test_subset_depends_on_the_seed() -> None:
    many = torch.arange(200) % 10
    first = balanced_subset(many, 50, seed=0)
    assert torch.equal(balanced_subset(many, 50, seed=0), first)
    assert not torch.equal(balanced_subset(many, 50, seed=1), first)
    assert many[first].bincount().tolist() == [5] * 10


def test_subset_of_full_size_has_all_positions() -> None:
    assert balanced_subset(torch.tensor([2, 0, 0, 1]), 9, seed=0).tolist() == [0, 1, 2, 3]


def test_bytes_become_floats_in_the_unit_range() -> None:
    images = torch.tensor([0, 51, 255, 128], dtype=torch.uint8).reshape(1, 1, 2, 2)
    batch = MemorySplit(images, torch.tensor([3]), torch.tensor([7])).batch(torch.tensor([0]))
    assert batch.images.dtype == torch.float32
    assert batch.images.flatten().tolist() == pytest.approx([0.0, 0.2, 1.0, 128 / 255])


def test_floats_stay_as_they_are() -> None:
    images = torch.rand(2, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(
        MemorySplit(images, torch.zeros(2), torch.zeros(2)).batch(torch.tensor([1])).images,
        images[1:],
    )


def test_batch_has_images_labels_and_indices_of_its_positions() -> None:
    batch = split().batch(torch.tensor([4, 1]))
    assert (batch.images * 255).round().flatten().tolist() == [16, 17, 18, 19, 4, 5, 6, 7]
    assert batch.labels.tolist() == [1, 1]
    assert batch.index.tolist() == [14, 11]
    assert len(split()) == 6


def changed(tensor: Tensor) -> Tensor:
    other = tensor.clone()
    other[-1] += 1
    return other


@pytest.mark.parametrize(
    "change",
    [
        {"images": changed(split().images)},
        {"images": split().images.float()},
        {"images": split().images.reshape(6, 1, 1, 4)},
        {"images": split().images.flip(0)},
        {"labels": changed(split().labels)},
        {"index": changed(split().index)},
    ],
    ids=["a pixel", "the type", "the shape", "the order", "a label", "an index"],
)
def test_any_change_of_content_changes_the_hash(change: dict[str, Tensor]) -> None:
    assert split(**change).sha256 != split().sha256


def test_the_hash_is_of_content_and_not_of_memory() -> None:
    transposed = split().images.transpose(2, 3).contiguous().transpose(2, 3)
    assert not transposed.is_contiguous()
    assert split(images=transposed).sha256 == split().sha256


def test_source_has_the_shape_of_its_images() -> None:
    assert MemorySource(3, {"train": split(), "test": split()}).input_shape == (1, 2, 2)


@settings(deadline=None)
@given(labels, st.sampled_from([0.0, 0.02, 0.1, 0.5, 0.9]), st.integers(0, 3))
def test_holdout_takes_some_but_not_all_of_every_class(
    given_labels: list[int], share: float, seed: int
) -> None:
    mask = holdout_mask(torch.tensor(given_labels), share, seed).tolist()
    assert len(mask) == len(given_labels)
    for label in set(given_labels):
        size = given_labels.count(label)
        held = sum(
            is_held for is_held, other in zip(mask, given_labels, strict=True) if other == label
        )
        assert held == (0 if share == 0 else min(max(1, round(share * size)), size - 1))


def test_holdout_depends_on_the_seed() -> None:
    many = torch.arange(500) % 10
    assert torch.equal(holdout_mask(many, 0.1, seed=0), holdout_mask(many, 0.1, seed=0))
    assert not torch.equal(holdout_mask(many, 0.1, seed=0), holdout_mask(many, 0.1, seed=1))


def test_lazy_splits_are_made_once_on_first_use() -> None:
    made = []

    def make(name: str) -> MemorySplit:
        made.append(name)
        return split()

    splits = LazySplits({name: partial(make, name) for name in ("train", "test")})
    assert list(splits) == ["train", "test"]
    assert "train" in splits
    assert len(splits) == 2
    assert splits["test"] is splits["test"]
    assert made == ["test"]


def test_a_split_in_memory_is_not_read_ahead() -> None:
    taken = []

    def order() -> Iterator[Tensor]:
        for position in range(3):
            taken.append(position)
            yield torch.tensor([position])

    batches = read_ahead(split(), order())
    assert next(batches).index.tolist() == [10]
    assert taken == [0]


def test_a_million_images_are_drawn_in_seconds() -> None:
    labels = torch.arange(1_280_000) % 1000
    # of this process, because others may have the cores
    started = time.process_time()
    positions = balanced_subset(labels, 5000, seed=0)
    # one sort takes a tenth of a second; a pass over all labels for each class 7 seconds or more
    assert time.process_time() - started < 3
    assert (labels[positions].bincount() == 5).all()


@pytest.mark.parametrize("seed", range(3))
def test_ranks_in_a_class_count_the_images_of_the_class_before(seed: int) -> None:
    labels = torch.randint(0, 5, (60,), generator=torch.Generator().manual_seed(seed)) * 3
    shuffled, ranks = _shuffle_with_class_ranks(labels, seed)
    in_order = labels[shuffled].tolist()
    assert ranks.tolist() == [in_order[:i].count(label) for i, label in enumerate(in_order)]


class OneFileSplit(MemorySplit):
    """A split that fails if two threads read it at the same time."""

    streams = True

    def batch(self, positions: Tensor) -> Batch:
        assert not self.is_busy.locked()
        with self.is_busy:
            time.sleep(0.005)
            return super().batch(positions)

    @cached_property
    def is_busy(self) -> Lock:
        return Lock()


def test_batches_of_a_plugin_are_read_by_one_thread_at_a_time() -> None:
    numbers = torch.arange(40)
    in_one_file = OneFileSplit(numbers.float().reshape(40, 1, 1, 1) / 40, numbers, numbers)
    found = list(read_ahead(in_one_file, numbers.split(4)))
    assert torch.cat([batch.index for batch in found]).tolist() == numbers.tolist()
