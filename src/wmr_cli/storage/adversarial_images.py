"""Find and read the adversarial images that `wmr attack --save` wrote beside a record.

Without torch, because `wmr report` shows these images and has to start quickly.
"""

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
"""Types of pixels, in the notation of safetensors."""


@dataclass(frozen=True)
class AdversarialImageFile:
    """A file of adversarial images, with their index and prediction, (N,) each.

    The images themselves stay in the file until `read_images`, because a file may hold a whole
    dataset and a report shows only a few.
    """

    path: Path
    index: Array
    prediction: Array
    shape: tuple[int, int, int]

    def read_images(self, positions: Sequence[int]) -> Array:
        """Read the images at these positions of the file as uint8, (K, C, H, W)."""
        try:
            check_regular(self.path)
            with safe_open(self.path, framework="numpy") as file:
                stored = file.get_slice("images")
                chosen = [np.asarray(stored[position : position + 1]) for position in positions]
        except (OSError, SafetensorError, UnicodeDecodeError, TypeError, AttributeError) as error:
            raise BadFile(
                f"the images {self.path} cannot be read: {error}",
                hint="run `wmr attack` with --save again",
            ) from None
        if not chosen:
            return np.empty((0, *self.shape), np.uint8)
        images = np.concatenate(chosen)
        if images.dtype == np.uint8:
            return images
        # a conversion of NaN or of values outside [0, 1] to uint8 is undefined
        levels: Array = np.rint(255 * np.nan_to_num(images).clip(0, 1)).astype(np.uint8)
        return levels


def find_adversarial_images(file: Path, record: Record) -> AdversarialImageFile | None:
    """Return the first file with images of this evaluation, or None.

    Files are searched in the folder of the record, `evaluations/`, and in the run folder above it.
    """
    for folder in (file.absolute().parent, file.absolute().parent.parent):
        for path in sorted(folder.glob("*.safetensors")):
            found = _read(path, record)
            if found is not None:
                return found
    return None


def _read(path: Path, record: Record) -> AdversarialImageFile | None:
    """Return None for other files: rows, checkpoints, images of another or a weighted attack."""
    try:
        check_regular(path)
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            if any(header.get(name) != value for name, value in _required_header(record)):
                return None
            if "images" not in file.keys():  # noqa: SIM118
                return None
            stored = file.get_slice("images")
            images, channels, height, width = stored.get_shape()
            if min(channels, height, width) < 1 or stored.get_dtype() not in IMAGE_TYPES:
                return None
            index = file.get_tensor("index")
            prediction = file.get_tensor("prediction")
            if not (_are_integers(index, images) and _are_integers(prediction, images)):
                return None
            return AdversarialImageFile(path, index, prediction, (channels, height, width))
    # safetensors raises the last two for types that NumPy lacks, such as bfloat16
    except (OSError, SafetensorError, UnicodeDecodeError, ValueError, TypeError, AttributeError):
        return None


def _are_integers(values: Array, count: int) -> bool:
    """Return whether an array holds `count` integers."""
    return values.shape == (count,) and values.dtype.kind in "iu"


def _required_header(record: Record) -> Iterator[tuple[str, str | None]]:
    """Yield the header lines of images of this evaluation."""
    yield from {
        "checkpoint_sha256": record.checkpoint.sha256,
        "dataset": record.dataset.name,
        "split": record.dataset.split,
        "norm": record.threat.norm,
        "eps": repr(record.threat.eps),
        "attack": record.attack.spec,
        "seed": str(record.attack.seed),
        # only weighted attacks have an alpha; a record shows the unweighted attack
        "alpha": None,
    }.items()
