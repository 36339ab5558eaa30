"""Splits of datasets: in memory, made on first use, read ahead, and chosen at random by class."""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Protocol, Self, TypeVar, runtime_checkable

import torch
from torch import Tensor

from ...errors import BadInput
from ..protocols import Batch, Split, StreamsImages, to_unit_floats

MAX_BATCHES_AHEAD = 4
"""Batches that are read from files while earlier ones are used."""
MAX_BYTES_AHEAD = 512 << 20
"""Fewer batches are read ahead if their images need more memory than this."""
READERS = 2
"""While one thread waits for the last images of a batch, another starts the next batch."""

BatchReader = Callable[[Tensor], Batch]
"""Return the images at positions (N,), as uint8 in 0…255 or as floats in [0, 1]."""


@dataclass(frozen=True, eq=False)
class MemorySplit:
    """Images (N, C, H, W), labels (N,), and the index (N,) that each image has in its dataset.

    Images are uint8 in 0…255 or float32 in [0, 1].
    """

    images: Tensor
    labels: Tensor
    index: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, positions: Tensor) -> Batch:
        """Return the images at these positions, as float32 in [0, 1]."""
        stored = self.stored_batch(positions)
        return Batch(to_unit_floats(stored.images), stored.labels, stored.index)

    def open_reader(self) -> AbstractContextManager[BatchReader]:
        """Read batches as they are stored: `Batch.to` converts bytes on the device."""
        # a subclass may change what a batch is
        if type(self) is not MemorySplit:
            return read_in_turn(self.batch)
        return nullcontext(self.stored_batch)

    def stored_batch(self, positions: Tensor) -> Batch:
        """Return the images at these positions as they are stored."""
        # the host does not wait for a copy from pinned memory
        positions = positions.to(self.images.device, non_blocking=positions.is_pinned())
        return Batch(self.images[positions], self.labels[positions], self.index[positions])

    def to(self, device: torch.device) -> "MemorySplit":
        """Return the split on a device, with the images as they are stored."""
        return MemorySplit(self.images.to(device), self.labels.to(device), self.index.to(device))

    def subset(self, positions: Tensor) -> "MemorySplit":
        """Return the split of the images at these positions."""
        return MemorySplit(self.images[positions], self.labels[positions], self.index[positions])

    @cached_property
    def sha256(self) -> str:
        """Hash of images, labels and indices: results are comparable on equal images only."""
        digest = hashlib.sha256()
        for part in (self.images, self.labels, self.index):
            digest.update(f"{part.dtype} {tuple(part.shape)}".encode())
            # the buffer itself: tobytes() would copy the whole dataset
            digest.update(part.contiguous().numpy().data)
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class MemorySource:
    """A dataset whose splits are in memory."""

    num_classes: int
    splits: Mapping[str, MemorySplit]
    class_names: tuple[str, ...] | None = None
    random_split_sha256: str | None = None
    """A hash of the training images where the splits were chosen at random."""

    @property
    def input_shape(self) -> tuple[int, int, int]:
        channels, height, width = next(iter(self.splits.values())).images.shape[1:]
        return channels, height, width


@dataclass(frozen=True, eq=False)
class Source:
    """A dataset whose classes and shape are known before any image is read."""

    num_classes: int
    input_shape: tuple[int, int, int]
    splits: Mapping[str, Split]
    class_names: tuple[str, ...] | None = None
    random_split_sha256: str | None = None
    """A hash of the training images where the splits were chosen at random."""


class ReadsBatches(Protocol):
    """The part of a split that reading needs."""

    def batch(self, positions: Tensor) -> Batch:
        """Return the images at these positions (N,)."""
        ...


@runtime_checkable
class OpensReader(Protocol):
    """A split that reads faster while a reader is open."""

    def open_reader(self) -> AbstractContextManager[BatchReader]:
        """Return a function that reads batches; its threads end with the block."""
        ...


class SubsettableSplit(Split, Protocol):
    """A split that can be divided."""

    def subset(self, positions: Tensor) -> Self:
        """Return the split of the images at these positions."""
        ...


SplitT = TypeVar("SplitT", bound=SubsettableSplit)


