"""Images that `wmr attack --save` wrote, found beside a record. No torch: the page of `wmr report` shows them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from .records import Record

Array = NDArray[Any]


@dataclass(frozen=True)
class Crafted:
    """A file of attacked images: which they are and what they were taken for, (N,) each. Pictures are read when asked for."""

    path: Path
    index: Array
    prediction: Array
    shape: tuple[int, int, int]

    def pictures(self, positions: Sequence[int]) -> Array:
        """The images at these positions of the file, (K, C, H, W), in 8 bits."""
        with safe_open(self.path, framework="numpy") as file:
            stored = file.get_slice("images")
            chosen = [np.asarray(stored[position : position + 1]) for position in positions]
        images = np.concatenate(chosen) if chosen else np.empty((0, *self.shape), np.uint8)
        return images if images.dtype == np.uint8 else np.rint(255 * images.clip(0, 1)).astype(np.uint8)


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
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            if any(header.get(name) != value for name, value in _facts(record)) or "images" not in file.keys():  # noqa: SIM118
                return None
            channels, height, width = file.get_slice("images").get_shape()[1:]
            return Crafted(path, file.get_tensor("index"), file.get_tensor("prediction"), (channels, height, width))
    except (OSError, SafetensorError, UnicodeDecodeError, ValueError):
        return None


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
