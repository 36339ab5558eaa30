"""How an evaluation takes its images: in chunks of the data set's order, each in batches.

The last bits of an image's numbers depend on the batch that it is in. Everything here is a function of the number of images and
of the batch size alone, so that whoever evaluates, and however the images arrive, the numbers are the same to the bit.
"""

from collections import deque
from collections.abc import Iterator
from itertools import chain, cycle

import torch
from torch import Tensor

from ..core.contracts import Batch, Split
from ..core.splits import ahead
from ..core.streams import Stream, recut

CHUNK, FEWEST, CHUNKS = 256, 32, 16
"""Chunks are the unit of storage, of resuming and of sharing: 16 of them, or as many as it takes for none to be larger than
256; none is smaller than 32 but the last.
"""


def chunk_size(images: int) -> int:
    """How many images a chunk has; a function of their number alone, so that every run deals alike."""
    return min(CHUNK, max(FEWEST, -(-images // CHUNKS)))


def chunks(positions: Tensor) -> tuple[Tensor, ...]:
    """The positions of every chunk."""
    parts: tuple[Tensor, ...] = positions.split(chunk_size(len(positions)))
    return parts


def taken(images: Split | Stream, batch_size: int) -> Iterator[Batch]:
    """All images in their batches. A stream is read ahead as far as it takes to know whether its images are few."""
    if not isinstance(images, Stream):
        yield from ahead(images, (part for chunk in chunks(torch.arange(len(images))) for part in chunk.split(batch_size)))
        return
    arriving, held = iter(images), deque[Batch]()
    while max(len(images), images.at_least) < CHUNK * CHUNKS and (batch := next(arriving, None)) is not None:
        held.append(batch)
    size = chunk_size(max(len(images), images.at_least))
    yield from recut(chain(_released(held), arriving), cycle(map(len, torch.arange(size).split(batch_size))))


def _released(held: deque[Batch]) -> Iterator[Batch]:
    """Each batch is let go as soon as it is taken."""
    while held:
        yield held.popleft()
