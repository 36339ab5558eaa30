"""Your own arrays: one .npz or .safetensors file of images and labels, optionally with splits."""

import math
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor

from ...core.data.downloads import looks_like_html
from ...core.data.splits import MemorySource, MemorySplit, add_missing_splits, check_fraction
from ...errors import BadFile, BadInput
from ...reading import check_regular, open_regular

Array = NDArray[Any]

IMAGE_NAMES = {
    "train": ("train_images", "x_train", "X_train"),
    "val": ("val_images", "x_val", "X_val"),
    "test": ("test_images", "x_test", "X_test"),
    "all": ("images", "x"),
}
LABEL_NAMES = {
    "train": ("train_labels", "y_train", "Y_train"),
    "val": ("val_labels", "y_val", "Y_val"),
    "test": ("test_labels", "y_test", "Y_test"),
    "all": ("labels", "label", "y"),
}
"""Names of arrays by split; the first one that exists is used."""
MAX_CLASSES = 10**6
# both limits together: real images hardly compress, and small archives are harmless
MAX_UNPACKED_BYTES = 4 * 2**30
MAX_COMPRESSION_RATIO = 100
"""An archive that exceeds both is refused as a decompression bomb."""
READ_ERRORS = (
    OSError,
    ValueError,
    TypeError,
    AttributeError,
    KeyError,
    EOFError,
    RuntimeError,
    RecursionError,
    MemoryError,
    SafetensorError,
    zipfile.BadZipFile,
    zlib.error,
    SyntaxError,
    tokenize.TokenError,
)
"""What the readers of archives and arrays raise for damaged files."""


def arrays(
    root: Path,
    path: Path,
    layout: Literal["auto", "nchw", "nhwc"] = "auto",
    classes: int | None = None,
    holdout: float = 0.1,
    test: float = 0.2,
    split_seed: int = 0,
) -> MemorySource:
    """Arrays `train_images`, `train_labels`, … (or `x_train`, `y_train`, …), or `images`, `labels`.

    Images are (N, H, W), (N, H, W, C) or (N, C, H, W), bytes in 0…255 or floats in [0, 1]. Labels
    are integers from 0. Missing splits are held out as for `folder`. The number of classes is the
    largest label plus one unless given.
    """
    check_fraction("holdout", holdout)
    check_fraction("test", test)
    if classes is not None and not 2 <= classes <= MAX_CLASSES:
        raise BadInput(
            f"classes={classes} is out of range",
            hint=f"write a whole number from 2 to {MAX_CLASSES:,}, or omit classes",
        )
    found = _read_file(path)
    splits: dict[str, MemorySplit] = {}
    count = 0
    for name in ("train", "val", "test", "all"):
        split = _make_split(found, name, layout, path, first=count)
        if split is not None:
            splits[name] = split
            count += len(split)
    if not splits:
        raise BadFile(
            f"{path} has none of the expected arrays, only {', '.join(found) or 'nothing'}",
            hint="name them train_images, train_labels, test_images, test_labels, "
            "or images and labels",
        )
    shapes = {tuple(split.images.shape[1:]) for split in splits.values()}
    if len(shapes) > 1:
        raise BadFile(
            f"{path} has images of different shapes: {', '.join(map(str, sorted(shapes)))}",
            hint="use one shape for all images",
        )
    complete = add_missing_splits(splits, holdout, test, split_seed)
    # stored in checkpoints: an evaluation must not test on images that were trained on
    random_split_sha256 = None
    if "train" in complete and not {"val", "test"} & splits.keys():
        random_split_sha256 = complete["train"].sha256
    num_classes = _count_classes(splits, classes, path)
    return MemorySource(num_classes, complete, random_split_sha256=random_split_sha256)


def _make_split(
    found: Mapping[str, Array], name: str, layout: str, path: Path, *, first: int
) -> MemorySplit | None:
    """Make a split whose images are numbered from `first`; None if it has no arrays."""
    images = _first_of(found, IMAGE_NAMES[name])
    labels = _first_of(found, LABEL_NAMES[name])
    if images is None and labels is None:
        return None
    if labels is None:
        raise BadFile(
            f"{path}: images of {name!r} have no labels",
            hint=f"add an array {LABEL_NAMES[name][0]}; if `extra_labels` predicts them, zeros",
        )
    if images is None or not _is_one_label_per_image(images, labels):
        sizes = ", ".join(f"{key} {tuple(array.shape)}" for key, array in found.items())
        raise BadFile(
            f"{path}: images and labels of {name!r} do not match ({sizes})",
            hint="give both arrays, not empty, with one label per image",
        )
    pixels = _to_channels_first(images, layout, path)
    return MemorySplit(pixels, _to_labels(labels, path), first + torch.arange(len(pixels)))


def _is_one_label_per_image(images: Array, labels: Array) -> bool:
    return images.shape[:1] == labels.shape[:1] and images.shape[:1] not in ((), (0,))


def _first_of(found: Mapping[str, Array], names: Iterable[str]) -> Array | None:
    return next((found[name] for name in names if name in found), None)


def _count_classes(splits: Mapping[str, MemorySplit], classes: int | None, path: Path) -> int:
    """Return the number of classes: the largest label plus one unless given."""
    labels = torch.cat([split.labels for split in splits.values()])
    largest = int(labels.max())
    if classes is not None:
        if largest >= classes:
            raise BadFile(
                f"{path} has a label {largest}, but only {classes} classes",
                hint="labels are numbered from 0",
            )
        return classes
    # more classes than images are a mistake, and would need a huge last layer
    if largest >= max(len(labels), 2):
        raise BadFile(
            f"{path} has a label {largest} among {len(labels)} images",
            hint="number classes from 0, or add classes=…",
        )
    if largest < 1:
        raise BadFile(
            f"all images of {path} are of one class",
            hint="a classifier needs two; add classes=… if the others are in other files",
        )
    return largest + 1


