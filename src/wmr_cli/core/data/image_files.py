"""Image files as a split: small splits are decoded once into memory, large ones when needed."""

import hashlib
import io
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import BadFile, BadInput, did_you_mean
from ...reading import open_regular
from ..contexts import report_progress
from ..protocols import Batch, to_unit_floats
from .splits import BatchReader, read_in_turn

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_SUFFIXES = (
    ".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".webp", ".tif", ".tiff",
)  # fmt: skip
MAX_BYTES_IN_MEMORY = 2 << 30
"""Size of decoded images above which a split reads its files every time."""
# modes of Pillow that convert to 8-bit RGB or greyscale without loss
_OPAQUE_MODES = ("1", "L", "P", "RGB")
_TRANSPARENT_MODES = ("LA", "PA", "RGBA", "La", "RGBa")
_MODE_OF_CHANNELS = {1: "L", 3: "RGB"}
_COLORS = {"black": (0, 0, 0), "white": (255, 255, 255)}

BACKGROUND_HINT = "background=white, black or #rrggbb puts them on that colour"

Color = tuple[int, int, int]
"""Red, green and blue in 0…255."""


class PartlyTransparent(BadFile):
    """An image file with pixels whose colour depends on the background."""


def parse_background(text: str) -> Color:
    """Return the colour of a name or of `#rrggbb`."""
    if re.fullmatch(r"#[0-9a-fA-F]{6}", text):
        red, green, blue = bytes.fromhex(text[1:])
        return red, green, blue
    if text not in _COLORS:
        known = [*_COLORS, "#rrggbb"]
        if re.fullmatch(r"[0-9a-fA-F]{6}", text):
            known = [f"#{text}"]
        raise BadInput(f"background={text} is not a colour", hint=did_you_mean(text, known))
    return _COLORS[text]


# The repr is part of the hash of a split: renaming the class or a field would make stored
# results incomparable.
@dataclass(frozen=True)
class Decoder:
    """Decodes an image file to pixels, uint8 (C, H, W).

    With `size` the shorter side is resized to `resize` (by default to `size`) and the centre is
    cropped, as by torchvision's Resize and CenterCrop. Without `size` an image keeps its size.
    Partly transparent images are composited on the `background`; without one they are refused.
    """

    channels: int = 3
    size: int | None = None
    resize: int | None = None
    # hashed apart from the repr, so that splits without a background keep their hash
    background: Color | None = field(default=None, repr=False)

    def __call__(self, path: Path) -> Tensor:
        return self._decode(_open_image(path, self.background))

    def decode(self, content: bytes, name: str) -> Tensor:
        """Decode the content of an image file; `name` stands for it in errors."""
        return self._decode(_read_image(io.BytesIO(content), name, self.background))

    def _decode(self, image: "Image") -> Tensor:
        mode = _MODE_OF_CHANNELS[self.channels]
        # `convert` copies even where nothing changes
        image = self.resize_and_crop(image if image.mode == mode else image.convert(mode))
        pixels = torch.from_numpy(np.array(image))
        return pixels.reshape(image.height, image.width, self.channels).permute(2, 0, 1)

    def resize_and_crop(self, image: "Image") -> "Image":
        """Resize the shorter side and crop the centre, if there is a `size`."""
        from PIL.Image import Resampling

        if self.size is None:
            return image
        shorter, longer = sorted(image.size)
        side = self.resize or self.size
        # torchvision rounds the longer side down, and the offsets of the crop to even
        other = side * longer // shorter
        new_size = (side, other) if image.width <= image.height else (other, side)
        left = round((new_size[0] - self.size) / 2)
        top = round((new_size[1] - self.size) / 2)
        # Pillow resizes rows, then columns: columns outside the crop need not be resized
        if new_size[0] != image.width:
            image = image.resize((new_size[0], image.height), Resampling.BILINEAR)
        image = image.crop((left, 0, left + self.size, image.height))
        if new_size[1] != image.height:
            image = image.resize((self.size, new_size[1]), Resampling.BILINEAR)
        return image.crop((0, top, self.size, top + self.size))

    def shape(self, path: Path) -> tuple[int, int, int]:
        """Return the shape (C, H, W) of the decoded image, from the header of its file."""
        width, height = _open_image(path, loads=False).size
        if self.size is None:
            return self.channels, height, width
        return self.channels, self.size, self.size


def _open_image(path: Path, background: Color | None = None, *, loads: bool = True) -> "Image":
    try:
        with open_regular(path) as stream:
            return _read_image(stream, str(path), background, loads=loads)
    except OSError as error:
        raise _cannot_be_read(str(path), _reason(error)) from error


