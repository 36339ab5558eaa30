"""Parts of data sets: held in memory, put together when they are first asked for, held out, dealt."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor

from ...errors import BadInput
from ..protocols import Batch, Split, StreamsImages


@dataclass(frozen=True, eq=False)
class MemorySplit:
    """Images (N, C, H, W) as uint8 in 0…255 or float32 in [0, 1], labels (N,), and each image's index (N,) in its data set."""

    images: Tensor
    labels: Tensor
    index: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, positions: Tensor) -> Batch:
        """The images at these positions, as float32 in [0, 1]."""
        return Batch(
            to_unit_floats(self.images[positions]), self.labels[positions], self.index[positions]
        )

    def subset(self, positions: Tensor) -> "MemorySplit":
        """The images at these positions, as a split of their own."""
        return MemorySplit(self.images[positions], self.labels[positions], self.index[positions])

    @cached_property
    def sha256(self) -> str:
        """Over images, labels and indices, so that results are compared on the same images only."""
        digest = hashlib.sha256()
        for part in (self.images, self.labels, self.index):
            digest.update(f"{part.dtype} {tuple(part.shape)}".encode())
            digest.update(part.contiguous().numpy().data)  # as it lies there, not a copy
        return digest.hexdigest()


def to_unit_floats(images: Tensor) -> Tensor:
    """Bytes as float32 in [0, 1]; floats as they are."""
    return images.float() / 255 if images.dtype == torch.uint8 else images


@dataclass(frozen=True, eq=False)
class MemorySource:
    """A data set of splits in memory."""

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
    """A data set that knows its classes and its shape before any image is read."""

    num_classes: int
    input_shape: tuple[int, int, int]
    splits: Mapping[str, Split]
    class_names: tuple[str, ...] | None = None
    random_split_sha256: str | None = None
    """A hash of the training images where the splits were chosen at random."""


class SubsettableSplit(Split, Protocol):
    """A split that can be divided."""

    def subset(self, positions: Tensor) -> Self:
        """The images at these positions, as a split of their own."""
        ...


SplitT = TypeVar("SplitT", bound=SubsettableSplit)


class LazySplits(Mapping[str, Split]):
    """Splits by name, each made when it is first asked for: who evaluates does not wait for the training images."""

    def __init__(self, makers: Mapping[str, Callable[[], Split]]) -> None:
        self._makers = makers
        self._made: dict[str, Split] = {}

    def __getitem__(self, name: str) -> Split:
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._makers

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


def read_ahead(split: Split, order: Iterable[Tensor]) -> Iterator[Batch]:
    """Batches in this order. Where images are read from files, each batch is read while the one before it is in use."""
    if not (isinstance(split, StreamsImages) and split.streams):
        yield from map(split.batch, order)
        return
    with ThreadPoolExecutor(max_workers=1) as reader:
        waiting: Future[Batch] | None = None
        for positions in order:
            following = reader.submit(split.batch, positions)
            if waiting is not None:
                yield waiting.result()
            waiting = following
        if waiting is not None:
            yield waiting.result()


def holdout_mask(labels: Tensor, share: float, seed: int) -> Tensor:
    """Which images (N,) are held out: of every class this share, chosen at random, but neither none of a class nor all of it."""
    order, turn = _dealt(labels, seed)
    sizes = labels.bincount()
    wanted = (share * sizes).round().long().clamp(min=1 if share else 0).minimum(sizes - 1)
    mask = torch.zeros(len(labels), dtype=torch.bool)
    mask[order] = turn < wanted[labels[order]]
    return mask


def add_missing_splits(
    splits: Mapping[str, SplitT], holdout: float, test: float, seed: int
) -> dict[str, SplitT]:
    """Splits with `test` and then `val` held out of the training images, or of `all`, where they do not exist.

    A `val` without `test` is what others call their test set.
    """
    made = dict(splits)
    if "test" not in made and "val" in made:
        made["test"] = made.pop("val")
    rest = made.get("train", made.get("all"))
    if rest is None:
        return made
    for name, share in {"test": test, "val": holdout}.items():
        if name not in made and share:
            check_training_images_remain("holdout" if name == "val" else name, share, rest.labels)
            chosen = holdout_mask(rest.labels, share, seed)
            made[name], rest = (
                rest.subset(chosen.nonzero().squeeze(1)),
                rest.subset((~chosen).nonzero().squeeze(1)),
            )
    return made | {"train": rest}


def check_fraction(name: str, share: float) -> None:
    """Refuse what is no share of the images."""
    if not 0 <= share < 1:
        raise BadInput(
            f"{name} {share:g} is no share of the images", hint=f"write {name}=0.1 for a tenth"
        )


def check_training_images_remain(name: str, share: float, labels: Tensor) -> None:
    """Refuse a share that holds out all images of a class; one that has a single image keeps it for training."""
    sizes = labels.bincount()
    emptied = ((sizes > 1) & ((share * sizes).round() >= sizes)).nonzero().flatten().tolist()
    if emptied:
        size = int(sizes[emptied[0]])
        problem = f"{name} {share:g} leaves no training images of class {emptied[0]}, which has {size} images"
        raise BadInput(problem, hint=f"hold out less, such as {name}=0.1, or add images")


def balanced_subset(labels: Tensor, size: int, seed: int) -> Tensor:
    """Positions (size,), in ascending order, of a random subset with as equal a share of every class as there can be."""
    shuffled, turn = _dealt(labels, seed)
    # every class gives its first image, then its second, …
    order = torch.argsort(turn, stable=True)
    return shuffled[order[:size]].sort().values


def _dealt(labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """All positions in a random order, and beside each how many images of its class come before it."""
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    turn = torch.empty_like(shuffled)
    for label in labels.unique():
        members = labels[shuffled] == label
        turn[members] = torch.arange(int(members.sum()))
    return shuffled, turn
