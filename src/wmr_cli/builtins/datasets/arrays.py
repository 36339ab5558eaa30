"""Your own arrays: one .npz or .safetensors file of images and labels, with or without splits."""

import math
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor

from ...core.data.downloads import looks_like_html
from ...core.data.splits import MemorySource, MemorySplit, add_missing_splits, check_fraction
from ...errors import BadFile, BadInput
from ...reading import check_regular, open_regular

IMAGES = ("{}_images", "x_{}", "X_{}")
LABELS = ("{}_labels", "y_{}", "Y_{}")
MOST_CLASSES = 10**6
MOST_UNPACKED = 4 * 2**30
MOST_RATIO = 100
"""An archive of more than these bytes, which are so many times those of the file, is not of images."""
BROKEN = (
    *(
        OSError,
        ValueError,
        TypeError,
        AttributeError,
        KeyError,
        EOFError,
        RuntimeError,
        RecursionError,
        MemoryError,
    ),
    *(SafetensorError, zipfile.BadZipFile, zlib.error, SyntaxError, tokenize.TokenError),
)
"""What the readers of archives and arrays raise at a damaged file."""


def arrays(
    root: Path,
    path: Path,
    layout: Literal["auto", "nchw", "nhwc"] = "auto",
    classes: int | None = None,
    holdout: float = 0.1,
    test: float = 0.2,
    split_seed: int = 0,
) -> MemorySource:
    """Arrays `train_images`, `train_labels`, `test_images`, … (or `x_train`, `y_train`, …), or just `images` and `labels`.

    Images are (N, H, W), (N, H, W, C) or (N, C, H, W), bytes in 0…255 or floats in [0, 1]; labels are whole numbers from 0.
    What is not there is held out as for `folder`; the number of classes is one more than the largest label unless given.
    """
    check_fraction("holdout", holdout)
    check_fraction("test", test)
    if classes is not None and not 2 <= classes <= MOST_CLASSES:
        hint = f"classes is a number from 2 to {MOST_CLASSES:,}, or left out"
        raise BadInput(f"{classes} is not a number of classes", hint=hint)
    found, count, splits = _read(path), 0, dict[str, MemorySplit]()
    for split in ("train", "val", "test", "all"):
        images = _first(
            found, ("images", "x") if split == "all" else [name.format(split) for name in IMAGES]
        )
        labels = _first(
            found,
            ("labels", "label", "y") if split == "all" else [name.format(split) for name in LABELS],
        )
        if images is None and labels is None:
            continue
        counts = [None if part is None else part.shape[:1] for part in (images, labels)]
        if counts[0] != counts[1] or counts[0] in ((), (0,)):
            sizes = ", ".join(f"{name} {tuple(array.shape)}" for name, array in found.items())
            hint = (
                "images and labels are both there, not empty, and one label belongs to each image"
            )
            raise BadFile(
                f"{path}: images and labels of {split!r} do not belong together ({sizes})",
                hint=hint,
            )
        pixels = _channels_first(images, layout, path)
        splits[split] = MemorySplit(
            pixels, _labels(labels, path), count + torch.arange(len(pixels))
        )
        count += len(pixels)
    if not splits:
        raise BadFile(
            f"{path} has none of the expected arrays, only {', '.join(found) or 'nothing'}",
            hint="name them train_images, train_labels, test_images, test_labels, or images and labels",
        )
    shapes = {tuple(split.images.shape[1:]) for split in splits.values()}
    if len(shapes) > 1:
        raise BadFile(
            f"{path} has images of different shapes: {', '.join(map(str, sorted(shapes)))}",
            hint="one shape for all",
        )
    made = add_missing_splits(splits, holdout, test, split_seed)
    drawn = (
        None if "test" in splits or "val" in splits or "train" not in made else made["train"].sha256
    )
    return MemorySource(_classes(splits, classes, path), made, random_split_sha256=drawn)


def _classes(splits: Mapping[str, MemorySplit], classes: int | None, path: Path) -> int:
    """How many classes there are: one more than the largest label unless the user says more."""
    labels = torch.cat([split.labels for split in splits.values()])
    largest = int(labels.max())
    if classes is None and largest >= max(len(labels), 2):
        raise BadFile(
            f"{path} has a label {largest} among {len(labels)} images",
            hint="number classes from 0, or say classes=…",
        )
    if classes is not None and largest >= classes:
        raise BadFile(
            f"{path} has a label {largest}, which {classes} classes do not have",
            hint="labels are numbered from 0",
        )
    if classes is None and largest < 1:
        raise BadFile(
            f"all images of {path} are of one class",
            hint="a classifier needs two; say classes=… if the others are elsewhere",
        )
    return classes or largest + 1


