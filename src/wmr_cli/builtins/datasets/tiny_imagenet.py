"""Tiny ImageNet (Stanford CS231n): 110,000 colour images, 64x64, 200 classes.

The published test set has no labels, so the labelled validation set is the test set.
"""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import torch

from ...core.data.downloads import Remote, fetch, unpack
from ...core.data.image_files import Decoder, ImageFileSplit
from ...core.data.splits import (
    LazySplits,
    Source,
    check_fraction,
    check_training_images_remain,
    holdout_mask,
)
from ...errors import BadFile
from ...reading import is_regular, read_text

FOLDER = "tiny-imagenet-200"
ARCHIVE = Remote(
    f"{FOLDER}.zip",
    (f"http://cs231n.stanford.edu/{FOLDER}.zip",),
    md5="90528d7ca1a48142e341f4ef8d21d0de",
    size=248_100_043,
)
SHAPE = (3, 64, 64)
NUM_CLASSES = 200
IMAGES_PER_CLASS = 500
"""Training images of each class."""
TRAINING_IMAGES = IMAGES_PER_CLASS * NUM_CLASSES
TEST_IMAGES = 10_000

ListedImage = tuple[Path, int, int]
"""Path, label and index of an image."""


def tiny_imagenet(
    root: Path, split_seed: int = 0, holdout: float = 0.02, workers: int = 0
) -> Source:
    """Colour images of 200 classes; a part of the files is enough, and grey images become colour.

    Classes are numbered in the order of their WordNet ids. An image keeps its official number:
    training image k of class c is 500 c + k, test image k is 100,000 + k.
    """
    check_fraction("holdout", holdout)
    folder = root / FOLDER
    if not folder.exists():
        (archive,) = fetch([ARCHIVE], root)
        unpack(archive, root, FOLDER)
    class_ids = _read_class_ids(folder)

    # cached: `train` and `val` are subsets of one split
    @cache
    def list_training() -> ImageFileSplit:
        listed = _list_training_images(folder, class_ids)
        return _make_split("training", listed, TRAINING_IMAGES, workers)

    def make_part(*, is_held_out: bool) -> ImageFileSplit:
        labels = list_training().labels
        check_training_images_remain("holdout", holdout, labels)
        is_chosen = holdout_mask(labels, holdout, split_seed) == is_held_out
        return list_training().subset(is_chosen.nonzero().squeeze(1))

    def make_test() -> ImageFileSplit:
        return _make_split("test", _list_test_images(folder, class_ids), TEST_IMAGES, workers)

    makers = {
        "train": lambda: make_part(is_held_out=False),
        "val": lambda: make_part(is_held_out=True),
        "test": make_test,
    }
    if not holdout:
        del makers["val"]
    return Source(NUM_CLASSES, SHAPE, LazySplits(makers), class_names=tuple(class_ids))


def _read_class_ids(folder: Path) -> list[str]:
    """Return the WordNet ids of the classes, sorted."""
    file = folder / "wnids.txt"
    if not is_regular(file):
        raise BadFile(
            f"{folder} has no wnids.txt",
            hint=f"move {folder} away and repeat the command, or put the file there",
        )
    # sorted: the official file is in another order, and labels must not depend on it
    class_ids = sorted(_read_official_text(file).split())
    if len(set(class_ids)) != NUM_CLASSES:
        raise BadFile(
            f"{file} names {len(set(class_ids))} classes instead of {NUM_CLASSES}",
            hint="use the official file",
        )
    return class_ids


def _read_official_text(file: Path) -> str:
    try:
        return read_text(file)
    except (OSError, ValueError) as error:
        raise BadFile(f"{file} cannot be read: {error}", hint="use the official file") from None


def _list_training_images(folder: Path, class_ids: list[str]) -> list[ListedImage]:
    listed = [
        (path, label, IMAGES_PER_CLASS * label + _number(path))
        for label, class_id in enumerate(class_ids)
        for path in (folder / "train" / class_id / "images").glob("*.JPEG")
    ]
    empty = sorted(set(range(NUM_CLASSES)) - {label for _, label, _ in listed})
    if empty:
        names = ", ".join(class_ids[label] for label in empty[:5])
        more = "…" if len(empty) > 5 else ""
        raise BadFile(
            f"{len(empty)} of {NUM_CLASSES} classes have no training images "
            f"in {folder / 'train'}: {names}{more}",
            hint="put images there, or move the folder away to download it",
        )
    # by index: the order of files in a folder differs between machines
    return sorted(listed, key=lambda image: image[2])


def _list_test_images(folder: Path, class_ids: list[str]) -> list[ListedImage]:
    """Return the images that the annotations name and that exist."""
    annotations = folder / "val" / "val_annotations.txt"
    if not is_regular(annotations):
        raise BadFile(
            f"{annotations} does not exist",
            hint="its labels are needed: move the folder away to download it again",
        )
    label_of = {class_id: label for label, class_id in enumerate(class_ids)}
    images = folder / "val" / "images"
    listed = []
    for line in _read_official_text(annotations).splitlines():
        # the file name, its class, and a bounding box
        fields = line.split("\t")
        if len(fields) < 2 or fields[1] not in label_of:
            raise BadFile(
                f"{annotations} has a line without a known class: {fields[:2]}",
                hint="use the official file",
            )
        path = images / fields[0]
        if is_regular(path):
            listed.append((path, label_of[fields[1]], TRAINING_IMAGES + _number(path)))
    if not listed:
        raise BadFile(
            f"{images} has no images of the annotations",
            hint="move the folder away to download it again",
        )
    return sorted(listed, key=lambda image: image[2])


def _number(path: Path) -> int:
    """Return the number in an official file name: 12 for `n01443537_12.JPEG`."""
    # at most nine digits: a longer number does not fit into the index
    match = re.search(r"_([0-9]{1,9})$", path.stem)
    if match is None:
        raise BadFile(
            f"{path} has no number in its name",
            hint="official names are n01443537_12.JPEG or val_12.JPEG",
        )
    return int(match[1])


def _make_split(
    name: str, listed: Iterable[ListedImage], official_count: int, workers: int
) -> ImageFileSplit:
    paths, labels, index = zip(*listed, strict=True)
    # users may put only some classes' images there, which makes results incomparable
    note = None
    if len(paths) != official_count:
        note = f"{len(paths):,} of the {official_count:,} {name} images of Tiny ImageNet exist"
    return ImageFileSplit(
        paths,
        torch.tensor(labels),
        torch.tensor(index),
        Decoder(),
        SHAPE,
        name=f"{FOLDER} {name}",
        workers=workers,
        note=note,
    )
