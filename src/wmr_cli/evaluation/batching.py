"""How an evaluation takes its images: in chunks of the data set's order, each in batches.

The last bits of an image's numbers depend on the batch that it is in. Everything here is a function of the number of images and
of the batch size alone, so that whoever evaluates, and however the images arrive, the numbers are the same to the bit.
"""

from collections import deque
from collections.abc import Iterator
from itertools import chain, cycle

import torch
from torch import Tensor

from ..core.data.loaders import BatchStream, rebatch
from ..core.data.splits import read_ahead
from ..core.protocols import Batch, Split

CHUNK, FEWEST, CHUNKS = 256, 32, 8
"""Chunks are the unit of storage, of resuming and of sharing: up to 8 of 32 images or more, or as many of 256 as it takes."""


def chunks(positions: Tensor) -> tuple[Tensor, ...]:
    """The positions of every chunk; how they are cut is a function of their number alone, so that every run deals alike.

    Few images are cut evenly, and so are chunks: a product of five to eleven rows is rounded by how many threads share it.
    """
    count = len(positions)
    parts: tuple[Tensor, ...] = (
        positions.split(CHUNK)
        if _are_many(count)
        else positions.tensor_split(min(CHUNKS, max(1, count // FEWEST)))
    )
    return parts


def batches(chunk: Tensor, images: int, batch_size: int) -> tuple[Tensor, ...]:
    """The positions of every batch of a chunk of so many images."""
    # behind many images, whose number need not be known, a rest is cut as if more were to come
    parts: tuple[Tensor, ...] = (
        chunk.split(_even(CHUNK, _even(CHUNK, batch_size)))
        if _are_many(images)
        else chunk.tensor_split(max(1, _even(len(chunk), batch_size)))
    )
    return parts


def _even(images: int, parts: int) -> int:
    """The size of so many parts, rounded up; as well the number of parts of such a size."""
    return -(-images // parts)


def _are_many(images: int) -> bool:
    return images >= CHUNK * CHUNKS


def batch_images(images: Split | BatchStream, batch_size: int) -> Iterator[Batch]:
    """All images in their batches. A stream is read ahead as far as it takes to know whether its images are few."""
    if not isinstance(images, BatchStream):
        yield from read_ahead(images, _cut(len(images), batch_size))
        return
    arriving, held = iter(images), deque[Batch]()
    while (
        not _are_many(max(len(images), images.at_least))
        and (batch := next(arriving, None)) is not None
    ):
        held.append(batch)
    count = max(len(images), images.at_least)
    if not count:
        return
    # of many images the first chunks show how all are cut
    lengths = map(len, _cut(CHUNK * CHUNKS if _are_many(count) else count, batch_size))
    yield from rebatch(chain(_released(held), arriving), cycle(lengths))


def _cut(images: int, batch_size: int) -> Iterator[Tensor]:
    return (
        part
        for chunk in chunks(torch.arange(images))
        for part in batches(chunk, images, batch_size)
    )


def _released(held: deque[Batch]) -> Iterator[Batch]:
    """Each batch is let go as soon as it is taken."""
    while held:
        yield held.popleft()
