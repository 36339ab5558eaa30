"""Your own arrays: one .npz or .safetensors file of images and labels, with or without splits."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor

from ...core.splits import MemorySource, MemorySplit, check_share, divided
from ...errors import BadFile

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
    found, count, splits = _read(path), 0, dict[str, MemorySplit]()
    for split in ("train", "val", "test", "all"):
        images = _first(found, ("images", "x") if split == "all" else [name.format(split) for name in IMAGES])
        labels = _first(found, ("labels", "label", "y") if split == "all" else [name.format(split) for name in LABELS])
        if images is None and labels is None:
            continue
        if images is None or labels is None or len(images) != len(labels) or not len(images):
            sizes = ", ".join(f"{name} {tuple(array.shape)}" for name, array in found.items())
            raise BadFile(f"{path}: images and labels of {split!r} do not belong together ({sizes})", hint="one label per image")
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
    largest = max(int(split.labels.max()) for split in splits.values())
    return MemorySource(classes or largest + 1, divided(splits, holdout, test, split_seed))


def _read(path: Path) -> dict[str, Any]:
    """Name to array. Nothing in the file can run code."""
    if not path.is_file():
        raise BadFile(f"there is no file {path}", hint="arrays:path=… names a .npz or .safetensors file")
    try:
        if path.suffix == ".safetensors":
            from safetensors.numpy import load_file

            return dict(load_file(path))
        file = np.load(path, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise BadFile(f"{path} is a single array", hint="save images and labels together with numpy.savez")
        with file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, SafetensorError, KeyError) as error:
        hint = "save it with numpy.savez or as safetensors; object arrays would need code to load"
        raise BadFile(f"{path} cannot be read: {error}", hint=hint) from None


def _first(found: dict[str, Any], names: Iterable[str]) -> Any:
    return next((found[name] for name in names if name in found), None)


def _channels_first(images: Any, layout: str, path: Path) -> Tensor:
    """(N, C, H, W), uint8 or float32."""
    if images.dtype.kind == "f":
        images = images.astype(np.float32)
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
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or labels.min() < 0:
        raise BadFile(
            f"{path} holds labels of type {labels.dtype} and shape {labels.shape}",
            hint="labels are whole numbers from 0, one per image",
        )
    return torch.from_numpy(labels.astype(np.int64))
