"""Picture files as a split: decoded once into memory where they are few, read as they are needed where they are many."""

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ...errors import BadFile, BadInput
from ...reading import open_regular
from ..contexts import report_progress
from ..protocols import Batch
from .splits import to_unit_floats

if TYPE_CHECKING:
    from PIL.Image import Image

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".webp", ".tif", ".tiff")
LARGE = 2 << 30
"""Bytes of decoded pictures beyond which they are read as they are needed."""
_PLAIN = ("1", "L", "P", "RGB")
_TRANSPARENT = ("LA", "PA", "RGBA", "La", "RGBa")
_CHANNELS = {1: "L", 3: "RGB"}


@dataclass(frozen=True)
class Decoder:
    """A picture file to pixels, uint8 (C, H, W).

    With `size` the shorter side is brought to `resize` (to `size` unless given) and the middle is cut out, as torchvision's
    Resize and CenterCrop do. Without it a picture stays as it is.
    """

    channels: int = 3
    size: int | None = None
    resize: int | None = None

    def __call__(self, path: Path) -> Tensor:
        picture = self.cut(_opened(path).convert(_CHANNELS[self.channels]))
        pixels = torch.from_numpy(np.array(picture)).reshape(
            picture.height, picture.width, self.channels
        )
        return pixels.permute(2, 0, 1)

    def cut(self, picture: "Image") -> "Image":
        """Resize and centre crop."""
        from PIL.Image import Resampling

        if self.size is None:
            return picture
        shorter, longer = sorted(picture.size)
        side = self.resize or self.size
        other = side * longer // shorter
        new = (side, other) if picture.width <= picture.height else (other, side)
        if new != picture.size:
            picture = picture.resize(new, Resampling.BILINEAR)
        left, top = round((picture.width - self.size) / 2), round((picture.height - self.size) / 2)
        return picture.crop((left, top, left + self.size, top + self.size))

    def shape(self, path: Path) -> tuple[int, int, int]:
        """The shape (C, H, W) that this picture will have, from its header."""
        width, height = _opened(path, whole=False).size
        return (
            (self.channels, height, width)
            if self.size is None
            else (self.channels, self.size, self.size)
        )


def _opened(path: Path, *, whole: bool = True) -> "Image":
    """A picture of eight bits per colour without transparency, or the reason why it is none."""
    from PIL import Image, UnidentifiedImageError

    try:
        with open_regular(path) as stream, Image.open(stream) as file:
            picture: Image.Image = file
            problem = _problem(file)
            if whole and not problem:
                file.load()
                hides = file.mode in _TRANSPARENT or "transparency" in file.info
                picture = _opaque(file, path) if hides else file.copy()
    except BadFile:
        raise
    except (
        Exception
    ) as error:  # of any kind: each format has a reader of its own, and damage surprises them
        reason = (
            "it is not an image" if isinstance(error, UnidentifiedImageError) else _reason(error)
        )
        raise BadFile(
            f"{path} cannot be read: {reason}", hint="replace it or take it away"
        ) from error
    if problem:
        raise BadFile(f"{path} is {problem}", hint="convert it to 8-bit RGB or greyscale")
    return picture


def _reason(error: Exception) -> str:
    """Return what a reader said in one line, or the name of its error."""
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return " ".join(text.split()) or type(error).__name__


def _problem(file: "Image") -> str | None:
    """What eight bits per colour cannot hold would be changed silently: refuse it."""
    frames = getattr(file, "n_frames", 1)
    if frames > 1 and file.format != "MPO":  # cameras put a preview behind the picture
        return f"{frames} pictures in one file"
    is_deep = any(";16" in str(tile[3]) for tile in getattr(file, "tile", ()))
    if file.mode.startswith(("I", "F")) or is_deep:
        return f"a picture of more than 8 bits per colour (mode {file.mode})"
    if file.mode in (*_PLAIN, *_TRANSPARENT):
        return None
    return f"a {file.mode} picture, whose colours depend on a printer or a profile"


def _opaque(file: "Image", path: Path) -> "Image":
    """A picture whose transparency hides nothing, without it."""
    alpha = file.convert("RGBA").getchannel("A")
    if alpha.getextrema()[0] != 255:
        raise BadFile(
            f"{path} is transparent in places",
            hint="lay it on a background: what is below is not defined",
        )
    return file.convert("RGB")