def _read(path: Path) -> dict[str, Any]:
    """Return arrays by name. Nothing in the file can run code, or claim memory that its bytes do not fill."""
    named = "arrays:path=… names a .npz or .safetensors file"
    try:
        check_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        raise BadFile(f"there is no file {path}", hint=named) from None
    except OSError as error:
        raise BadFile(f"cannot read {path}: {error.strerror}", hint=named) from None
    try:
        with open_regular(path) as stream:
            head = stream.read(64)
            if looks_like_html(head):
                raise BadFile(f"{path} is a web page, not arrays", hint="download it again")
            if path.suffix.lower() == ".safetensors":
                from safetensors.numpy import load_file

                return dict(load_file(path))
            if head.startswith(np.lib.format.MAGIC_PREFIX):
                raise BadFile(
                    f"{path} is a single array",
                    hint="save images and labels together with numpy.savez",
                )
            return _npz(stream, path.stat().st_size)
    except BROKEN as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        hint = "save plain arrays with numpy.savez, or as safetensors; a damaged file has to be copied again"
        raise BadFile(f"{path} cannot be read: {reason}", hint=hint) from None


def _npz(stream: IO[bytes], size: int) -> dict[str, Any]:
    """Return the arrays of an archive of `size` bytes; raise ValueError for one that claims more than it holds."""
    with zipfile.ZipFile(stream) as archive:
        members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
        unpacked = sum(member.file_size for member in members)
        is_bomb = unpacked > MOST_UNPACKED and unpacked > MOST_RATIO * size
        if is_bomb or sum(member.compress_size for member in members) > size:
            raise ValueError(f"it claims to hold {unpacked:,} bytes in a file of {size:,}")
        return {member.filename.removesuffix(".npy"): _npy(archive, member) for member in members}


def _npy(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Any:
    """Return one array. Its header is checked first, because numpy allocates what the header claims."""
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        read_header = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read_header(stream)
        if dtype.hasobject:
            raise ValueError(f"{member.filename} holds objects that only code can make")
        claimed, there = math.prod(shape) * dtype.itemsize, member.file_size - stream.tell()
        if claimed != there or min(shape, default=1) < 0:
            raise ValueError(
                f"{member.filename} claims {claimed:,} bytes of values and has {there:,}"
            )
    with archive.open(member) as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


def _first(found: dict[str, Any], names: Iterable[str]) -> Any:
    return next((found[name] for name in names if name in found), None)


def _channels_first(images: Any, layout: str, path: Path) -> Tensor:
    """Return images as (N, C, H, W), uint8 or float32."""
    if not images.size:
        raise BadFile(
            f"{path} holds images of shape {images.shape}, which have no pixels",
            hint="store images with pixels",
        )
    if images.dtype.kind == "f":
        if not (images.min() >= 0 and images.max() <= 1):  # nor with a NaN
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
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim != 4:
        raise BadFile(
            f"{path} holds images of shape {images.shape}",
            hint="images are (N, H, W), (N, H, W, C) or (N, C, H, W)",
        )
    elif layout == "auto":
        first, last = images.shape[1] in (1, 3), images.shape[3] in (1, 3)
        if first == last:
            raise BadFile(
                f"{path}: where are the channels of {images.shape}?",
                hint="say layout=nchw or layout=nhwc",
            )
        layout = "nchw" if first else "nhwc"
    tensor = torch.from_numpy(np.ascontiguousarray(images))
    return tensor.permute(0, 3, 1, 2).contiguous() if layout == "nhwc" else tensor


def _labels(labels: Any, path: Path) -> Tensor:
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    # a label of uint64 may not fit into the int64 of torch
    if (
        labels.ndim == 1
        and labels.dtype.kind in "iu"
        and not 0 <= int(labels.min()) <= int(labels.max()) < 2**63
    ):
        worst = labels.min() if labels.min() < 0 else labels.max()
        raise BadFile(f"{path} has a label {worst}", hint="labels are whole numbers from 0")
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise BadFile(
            f"{path} holds labels of type {labels.dtype} and shape {labels.shape}",
            hint="labels are whole numbers from 0, one per image",
        )
    return torch.from_numpy(labels.astype(np.int64))
