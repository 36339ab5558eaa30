"""Batches of the training set on the device, checked and augmented."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ..core.contexts import is_accelerator
from ..core.data.augment import Augmentation
from ..core.data.image_files import ImageFileSplit
from ..core.data.splits import BatchReader, MemorySplit, open_reader, read_ahead
from ..core.nn.fusion import to_memory_format
from ..core.protocols import Batch, Split, StreamsImages
from ..core.rng import derive_seed
from ..core.run_attack import check_batch, check_stored_batch
from ..errors import BadInput
from ..runtime.accelerators import copies_without_blocking, free_memory
from ..spec import parse_number

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
        in_memory = find_images_in_memory(split)
        if in_memory is not None and fits_on_device(in_memory, device):
            # checked here and not per batch: a check on the device makes the host wait
            for positions in torch.arange(len(in_memory)).split(CHECK_SIZE):
                check_batch(in_memory.batch(positions), num_classes)
            self._host_index = in_memory.index
            self._on_device = in_memory.to(device)

    @property
    def on_device(self) -> bool:
        """Whether the whole split is on an accelerator."""
        return self._on_device is not None

    def read(self, order: Iterable[Tensor], epoch: int) -> Iterator[Batch]:
        """Yield the batches at these positions, augmented for this epoch."""
        seed = derive_seed("augment", self._seed, epoch)
        for batch, host_index in self._load(order):
            # drawn on the CPU and applied on the device, as a function of (seed, epoch, index)
            images = self._augment(batch.images, host_index, seed)
            yield replace(batch, images=to_memory_format(images, self._memory_format))

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
    in_memory = find_images_in_memory(split)
    if in_memory is not None and fits_on_device(in_memory, device):
        return in_memory.to(device)
    return split


def find_images_in_memory(split: Split) -> MemorySplit | None:
    """Return a split over all images of this one, if they are in memory as they are stored."""
    if isinstance(split, MemorySplit):
        return split
    # not a subclass, which may change what a batch is
    if type(split) is not ImageFileSplit:
        return None
    pixels = split.pixels_in_memory
    return None if pixels is None else MemorySplit(pixels, split.labels, split.index)


def fits_on_device(split: MemorySplit, device: torch.device) -> bool:
    """Whether an accelerator has enough free memory for all images."""
    if not is_accelerator(device):
        return False
    return split.images.nbytes <= MAX_MEMORY_FRACTION * free_memory(device)


def build_augmentation(text: str, input_shape: tuple[int, int, int]) -> Augmentation:
    """Parse `crop:4,flip`: random crops after padding by 4 pixels, and random flips.

    `crop:4:reflect` pads by mirroring the border. `resized-crop` resizes a random box of at least
    8 % of the image, `resized-crop:0.25` of at least a quarter. `none` is neither crops nor flips.
    """
    smallest_area: float | None = None
    padding = 0
    border: Literal["zero", "reflect"] = "zero"
    flips = False
    words = [] if text == "none" else text.split(",")
    for word in words:
        crop = re.fullmatch("crop:([0-9]+)(:zero|:reflect)?", word.strip())
        resized = re.fullmatch("resized-crop(?::(.+))?", word.strip())
        if resized is not None:
            smallest_area = _parse_area(resized[1])
        elif crop is not None:
            padding = int(crop[1])
            border = "reflect" if crop[2] == ":reflect" else "zero"
        elif word.strip() == "flip":
            flips = True
        else:
            raise BadInput(
                f"unknown augmentation {word!r}",
                hint="write crop:4, crop:4:reflect, resized-crop, flip, several joined by commas,"
                " or none",
            )
    if padding and smallest_area is not None:
        raise BadInput("crop and resized-crop exclude each other", hint="keep one of the two")
    side = min(input_shape[1:])
    if padding >= side:
        raise BadInput(
            f"a crop of {padding} pixels may remove all of an image of side {side}",
            hint="use a smaller crop",
        )
    return Augmentation(padding, border, flips, smallest_area)


def _parse_area(text: str | None) -> float:
    """Return the smallest area of a random box, as a fraction of the image."""
    area = SMALLEST_AREA if text is None else parse_number(text)
    if not 0 < area <= 1:
        raise BadInput(
            f"the smallest area of resized-crop is {area:g}, not in (0, 1]",
            hint="resized-crop:0.25 crops a quarter of the image or more",
        )
    return area