class LazySplits(Mapping[str, Split]):
    """Splits by name, each made on first use: an evaluation never reads the training images."""

    def __init__(self, makers: Mapping[str, Callable[[], Split]]) -> None:
        self._makers = makers
        self._splits: dict[str, Split] = {}

    def __getitem__(self, name: str) -> Split:
        if name not in self._splits:
            self._splits[name] = self._makers[name]()
        return self._splits[name]

    # Mapping's own version would make the split
    def __contains__(self, name: object) -> bool:
        return name in self._makers

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


@dataclass(frozen=True, eq=False)
class JoinedSplit:
    """The images of one split, followed by those of another with labels and indices given here.

    Position `len(first) + k` is image k of the second split. Its index is `offset + k`: a dataset
    of its own may use the indices of the first split.
    """

    first: Split
    second: Split
    second_labels: Tensor
    offset: int

    def __len__(self) -> int:
        return len(self.first) + len(self.second)

    @property
    def labels(self) -> Tensor:
        return torch.cat([self.first.labels, self.second_labels])

    @property
    def sha256(self) -> str:
        """Hash of both splits, and of the labels and indices of the second."""
        parts = f"{self.first.sha256} {self.second.sha256} {self.offset}".encode()
        return hashlib.sha256(parts + self.second_labels.cpu().numpy().tobytes()).hexdigest()

    @property
    def streams(self) -> bool:
        """Whether one of the two reads its images from files for every batch."""
        return any(
            isinstance(split, StreamsImages) and split.streams
            for split in (self.first, self.second)
        )

    def batch(self, positions: Tensor) -> Batch:
        """Return the images at these positions, as floats in [0, 1]."""
        joined = self._read(positions, self.first.batch, self.second.batch)
        return Batch(to_unit_floats(joined.images), joined.labels, joined.index)

    @contextmanager
    def open_reader(self) -> Iterator[BatchReader]:
        """Read batches of both splits, as bytes where both have bytes."""
        with open_reader(self.first) as read_first, open_reader(self.second) as read_second:
            yield lambda positions: self._read(positions, read_first, read_second)

    def _read(self, positions: Tensor, read_first: BatchReader, read_second: BatchReader) -> Batch:
        is_second = positions >= len(self.first)
        if not is_second.any():
            return read_first(positions)
        own = positions[is_second] - len(self.first)
        second = read_second(own)
        second = Batch(second.images, self.second_labels[own], self.offset + own)
        if is_second.all():
            return second
        first = read_first(positions[~is_second])
        # the parts one after the other, and then in the order of the positions
        order = is_second.long().argsort(stable=True).argsort()
        images = [first.images, second.images]
        if first.images.dtype != second.images.dtype:
            images = [to_unit_floats(part) for part in images]
        return Batch(
            torch.cat(images)[order],
            torch.cat([first.labels, second.labels])[order],
            torch.cat([first.index, second.index])[order],
        )


def open_reader(split: ReadsBatches) -> AbstractContextManager[BatchReader]:
    """Return a function that reads batches of a split, as bytes where the split can."""
    if isinstance(split, OpensReader):
        return split.open_reader()
    return read_in_turn(split.batch)


@contextmanager
def read_in_turn(read: BatchReader) -> Iterator[BatchReader]:
    """Let one thread at a time call a reader: a plugin may read from one open file."""
    lock = Lock()

    def read_with_lock(positions: Tensor) -> Batch:
        with lock:
            return read(positions)

    yield read_with_lock


