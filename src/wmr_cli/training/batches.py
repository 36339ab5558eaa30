"""Batches of the training set on the device, checked and augmented."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..core.contexts import is_accelerator
from ..core.data.augment import Augmentation
from ..core.data.image_files import ImageFileSplit
from ..core.data.splits import BatchReader, JoinedSplit, MemorySplit, open_reader, read_ahead
from ..core.nn.fusion import to_memory_format
from ..core.protocols import Batch, Split, StreamsImages, to_unit_floats
from ..core.rng import derive_seed
from ..core.run_attack import check_batch, check_stored_batch
from ..runtime.accelerators import copies_without_blocking, free_memory

MAX_MEMORY_FRACTION = 0.25
"""A split is copied to the device if it needs at most this fraction of its free memory."""
SMALLEST_AREA = 0.08
"""Smallest fraction of an image that `resized-crop` keeps, as in torchvision."""
CHECK_SIZE = 1024
"""Images that are checked at once before a split is copied."""


class TrainingBatches:
    """Batches of a split, as tensors on the device in one memory format.

    A split in memory that fits on the device is copied there once, as it is stored: usually as
    bytes. A batch of it then copies positions and random offsets from the host, but no images.
    """

    def __init__(
        self,
        split: Split,
        *,
        device: torch.device,
        num_classes: int,
        augment: Augmentation,
        seed: int,
        memory_format: torch.memory_format,
    ) -> None:
        self._device = device
        self._augment = augment
        self._seed = seed
        self._memory_format = memory_format
        self._on_host = CheckedSplit(split, num_classes, pins=copies_without_blocking(device))
        self._on_device: MemorySplit | None = None
        self._host_index = torch.empty(0)
        parts = find_images_in_memory(split)
        if parts and fits_on_device(parts, device):
            # checked here and not per batch: a check on the device makes the host wait
            for positions in torch.arange(len(split)).split(CHECK_SIZE):
                check_batch(split.batch(positions), num_classes)
            self._host_index = torch.cat([part.index for part in parts])
            self._on_device = join_on_device(parts, device)

    @property
    def on_device(self) -> bool:
        """Whether the whole split is on an accelerator."""
        return self._on_device is not None

    def read(self, order: Iterable[Tensor], epoch: int) -> Iterator[Batch]:
        """Yield the batches at these positions, augmented for this epoch."""
        seed = derive_seed("augment", self._seed, epoch)
        for batch, host_index in self._load(order):
            # drawn on the CPU and applied on the device, as a function of (seed, epoch, index)
            batch = replace(batch, images=self._augment(batch.images, host_index, seed))
            if self._augment.mixer is not None:
                batch = self._augment.mixer(batch, host_index, seed)
            yield replace(batch, images=to_memory_format(batch.images, self._memory_format))

    def _load(self, order: Iterable[Tensor]) -> Iterator[tuple[Batch, Tensor]]:
        """Yield batches on the device, each with its index (N,) on the host."""
        if self._on_device is None:
            for batch in read_ahead(self._on_host, order):
                yield batch.to(self._device), batch.index
            return
        for positions in order:
            index = self._host_index[positions]
            if copies_without_blocking(self._device):
                positions = positions.pin_memory()
                index = index.pin_memory()
            yield self._on_device.batch(positions), index


@dataclass(frozen=True)
class CheckedSplit:
    """A split whose batches are checked, and pinned in memory for a fast copy to a GPU.

    Both happen where the batch is read: in a thread if the images come from files or are pinned.
    """

    split: Split
    num_classes: int
    pins: bool

    @property
    def streams(self) -> bool:
        """Whether threads read batches ahead: they are read from files, or copied to be pinned."""
        return self.pins or (isinstance(self.split, StreamsImages) and self.split.streams)

    def batch(self, positions: Tensor) -> Batch:
        """Return the images at these positions (N,)."""
        return self._check(self.split.batch(positions))

    @contextmanager
    def open_reader(self) -> Iterator[BatchReader]:
        """Read, check and pin batches, as bytes where the split can."""
        with open_reader(self.split) as read:
            yield lambda positions: self._check(read(positions))

    def _check(self, batch: Batch) -> Batch:
        if batch.images.dtype == torch.uint8:
            check_stored_batch(batch, self.num_classes)
        else:
            check_batch(batch, self.num_classes)
        if not self.pins:
            return batch
        # labels too: any copy from other memory makes the host wait
        return Batch(batch.images.pin_memory(), batch.labels.pin_memory(), batch.index.pin_memory())


def place_on_device(split: Split, device: torch.device) -> Split:
    """Return the split with its images on the device, if they are in memory and fit there."""
    parts = find_images_in_memory(split)
    if parts and fits_on_device(parts, device):
        return join_on_device(parts, device)
    return split


def find_images_in_memory(split: Split) -> list[MemorySplit]:
    """Return the parts of a split in their order if all are in memory as they are stored.

    Otherwise return nothing.
    """
    if isinstance(split, MemorySplit):
        return [split]
    if isinstance(split, JoinedSplit):
        first = find_images_in_memory(split.first)
        second = find_images_in_memory(split.second)
        if not (first and second):
            return []
        index = split.offset + torch.arange(len(split.second))
        return [*first, MemorySplit(second[0].images, split.second_labels, index)]
    # not a subclass, which may change what a batch is
    if type(split) is not ImageFileSplit:
        return []
    pixels = split.pixels_in_memory
    return [] if pixels is None else [MemorySplit(pixels, split.labels, split.index)]


def fits_on_device(parts: list[MemorySplit], device: torch.device) -> bool:
    """Whether an accelerator has enough free memory for all images."""
    if not is_accelerator(device):
        return False
    needed = sum(part.images.nbytes for part in parts)
    return needed <= MAX_MEMORY_FRACTION * free_memory(device)


def join_on_device(parts: list[MemorySplit], device: torch.device) -> MemorySplit:
    """Return one split on the device with the images of all parts."""
    copied = [part.to(device) for part in parts]
    if len(copied) == 1:
        return copied[0]
    images = [part.images for part in copied]
    if len({part.dtype for part in images}) > 1:
        images = [to_unit_floats(part) for part in images]
    return MemorySplit(
        torch.cat(images),
        torch.cat([part.labels for part in copied]),
        torch.cat([part.index for part in copied]),
    )
