"""Streams of batches from any iterable."""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler, SequentialSampler

from ...errors import BadInput
from ..protocols import Batch, Split, to_unit_floats

BATCH_FORMAT = (
    "give (images, labels) or (images, labels, index): "
    "images (N, C, H, W), labels and index (N,), as tensors or arrays"
)


class BatchStream:
    """Batches of an iterable: (images, labels), (images, labels, index) or `Batch`.

    Images without an index are numbered in order. The stream can stand in for a split. Its length,
    labels and hash are those of the images read so far, and its images cannot be read again.
    """

    def __init__(self, source: Iterable[Any]) -> None:
        self._source = source
        self._labels: list[Tensor] = []
        self._count = 0
        self._shape: tuple[int, ...] = ()
        # separate hashes, so that the result does not depend on the batch sizes
        self._image_hash = hashlib.sha256()
        self._label_hash = hashlib.sha256()
        self._index_hash = hashlib.sha256()

    def __iter__(self) -> Iterator[Batch]:
        for number, item in enumerate(self._source):
            batch = read_batch(item, first=len(self), where=f"batch {number}")
            shape = tuple(batch.images.shape[1:])
            if self._shape and shape != self._shape:
                raise BadInput(
                    f"batch {number} has images of shape {shape}, earlier batches {self._shape}",
                    hint="resize all images to one size",
                )
            self._shape = shape
            self._image_hash.update(batch.images.cpu().numpy().tobytes())
            self._label_hash.update(batch.labels.cpu().numpy().tobytes())
            self._index_hash.update(batch.index.cpu().numpy().tobytes())
            self._labels.append(batch.labels.cpu())
            self._count += len(batch.labels)
            # counted before the batch is used, so that a consumer that stops early has its length
            yield batch

    def __len__(self) -> int:
        return self._count

    @property
    def labels(self) -> Tensor:
        return torch.cat(self._labels)

    @property
    def sha256(self) -> str:
        """Hash of images, labels and indices, for any batch sizes."""
        hashes = (self._image_hash, self._label_hash, self._index_hash)
        parts = [f"{len(self)} {self._shape}", *(digest.hexdigest() for digest in hashes)]
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()

    @property
    def min_length(self) -> int:
        """The number of images that are certain to come, as far as known in advance."""
        # by attribute: wrappers such as Fabric's are not DataLoaders, but have their attributes
        sampler = getattr(self._source, "sampler", None)
        drops_last = getattr(self._source, "drop_last", False)
        dataset = getattr(self._source, "dataset", None)
        # only a loader over a whole dataset in order has as many images as the dataset
        if dataset is None or drops_last or not isinstance(sampler, SequentialSampler):
            return 0
        return len(dataset)

    @property
    def note(self) -> str | None:
        """A warning about a loader that shuffles."""
        if not isinstance(getattr(self._source, "sampler", None), RandomSampler):
            return None
        return (
            "the loader shuffles: an image has another index in every pass, "
            "and so another random start"
        )

    def batch(self, positions: Tensor) -> Batch:
        raise BadInput(
            "images of an iterable can be read only once", hint="give a dataset or a split"
        )


def as_split_or_stream(
    data: Split | Dataset[Any] | Iterable[Any], batch_size: int
) -> Split | BatchStream:
    """Return a split as it is, and a torch dataset or an iterable of batches as a stream."""
    if all(hasattr(data, name) for name in ("batch", "labels", "sha256")):
        return data  # type: ignore[return-value]
    if hasattr(data, "splits"):
        raise BadInput("a dataset has several splits", hint='choose one: data.splits["test"]')
    # in order and without dropping the last batch: every image counts once
    if isinstance(data, Dataset):
        return BatchStream(DataLoader(data, batch_size=batch_size))
    # a tensor or a string can be iterated, but not into batches
    if isinstance(data, Tensor | str) or not isinstance(data, Iterable):
        raise BadInput(
            f"a {type(data).__name__} is not an iterable of batches",
            hint="write [(images, labels)] for a single batch",
        )
    return BatchStream(data)


def read_batch(item: object, first: int, where: str) -> Batch:
    """Convert a batch of a loader; images without an index are numbered from `first`."""
    if isinstance(item, Batch):
        item = (item.images, item.labels, item.index)
    if not isinstance(item, tuple | list) or len(item) not in (2, 3):
        size = f" of {len(item)}" if isinstance(item, tuple | list) else ""
        raise BadInput(f"{where} is a {type(item).__name__}{size}", hint=BATCH_FORMAT)
    for part in item:
        if not isinstance(part, Tensor | np.ndarray):
            raise BadInput(f"{where} holds a {type(part).__name__}", hint=BATCH_FORMAT)
    images, labels, *rest = (torch.as_tensor(part) for part in item)
    index = rest[0] if rest else torch.arange(first, first + len(labels), device=labels.device)
    if images.ndim != 4 or any(part.shape != (len(images),) for part in (labels, index)):
        shapes = ", ".join(str(tuple(part.shape)) for part in (images, labels, *rest))
        raise BadInput(f"{where} has parts of shape {shapes}", hint=BATCH_FORMAT)
    for part, name in ((labels, "labels"), (index, "indices")):
        if part.is_floating_point() or part.is_complex() or part.dtype == torch.bool:
            raise BadInput(
                f"the {name} of {where} are {part.dtype}", hint="give integers, one per image"
            )
    if not (images.is_floating_point() or images.dtype == torch.uint8):
        raise BadInput(
            f"the images of {where} are {images.dtype}",
            hint="give floats in [0, 1], or uint8 in 0…255",
        )
    images = to_unit_floats(images).detach().float().contiguous()
    return Batch(images, labels.long(), index.long())


def rebatch(batches: Iterable[Batch], sizes: Iterator[int]) -> Iterator[Batch]:
    """Yield the same images in batches of these sizes; the last may be smaller."""
    held: list[Batch] = []
    count = 0
    wanted = next(sizes)
    for batch in batches:
        held.append(batch)
        count += len(batch.labels)
        if count < wanted:
            continue
        # joined only when a batch is complete: a copy per arriving batch would be quadratic
        joined = _concatenate(held)
        start = 0
        while count - start >= wanted:
            yield _slice(joined, start, start + wanted)
            start += wanted
            wanted = next(sizes)
        held = [_slice(joined, start, count)]
        count -= start
    if count:
        yield _concatenate(held)


def _concatenate(batches: list[Batch]) -> Batch:
    # without a copy in the usual case, where batches have the wanted size already
    if len(batches) == 1:
        return batches[0]
    return Batch(
        torch.cat([batch.images for batch in batches]),
        torch.cat([batch.labels for batch in batches]),
        torch.cat([batch.index for batch in batches]),
    )


def _slice(batch: Batch, start: int, stop: int) -> Batch:
    return Batch(batch.images[start:stop], batch.labels[start:stop], batch.index[start:stop])
