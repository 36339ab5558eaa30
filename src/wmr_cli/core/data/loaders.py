"""Batches of any origin as images that are read once, in the order in which they come."""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler, SequentialSampler

from ...errors import BadInput
from ..protocols import Batch, Split
from .splits import to_unit_floats

FORM = "give (images, labels) or (images, labels, index): images (N, C, H, W), labels and index (N,), as tensors or arrays"


class BatchStream:
    """What an iterable of batches gives: (images, labels), (images, labels, index) or `Batch`.

    Without an index images are counted. To others it is a split, which knows its length, its labels and its hash as far as it
    has gone by, and whose images are gone.
    """

    def __init__(self, source: Iterable[Any]) -> None:
        self._source = source
        self._labels: list[Tensor] = []
        self._count = 0
        self._shape: tuple[int, ...] = ()
        self._hashes = [hashlib.sha256() for _ in ("images", "labels", "index")]

    def __iter__(self) -> Iterator[Batch]:
        for number, given in enumerate(self._source):
            batch = read_batch(given, first=len(self), where=f"batch {number}")
            shape = tuple(batch.images.shape[1:])
            if self._shape and shape != self._shape:
                problem = (
                    f"batch {number} has images of shape {shape}, those before it of {self._shape}"
                )
                raise BadInput(problem, hint="bring all images to one size")
            self._shape = shape
            for digest, part in zip(
                self._hashes, (batch.images, batch.labels, batch.index), strict=True
            ):
                digest.update(part.cpu().numpy().tobytes())
            self._labels.append(batch.labels.cpu())
            self._count += len(batch.labels)
            yield batch

    def __len__(self) -> int:
        return self._count

    @property
    def labels(self) -> Tensor:
        return torch.cat(self._labels)

    @property
    def sha256(self) -> str:
        """Over images, labels and indices; how they were cut into batches leaves no trace."""
        parts = [f"{len(self)} {self._shape}", *(digest.hexdigest() for digest in self._hashes)]
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()

    @property
    def at_least(self) -> int:
        """How many images there are at least, as far as that is known before they come."""
        dataset, sampler = (
            getattr(self._source, "dataset", None),
            getattr(self._source, "sampler", None),
        )
        is_whole = isinstance(sampler, SequentialSampler) and not getattr(
            self._source, "drop_last", False
        )
        return len(dataset) if is_whole and dataset is not None else 0

    @property
    def note(self) -> str | None:
        """What a user should know about it."""
        if isinstance(getattr(self._source, "sampler", None), RandomSampler):
            return "the loader shuffles: an image has another number in every pass, and so another random start"
        return None

    def batch(self, positions: Tensor) -> Batch:
        raise BadInput(
            "images that came from an iterable can be read once only",
            hint="give a data set or a split",
        )


def as_split_or_stream(
    data: Split | Dataset[Any] | Iterable[Any], batch_size: int
) -> Split | BatchStream:
    """A split as it is; a torch data set, read batch by batch, or any other iterable of batches as a stream."""
    if all(hasattr(data, name) for name in ("batch", "labels", "sha256")):
        return data  # type: ignore[return-value]
    if hasattr(data, "splits"):
        raise BadInput("a data set has several splits", hint='choose one: data.splits["test"]')
    if isinstance(data, Dataset):
        return BatchStream(DataLoader(data, batch_size=batch_size))
    if isinstance(data, Tensor | str) or not isinstance(data, Iterable):
        raise BadInput(
            f"a {type(data).__name__} gives no batches",
            hint="one batch by itself is written [(images, labels)]",
        )
    return BatchStream(data)


def read_batch(given: Any, first: int, where: str) -> Batch:
    """A batch as a loader gives it; images without an index are counted from `first` on."""
    if isinstance(given, Batch):
        given = (given.images, given.labels, given.index)
    if not isinstance(given, tuple | list) or len(given) not in (2, 3):
        size = f" of {len(given)}" if isinstance(given, tuple | list) else ""
        raise BadInput(f"{where} is a {type(given).__name__}{size}", hint=FORM)
    strangers = [type(part).__name__ for part in given if not isinstance(part, Tensor | np.ndarray)]
    if strangers:
        raise BadInput(f"{where} holds a {strangers[0]}", hint=FORM)
    images, labels, *rest = (torch.as_tensor(part) for part in given)
    index = rest[0] if rest else torch.arange(first, first + len(labels), device=labels.device)
    if images.ndim != 4 or any(part.shape != (len(images),) for part in (labels, index)):
        shapes = ", ".join(str(tuple(part.shape)) for part in (images, labels, *rest))
        raise BadInput(f"{where} has parts of shape {shapes}", hint=FORM)
    for part, what in ((labels, "labels"), (index, "indices")):
        if part.is_floating_point() or part.is_complex() or part.dtype == torch.bool:
            raise BadInput(
                f"the {what} of {where} are {part.dtype}",
                hint="they are whole numbers, one per image",
            )
    if not (images.is_floating_point() or images.dtype == torch.uint8):
        raise BadInput(
            f"the images of {where} are {images.dtype}",
            hint="give floats in [0, 1], or uint8 in 0…255",
        )
    return Batch(to_unit_floats(images).detach().float().contiguous(), labels.long(), index.long())


def rebatch(batches: Iterable[Batch], sizes: Iterator[int]) -> Iterator[Batch]:
    """The same images in the same order, in batches of these sizes; the last may be smaller."""
    held, count, wanted = list[Batch](), 0, next(sizes)
    for batch in batches:
        held.append(batch)
        count += len(batch.labels)
        if count < wanted:
            continue
        whole, start = _joined(held), 0
        while count - start >= wanted:
            yield _part(whole, start, start + wanted)
            start, wanted = start + wanted, next(sizes)
        held, count = [_part(whole, start, count)], count - start
    if count:
        yield _joined(held)


def _joined(parts: list[Batch]) -> Batch:
    if len(parts) == 1:
        return parts[0]
    return Batch(
        *(
            torch.cat([getattr(part, name) for part in parts])
            for name in ("images", "labels", "index")
        )
    )


def _part(batch: Batch, start: int, stop: int) -> Batch:
    return Batch(batch.images[start:stop], batch.labels[start:stop], batch.index[start:stop])