def read_ahead(split: ReadsBatches, order: Iterable[Tensor]) -> Iterator[Batch]:
    """Yield batches in this order; read the next ones in threads if images come from files.

    Images may be bytes: `Batch.to` converts them to floats.
    """
    if not (isinstance(split, StreamsImages) and split.streams):
        with open_reader(split) as read:
            yield from map(read, order)
        return
    waiting: deque[Future[Batch]] = deque()
    limit = 1
    # the reader closes first: its threads end before the others wait for them
    with ThreadPoolExecutor(READERS) as threads, open_reader(split) as read:
        try:
            for positions in order:
                waiting.append(threads.submit(read, positions))
                if len(waiting) > limit:
                    batch = waiting.popleft().result()
                    limit = _count_batches_ahead(batch)
                    yield batch
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _count_batches_ahead(batch: Batch) -> int:
    """Return how many batches of this size are read ahead."""
    return max(1, min(MAX_BATCHES_AHEAD, MAX_BYTES_AHEAD // max(batch.images.nbytes, 1)))


def holdout_mask(labels: Tensor, fraction: float, seed: int) -> Tensor:
    """Choose a random fraction of every class to hold out, as a mask (N,).

    At least one image of a class is held out, and at least one is not.
    """
    # nested: a larger fraction with the same seed contains the smaller one
    order, rank_in_class = _shuffle_with_class_ranks(labels, seed)
    class_sizes = labels.bincount()
    # rounding may give none of a small class, or all of it
    smallest = 1 if fraction else 0
    wanted = (fraction * class_sizes).round().long().clamp(min=smallest).minimum(class_sizes - 1)
    mask = torch.zeros(len(labels), dtype=torch.bool)
    mask[order] = rank_in_class < wanted[labels[order]]
    return mask


def add_missing_splits(
    splits: Mapping[str, SplitT], holdout: float, test: float, seed: int
) -> dict[str, SplitT]:
    """Hold out `test` and then `val` from `train`, or from `all`, unless they exist."""
    complete = dict(splits)
    # many datasets publish their test set under the name of a validation set
    if "test" not in complete and "val" in complete:
        complete["test"] = complete.pop("val")
    remaining = complete.get("train", complete.get("all"))
    if remaining is None:
        return complete
    for name, setting, fraction in (("test", "test", test), ("val", "holdout", holdout)):
        if name in complete or not fraction:
            continue
        # `val` is a fraction of what `test` has left
        check_training_images_remain(setting, fraction, remaining.labels)
        is_held_out = holdout_mask(remaining.labels, fraction, seed)
        complete[name] = remaining.subset(is_held_out.nonzero().squeeze(1))
        remaining = remaining.subset((~is_held_out).nonzero().squeeze(1))
    return complete | {"train": remaining}


def check_fraction(setting: str, fraction: float) -> None:
    """Check that a setting is a fraction of the images, in [0, 1)."""
    if not 0 <= fraction < 1:
        raise BadInput(
            f"{setting}={fraction:g} is not in [0, 1)",
            hint=f"write {setting}=0.1 for a tenth of the images",
        )


def check_training_images_remain(setting: str, fraction: float, labels: Tensor) -> None:
    """Check that every class keeps training images; a single image is always kept."""
    sizes = labels.bincount()
    is_emptied = (sizes > 1) & ((fraction * sizes).round() >= sizes)
    if is_emptied.any():
        label = int(is_emptied.nonzero()[0, 0])
        raise BadInput(
            f"{setting}={fraction:g} leaves no training images of class {label}, "
            f"which has {int(sizes[label])} images",
            hint=f"hold out fewer images, such as {setting}=0.1, or add images",
        )


def balanced_subset(labels: Tensor, size: int, seed: int) -> Tensor:
    """Choose a random subset with equal class sizes as far as possible.

    Returns positions (size,) in ascending order.
    """
    shuffled, rank_in_class = _shuffle_with_class_ranks(labels, seed)
    # the first image of every class, then the second of every class, …
    order = torch.argsort(rank_in_class, stable=True)
    return shuffled[order[:size]].sort().values


def _shuffle_with_class_ranks(labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Return all positions in random order, and for each the number of its class before it."""
    # its own generator: the global one is seeded for the run
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    # a stable sort groups the classes and keeps the random order within each
    sorted_labels, order = labels[shuffled].sort(stable=True)
    class_sizes = sorted_labels.unique_consecutive(return_counts=True)[1]
    first_of_class = (class_sizes.cumsum(0) - class_sizes).repeat_interleave(class_sizes)
    rank_in_class = torch.empty_like(shuffled)
    rank_in_class[order] = torch.arange(len(labels)) - first_of_class
    return shuffled, rank_in_class