def _read_file(path: Path) -> dict[str, Array]:
    """Return arrays by name.

    Reading runs no code from the file, and allocates no more memory than its bytes fill.
    """
    try:
        check_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        raise BadFile(
            f"{path} does not exist", hint="arrays:path=… names a .npz or .safetensors file"
        ) from None
    except OSError as error:
        raise BadFile(
            f"cannot read {path}: {error.strerror}",
            hint="arrays:path=… names a .npz or .safetensors file",
        ) from None
    try:
        with open_regular(path) as stream:
            return _read_stream(stream, path)
    except READ_ERRORS as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise BadFile(
            f"{path} cannot be read: {reason}",
            hint="save plain arrays with numpy.savez, or as safetensors; copy a damaged file again",
        ) from None


def _read_stream(stream: IO[bytes], path: Path) -> dict[str, Array]:
    head = stream.read(64)
    # many servers answer with a page instead of a file
    if looks_like_html(head):
        raise BadFile(f"{path} is a web page, not arrays", hint="download it again")
    if path.suffix.lower() == ".safetensors":
        from safetensors.numpy import load_file

        return dict(load_file(path))
    if head.startswith(np.lib.format.MAGIC_PREFIX):
        raise BadFile(
            f"{path} is a single array", hint="save images and labels together with numpy.savez"
        )
    return _read_npz(stream, path.stat().st_size)


def _read_npz(stream: IO[bytes], size: int) -> dict[str, Array]:
    """Read the arrays of an archive of `size` bytes; raise ValueError for false sizes."""
    with zipfile.ZipFile(stream) as archive:
        members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
        unpacked = sum(member.file_size for member in members)
        is_bomb = unpacked > MAX_UNPACKED_BYTES and unpacked > MAX_COMPRESSION_RATIO * size
        # overlapping members: their compressed sizes exceed the file
        if is_bomb or sum(member.compress_size for member in members) > size:
            raise ValueError(f"it claims to hold {unpacked:,} bytes in a file of {size:,}")
        return {
            member.filename.removesuffix(".npy"): _read_npy(archive, member) for member in members
        }


def _read_npy(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    """Read one array, after a check of its header."""
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
        else:
            shape, _, dtype = np.lib.format.read_array_header_2_0(stream)
        if dtype.hasobject:
            raise ValueError(f"{member.filename} holds objects, which need code to load")
        # numpy allocates what the header claims, whatever the file holds
        claimed = math.prod(shape) * dtype.itemsize
        available = member.file_size - stream.tell()
        if claimed != available or min(shape, default=1) < 0:
            raise ValueError(
                f"{member.filename} claims {claimed:,} bytes of values and has {available:,}"
            )
    # opened again: read_array expects to read the header itself
    with archive.open(member) as stream:
        # pickled objects could run code
        array: Array = np.lib.format.read_array(stream, allow_pickle=False)
    return array


def _to_channels_first(images: Array, layout: str, path: Path) -> Tensor:
    """Return images as (N, C, H, W), uint8 or float32."""
    if not images.size:
        raise BadFile(
            f"{path} holds images of shape {images.shape}, which have no pixels",
            hint="store images with pixels",
        )
    if images.dtype.kind == "f":
        # written so that NaN fails, too
        if not (images.min() >= 0 and images.max() <= 1):
            raise BadFile(
                f"{path} has pixels outside [0, 1]",
                hint="scale floats to [0, 1], or store bytes in 0…255",
            )
        images = images.astype(np.float32)
    elif images.dtype != np.uint8:
        raise BadFile(
            f"{path} holds images of type {images.dtype}",
            hint="images are uint8 in 0…255 or floats in [0, 1]",
        )
    if images.ndim not in (3, 4):
        raise BadFile(
            f"{path} holds images of shape {images.shape}",
            hint="images are (N, H, W), (N, H, W, C) or (N, C, H, W)",
        )
    if images.ndim == 3:
        images = images[:, None]
    elif layout == "nhwc" or (layout == "auto" and _has_channels_last(images, path)):
        return torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).contiguous()
    return torch.from_numpy(np.ascontiguousarray(images))


def _has_channels_last(images: Array, path: Path) -> bool:
    """Guess where the channels of images (N, ., ., .) are, by their number."""
    could_be_first = images.shape[1] in (1, 3)
    could_be_last = images.shape[3] in (1, 3)
    if could_be_first == could_be_last:
        raise BadFile(
            f"{path}: the channels of shape {images.shape} are ambiguous",
            hint="add layout=nchw or layout=nhwc",
        )
    return could_be_last


def _to_labels(labels: Array, path: Path) -> Tensor:
    """Return labels (N,) as int64, from (N,) or (N, 1)."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise BadFile(
            f"{path} holds labels of type {labels.dtype} and shape {labels.shape}",
            hint="labels are integers from 0, one per image",
        )
    # a label of uint64 may not fit into torch's int64
    for label in (int(labels.min()), int(labels.max())):
        if not 0 <= label < 2**63:
            raise BadFile(f"{path} has a label {label}", hint="labels are integers from 0")
    return torch.from_numpy(labels.astype(np.int64))
