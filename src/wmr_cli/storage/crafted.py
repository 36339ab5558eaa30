"""Images that `wmr attack --save` wrote, found beside a record. No torch: the page of `wmr report` shows them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from ..errors import BadFile
from ..reading import check_regular
from .records import Record

Array = NDArray[Any]
IMAGE_TYPES = ("U8", "F32", "F64")
"""Types of pixels, as safetensors names them."""


@dataclass(frozen=True)
class Crafted:
    """A file of attacked images: which they are and what they were taken for, (N,) each. Pictures are read when asked for."""

    path: Path
    index: Array
    prediction: Array
    shape: tuple[int, int, int]

    def pictures(self, positions: Sequence[int]) -> Array:
        """The images at these positions of the file, (K, C, H, W), in 8 bits."""
        try:
            check_regular(self.path)
            with safe_open(self.path, framework="numpy") as file:
                stored = file.get_slice("images")
                chosen = [np.asarray(stored[position : position + 1]) for position in positions]
        except (OSError, SafetensorError, UnicodeDecodeError, TypeError, AttributeError) as error:
            raise BadFile(f"the images {self.path} cannot be read: {error}", hint="attack again with --save") from None
        images = np.concatenate(chosen) if chosen else np.empty((0, *self.shape), np.uint8)
        return images if images.dtype == np.uint8 else np.rint(255 * np.nan_to_num(images).clip(0, 1)).astype(np.uint8)


def crafted_for(file: Path, record: Record) -> Crafted | None:
    """The first file with images of this very evaluation, in the folder of the record or in the one that holds it."""
    for folder in (file.absolute().parent, file.absolute().parent.parent):
        for path in sorted(folder.glob("*.safetensors")):
            found = _read(path, record)
            if found is not None:
                return found
    return None


def _read(path: Path, record: Record) -> Crafted | None:
    """None for any other file: rows, checkpoints, images of another attack or of a weighted one."""
    try:
        check_regular(path)
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            if any(header.get(name) != value for name, value in _facts(record)) or "images" not in file.keys():  # noqa: SIM118
                return None
            stored = file.get_slice("images")
            images, channels, height, width = stored.get_shape()
            index, prediction = file.get_tensor("index"), file.get_tensor("prediction")
            has_pixels = min(channels, height, width) > 0 and stored.get_dtype() in IMAGE_TYPES
            is_sound = has_pixels and _are_whole(index, images) and _are_whole(prediction, images)
            return Crafted(path, index, prediction, (channels, height, width)) if is_sound else None
    # the last two are raised for types that numpy does not have, such as bfloat16
    except (OSError, SafetensorError, UnicodeDecodeError, ValueError, TypeError, AttributeError):
        return None


def _are_whole(values: Array, count: int) -> bool:
    """Return whether there are so many whole numbers."""
    return values.shape == (count,) and values.dtype.kind in "iu"


def _facts(record: Record) -> Iterator[tuple[str, str | None]]:
    """What the header of such a file must say; `alpha` is there for a weighted attack only."""
    yield from {
        "checkpoint_sha256": record.checkpoint.sha256,
        "dataset": record.dataset.name,
        "split": record.dataset.split,
        "norm": record.threat.norm,
        "eps": repr(record.threat.eps),
        "attack": record.attack.spec,
        "seed": str(record.attack.seed),
        "alpha": None,
    }.items()
