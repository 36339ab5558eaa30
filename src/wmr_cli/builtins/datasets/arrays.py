"""Your own arrays: one .npz or .safetensors file of images and labels, with or without splits."""

import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor

from ...core.downloads import looks_like_a_page
from ...core.splits import MemorySource, MemorySplit, check_share, divided
from ...errors import BadFile, BadInput

IMAGES = ("{}_images", "x_{}", "X_{}")
LABELS = ("{}_labels", "y_{}", "Y_{}")


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
    check_share("holdout", holdout)
    check_share("test", test)
    if classes is not None and classes < 2:
        raise BadInput(f"a classifier of {classes} classes has nothing to tell apart", hint="classes is 2 or more, or left out")
    found, count, splits = _read(path), 0, dict[str, MemorySplit]()
    for split in ("train", "val", "test", "all"):
        images = _first(found, ("images", "x") if split == "all" else [name.format(split) for name in IMAGES])
        labels = _first(found, ("labels", "label", "y") if split == "all" else [name.format(split) for name in LABELS])
        if images is None and labels is None:
            continue
        counts = [None if part is None else part.shape[:1] for part in (images, labels)]
        if counts[0] != counts[1] or counts[0] in ((), (0,)):
            sizes = ", ".join(f"{name} {tuple(array.shape)}" for name, array in found.items())
            hint = "images and labels are both there, not empty, and one label belongs to each image"
            raise BadFile(f"{path}: images and labels of {split!r} do not belong together ({sizes})", hint=hint)
        pixels = _channels_first(images, layout, path)
        splits[split] = MemorySplit(pixels, _labels(labels, path), count + torch.arange(len(pixels)))
        count += len(pixels)
    if not splits:
        raise BadFile(
            f"{path} has none of the expected arrays, only {', '.join(found) or 'nothing'}",
            hint="name them train_images, train_labels, test_images, test_labels, or images and labels",
        )
    shapes = {tuple(split.images.shape[1:]) for split in splits.values()}
    if len(shapes) > 1:
        raise BadFile(f"{path} has images of different shapes: {', '.join(map(str, sorted(shapes)))}", hint="one shape for all")
    made = divided(splits, holdout, test, split_seed)
    drawn = None if "test" in splits or "val" in splits or "train" not in made else made["train"].sha256
    return MemorySource(_classes(splits, classes, path), made, drawn=drawn)


def _classes(splits: Mapping[str, MemorySplit], classes: int | None, path: Path) -> int:
    """How many classes there are: one more than the largest label unless the user says more."""
    labels = torch.cat([split.labels for split in splits.values()])
    largest = int(labels.max())
    if classes is None and largest >= max(len(labels), 2):
        raise BadFile(f"{path} has a label {largest} among {len(labels)} images", hint="number classes from 0, or say classes=…")
    if classes is not None and largest >= classes:
        raise BadFile(f"{path} has a label {largest}, which {classes} classes do not have", hint="labels are numbered from 0")
    if classes is None and largest < 1:
        raise BadFile(
            f"all images of {path} are of one class", hint="a classifier needs two; say classes=… if the others are elsewhere"
        )
    return classes or largest + 1


def _read(path: Path) -> dict[str, Any]:
    """Name to array. Nothing in the file can run code."""
    if not path.is_file():
        raise BadFile(f"there is no file {path}", hint="arrays:path=… names a .npz or .safetensors file")
    with path.open("rb") as stream:
        if looks_like_a_page(stream.read(64)):
            raise BadFile(f"{path} is a web page, not arrays", hint="download it again")
    try:
        if path.suffix.lower() == ".safetensors":
            from safetensors.numpy import load_file

            return dict(load_file(path))
        with path.open("rb") as stream:
            file = np.load(stream, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise BadFile(f"{path} is a single array", hint="save images and labels together with numpy.savez")
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, SafetensorError, KeyError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        reason = "it holds objects that only code can make" if "allow_pickle" in str(error) else str(error)
        hint = "save plain arrays with numpy.savez, or as safetensors; a damaged file has to be copied again"
        raise BadFile(f"{path} cannot be read: {reason}", hint=hint) from None


def _first(found: dict[str, Any], names: Iterable[str]) -> Any:
    return next((found[name] for name in names if name in found), None)


def _channels_first(images: Any, layout: str, path: Path) -> Tensor:
    """(N, C, H, W), uint8 or float32."""
    if images.dtype.kind == "f":
        images = images.astype(np.float32)
        if not (images.min() >= 0 and images.max() <= 1):  # nor with a NaN
            raise BadFile(f"{path} has pixels outside [0, 1]", hint="scale floats to [0, 1], or store bytes in 0…255")
    elif images.dtype != np.uint8:
        raise BadFile(f"{path} holds images of type {images.dtype}", hint="images are uint8 in 0…255 or floats in [0, 1]")
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim != 4:
        raise BadFile(f"{path} holds images of shape {images.shape}", hint="images are (N, H, W), (N, H, W, C) or (N, C, H, W)")
    elif layout == "auto":
        first, last = images.shape[1] in (1, 3), images.shape[3] in (1, 3)
        if first == last:
            raise BadFile(f"{path}: where are the channels of {images.shape}?", hint="say layout=nchw or layout=nhwc")
        layout = "nchw" if first else "nhwc"
    tensor = torch.from_numpy(np.ascontiguousarray(images))
    return tensor.permute(0, 3, 1, 2).contiguous() if layout == "nhwc" else tensor


def _labels(labels: Any, path: Path) -> Tensor:
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim == 1 and labels.dtype.kind in "iu" and labels.min() < 0:
        raise BadFile(f"{path} has a label {labels.min()}", hint="labels are whole numbers from 0")
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise BadFile(
            f"{path} holds labels of type {labels.dtype} and shape {labels.shape}",
            hint="labels are whole numbers from 0, one per image",
        )
    return torch.from_numpy(labels.astype(np.int64))