def _file_hash(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise BadFile(
            f"{path} cannot be read: {_reason(error)}", hint="replace it or take it away"
        ) from None


@dataclass(frozen=True, eq=False)
class ImageFileSplit:
    """Pictures by path, their labels (N,) and indices (N,). All have one shape (C, H, W) once they are decoded."""

    paths: Sequence[Path]
    labels: Tensor
    index: Tensor
    decoder: Decoder
    shape: tuple[int, int, int]
    name: str = "pictures"
    workers: int = 0
    """threads that decode; 0 for one per core"""
    note: str | None = None
    """what a user should know about this split"""

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def streams(self) -> bool:
        """Whether pictures are read from their files every time."""
        return len(self) * int(np.prod(self.shape)) > LARGE

    def batch(self, positions: Tensor) -> Batch:
        """The pictures at these positions, as float32 in [0, 1]."""
        if self.streams:
            with self._pool() as pool:
                images = torch.stack(
                    list(pool.map(lambda at: self._decode(self.paths[at]), positions.tolist()))
                )
        else:
            self._read(positions)
            images = self._pixels[positions]
        return Batch(to_unit_floats(images), self.labels[positions], self.index[positions])

    def prepare(self) -> None:
        """Read everything that will be kept in memory now, so that a broken picture is met before any work."""
        if not self.streams:
            self._read(torch.arange(len(self)))

    @cached_property
    def _pixels(self) -> Tensor:
        """Room for all pictures, uint8 (N, C, H, W)."""
        return torch.empty((len(self), *self.shape), dtype=torch.uint8)

    @cached_property
    def _is_read(self) -> Tensor:
        """Which of them are there, (N,)."""
        return torch.zeros(len(self), dtype=torch.bool)

    def _read(self, positions: Tensor) -> None:
        """Decode what is not there yet."""
        missing = positions[~self._is_read[positions]].unique().tolist()
        if missing:
            with self._pool() as pool:
                placed = pool.map(
                    lambda at: self._pixels[at].copy_(self._decode(self.paths[at])), missing
                )
                for done, _ in enumerate(placed, start=1):
                    report_progress(f"reading {self.name}", done, len(missing))
            self._is_read[missing] = True

    def _pool(self) -> ThreadPoolExecutor:
        """Threads suffice: decoding and resizing let others run."""
        return ThreadPoolExecutor(self.workers or os.cpu_count())

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise BadInput(
                f"there cannot be {self.workers} workers", hint="workers=0 is one per core"
            )

    def _decode(self, path: Path) -> Tensor:
        picture = self.decoder(path)
        self._check_shape(path, tuple(picture.shape))
        return picture

    def _check_shape(self, path: Path, shape: tuple[int, ...]) -> None:
        if shape != self.shape:
            sizes = " instead of ".join(
                f"{height}x{width}" for _, height, width in (shape, self.shape)
            )
            hint = f"let all be resized and cropped to one size: size={min(self.shape[1:])}"
            raise BadFile(f"pictures have different sizes: {path} has {sizes}", hint=hint)

    def check(self) -> None:
        """Refuse pictures that could not be used, by their headers, before any work. Those that are many are met as they come."""
        if not self.streams:
            with self._pool() as pool:
                for path, shape in zip(
                    self.paths, pool.map(self.decoder.shape, self.paths), strict=True
                ):
                    self._check_shape(path, shape)

    @property
    def kept(self) -> Tensor | None:
        """All pixels, uint8 (N, C, H, W), once they are in memory."""
        return self._pixels if not self.streams and self._is_read.all() else None

    def keeping(self, pixels: Tensor) -> "ImageFileSplit":
        """The same split with all its pixels where somebody has put them."""
        other = replace(self)
        other.__dict__.update(_pixels=pixels, _is_read=torch.ones(len(self), dtype=torch.bool))
        return other

    def subset(self, positions: Tensor) -> "ImageFileSplit":
        """The pictures at these positions, as a split of their own."""
        paths = [self.paths[position] for position in positions.tolist()]
        return replace(
            self, paths=paths, labels=self.labels[positions], index=self.index[positions]
        )

    @cached_property
    def sha256(self) -> str:
        """Over the files' bytes, labels, indices and how pictures are cut: the same on every machine."""
        digest = hashlib.sha256(repr((self.decoder, self.shape)).encode())
        with self._pool() as pool:
            for content in pool.map(_file_hash, self.paths):
                digest.update(content)
        for part in (self.labels, self.index):
            digest.update(part.numpy().tobytes())
        return digest.hexdigest()