def _read_image(
    stream: BinaryIO, name: str, background: Color | None, *, loads: bool = True
) -> "Image":
    """Read an image of 8 bits per channel, without alpha if loaded; raise BadFile for others."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(stream) as file:
            image: Image.Image = file
            problem = _find_problem(file)
            if loads and not problem:
                file.load()
                if file.mode in _TRANSPARENT_MODES or "transparency" in file.info:
                    image = _remove_alpha(file, name, background)
                # images of these formats need neither their file nor a copy once they are loaded
                elif file.format not in ("JPEG", "PNG"):
                    image = file.copy()
    except BadFile:
        raise
    except UnidentifiedImageError as error:
        raise _cannot_be_read(name, "it is not an image") from error
    # any exception: each format has its own reader, and damage can make it raise anything
    except Exception as error:
        raise _cannot_be_read(name, _reason(error)) from error
    if problem:
        raise BadFile(f"{name} is {problem}", hint="convert it to 8-bit RGB or greyscale")
    return image


def _cannot_be_read(name: str, reason: str) -> BadFile:
    return BadFile(f"{name} cannot be read: {reason}", hint="replace or remove the file")


def _reason(error: Exception) -> str:
    """Return the message of a reader in one line, or the name of its error."""
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return " ".join(text.split()) or type(error).__name__


def _find_problem(file: "Image") -> str | None:
    """Describe what Pillow would change silently in the conversion to 8 bits per channel."""
    # only some formats have these attributes
    frames = getattr(file, "n_frames", 1)
    tiles = getattr(file, "tile", ())
    # cameras append a preview to an image and call the format MPO
    if frames > 1 and file.format != "MPO":
        return f"a file of {frames} images"
    # Pillow reads 16-bit colour as 8-bit RGB; only the raw mode of its decoder shows it
    is_16_bit = any(";16" in str(tile[3]) for tile in tiles)
    if file.mode.startswith(("I", "F")) or is_16_bit:
        return f"an image of more than 8 bits per channel (mode {file.mode})"
    if file.mode in (*_OPAQUE_MODES, *_TRANSPARENT_MODES):
        return None
    return f"an image in mode {file.mode}, whose colours depend on a profile"


def _remove_alpha(file: "Image", name: str, background: Color | None) -> "Image":
    """Composite an image on the background, which is needed unless it is opaque everywhere."""
    from PIL import Image

    image = file.convert("RGBA")
    if image.getchannel("A").getextrema()[0] == 255:
        return file.convert("RGB")
    if background is None:
        raise PartlyTransparent(f"{name} is partly transparent", hint=BACKGROUND_HINT)
    canvas = Image.new("RGBA", image.size, (*background, 255))
    return Image.alpha_composite(canvas, image).convert("RGB")


def _is_refused_as_transparent(path: Path) -> bool:
    try:
        _open_image(path)
    except PartlyTransparent:
        return True
    except BadFile:
        return False
    return False


def _file_hash(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise BadFile(
            f"{path} cannot be read: {_reason(error)}", hint="replace or remove the file"
        ) from None


@dataclass(frozen=True)
class FilePaths(Sequence[Path]):
    """Paths that are kept as text, which needs a quarter of the memory."""

    names: list[str]

    @classmethod
    def of(cls, paths: Sequence[Path]) -> "FilePaths":
        """Return the same paths as text."""
        return paths if isinstance(paths, FilePaths) else cls([str(path) for path in paths])

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, position: int) -> Path: ...
    @overload
    def __getitem__(self, position: slice) -> "FilePaths": ...
    def __getitem__(self, position: int | slice) -> "Path | FilePaths":
        if isinstance(position, slice):
            return FilePaths(self.names[position])
        return Path(self.names[position])


@dataclass(frozen=True, eq=False)
class ImageFileSplit:
    """Image files, their labels (N,) and indices (N,). All decode to one shape (C, H, W)."""

    paths: Sequence[Path]
    labels: Tensor
    index: Tensor
    decoder: Decoder
    shape: tuple[int, int, int]
    name: str = "images"
    workers: int = 0
    """decoding threads; 0 for one per core"""
    note: str | None = None
    """a message to the user about this split"""

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise BadInput(f"workers={self.workers} is negative", hint="workers=0 is one per core")

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def streams(self) -> bool:
        """Whether images are read from their files every time."""
        return len(self) * int(np.prod(self.shape)) > MAX_BYTES_IN_MEMORY

    def batch(self, positions: Tensor) -> Batch:
        """Return the images at these positions, as float32 in [0, 1]."""
        with self._open_own_reader() as read:
            batch = read(positions)
        return replace(batch, images=to_unit_floats(batch.images))

    def open_reader(self) -> AbstractContextManager[BatchReader]:
        """Read batches as uint8, with threads that all batches share."""
        # a subclass may change what a batch is
        if type(self) is not ImageFileSplit:
            return read_in_turn(self.batch)
        return self._open_own_reader()

    @contextmanager
    def _open_own_reader(self) -> Iterator[BatchReader]:
        if not self.streams:
            self._allocate()
            yield self._read_kept
            return
        pool = self._make_pool()
        try:
            yield partial(self._read_files, pool)
        finally:
            # batches that were read ahead are not needed after an error or a stop
            pool.shutdown(cancel_futures=True)

    def _allocate(self) -> tuple[Tensor, Tensor]:
        """Return the memory for all images, made before several threads could each make one."""
        return self._pixels, self._is_read

    def _read_kept(self, positions: Tensor) -> Batch:
        """Return images that stay in memory."""
        self._read(positions)
        return Batch(self._pixels[positions], self.labels[positions], self.index[positions])

    def _read_files(self, pool: ThreadPoolExecutor, positions: Tensor) -> Batch:
        """Decode images in a pool of threads."""
        pixels = np.empty((len(positions), *self.shape), dtype=np.uint8)

        def store(number: int, position: int) -> None:
            # by NumPy: torch would start threads of its own for every decoding thread
            pixels[number] = self._decode(position)

        # all results: the first error is raised
        list(pool.map(store, range(len(positions)), positions.tolist()))
        return Batch(torch.from_numpy(pixels), self.labels[positions], self.index[positions])

    def prepare(self) -> None:
        """Read everything that is kept in memory now, to find damaged files before a run."""
        if not self.streams:
            self._read(torch.arange(len(self)))

    def check(self) -> None:
        """Check the headers of all files; those of a split that streams are checked when read."""
        if self.streams:
            return
        with self._make_pool() as pool:
            shapes = pool.map(self.decoder.shape, self.paths)
            for path, shape in zip(self.paths, shapes, strict=True):
                self._check_shape(path, shape)

    def subset(self, positions: Tensor) -> "ImageFileSplit":
        """Return the split of the images at these positions."""
        names = FilePaths.of(self.paths).names
        paths = FilePaths([names[position] for position in positions.tolist()])
        return replace(
            self, paths=paths, labels=self.labels[positions], index=self.index[positions]
        )

    @property
    def pixels_in_memory(self) -> Tensor | None:
        """All pixels, uint8 (N, C, H, W), once all images are in memory."""
        if self.streams or not self._is_read.all():
            return None
        return self._pixels

    def with_pixels(self, pixels: Tensor) -> "ImageFileSplit":
        """Return the same split with all its pixels (N, C, H, W), such as shared memory."""
        other = replace(self)
        # cached properties live in __dict__, which a frozen dataclass does not protect
        other.__dict__.update(_pixels=pixels, _is_read=torch.ones(len(self), dtype=torch.bool))
        return other

    def with_sha256(self, sha256: str) -> "ImageFileSplit":
        """Return the same split with its hash, which another process has computed."""
        other = replace(self)
        other.__dict__.update(sha256=sha256)
        return other

    @cached_property
    def sha256(self) -> str:
        """Hash of the files' bytes, labels, indices and decoder: the same on every machine."""
        # of the bytes, not the pixels: versions of Pillow may decode differently
        digest = hashlib.sha256(repr((self.decoder, self.shape)).encode())
        if self.decoder.background is not None:
            digest.update(bytes(self.decoder.background))
        with self._make_pool() as pool:
            for content in pool.map(_file_hash, self.paths):
                digest.update(content)
        for part in (self.labels, self.index):
            digest.update(part.numpy().tobytes())
        return digest.hexdigest()

    @cached_property
    def _pixels(self) -> Tensor:
        """Memory for all images, uint8 (N, C, H, W)."""
        return torch.empty((len(self), *self.shape), dtype=torch.uint8)

    @cached_property
    def _is_read(self) -> Tensor:
        """Which images are in memory, (N,)."""
        return torch.zeros(len(self), dtype=torch.bool)

    def _read(self, positions: Tensor) -> None:
        """Decode the images that are not in memory yet."""
        missing = positions[~self._is_read[positions]].unique().tolist()
        if not missing:
            return

        pixels = self._pixels.numpy()

        def store(position: int) -> None:
            pixels[position] = self._decode(position)

        with self._make_pool() as pool:
            try:
                for done, _ in enumerate(pool.map(store, missing), start=1):
                    report_progress(f"reading {self.name}", done, len(missing))
            except PartlyTransparent:
                self._refuse_transparent(pool)
        self._is_read[missing] = True

    def _refuse_transparent(self, pool: ThreadPoolExecutor) -> NoReturn:
        """Raise with the number of partly transparent images of this split."""
        refused = list(pool.map(_is_refused_as_transparent, self.paths))
        first = self.paths[refused.index(True)]
        raise PartlyTransparent(
            f"partly transparent images: {sum(refused):,} of {len(self):,} in this split, "
            f"such as {first}",
            hint=BACKGROUND_HINT,
        )

    def _make_pool(self) -> ThreadPoolExecutor:
        # threads suffice: Pillow releases the GIL while it decodes and resizes
        return ThreadPoolExecutor(self.workers or os.cpu_count())

    def _decode(self, position: int) -> NDArray[np.uint8]:
        path = self.paths[position]
        pixels: NDArray[np.uint8] = self.decoder(path).numpy()
        self._check_shape(path, pixels.shape)
        return pixels

    def _check_shape(self, path: Path, shape: tuple[int, ...]) -> None:
        if shape == self.shape:
            return
        found = "x".join(map(str, shape[1:]))
        expected = "x".join(map(str, self.shape[1:]))
        raise BadFile(
            f"images have different sizes: {path} has {found} instead of {expected}",
            hint=f"resize and crop all to one size: size={min(self.shape[1:])}",
        )
