"""Tiny ImageNet (Stanford CS231n): 110,000 colour images, 64x64, 200 classes. The labelled validation set is the test set."""

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

TOP = "tiny-imagenet-200"
ARCHIVE = Remote(
    f"{TOP}.zip",
    (f"http://cs231n.stanford.edu/{TOP}.zip",),
    md5="90528d7ca1a48142e341f4ef8d21d0de",
    size=248_100_043,
)
SHAPE = (3, 64, 64)
PER_CLASS, CLASSES = 500, 200


def tiny_imagenet(
    root: Path, split_seed: int = 0, holdout: float = 0.02, workers: int = 0
) -> Source:
    """Pictures that are there by hand are counted and used, even if they are only a part. Greyscale ones become colour ones.

    Classes are numbered in the order of their WordNet ids. An image keeps its official number: training image k of class c
    is 500 c + k, test image k is 100,000 + k.
    """
    check_fraction("holdout", holdout)
    folder = root / TOP
    if not folder.exists():
        (archive,) = fetch([ARCHIVE], root)
        unpack(archive, root, TOP)
    wnids = _class_ids(folder)

    @cache
    def training() -> ImageFileSplit:
        return _pictures("training", _training_files(folder, wnids), PER_CLASS * CLASSES, workers)

    def part(validates: bool) -> ImageFileSplit:
        check_training_images_remain("holdout", holdout, training().labels)
        chosen = holdout_mask(training().labels, holdout, split_seed) == validates
        return training().subset(chosen.nonzero().squeeze(1))

    def test() -> ImageFileSplit:
        return _pictures("test", _test_files(folder, wnids), 10_000, workers)

    makers = {"train": lambda: part(False), "val": lambda: part(True), "test": test}
    if not holdout:
        del makers["val"]
    return Source(CLASSES, SHAPE, LazySplits(makers), class_names=tuple(wnids))


def _class_ids(folder: Path) -> list[str]:
    file = folder / "wnids.txt"
    if not is_regular(file):
        raise BadFile(
            f"{folder} has no wnids.txt",
            hint=f"move {folder} away and repeat the command, or put the file there",
        )
    wnids = sorted(_text(file).split())
    if len(set(wnids)) != CLASSES:
        raise BadFile(
            f"{file} names {len(set(wnids))} classes instead of {CLASSES}",
            hint="take the official file",
        )
    return wnids


def _text(file: Path) -> str:
    try:
        return read_text(file)
    except (OSError, ValueError) as error:
        raise BadFile(f"{file} cannot be read: {error}", hint="take the official file") from None


Found = tuple[Path, int, int]
"""A picture's path, its label and its index."""


def _training_files(folder: Path, wnids: list[str]) -> list[Found]:
    found = [
        (path, label, PER_CLASS * label + _number(path))
        for label, wnid in enumerate(wnids)
        for path in (folder / "train" / wnid / "images").glob("*.JPEG")
    ]
    empty = sorted(set(range(CLASSES)) - {label for _, label, _ in found})
    if empty:
        names = ", ".join(wnids[label] for label in empty[:5])
        problem = f"{len(empty)} of {CLASSES} classes have no training pictures in {folder / 'train'}: {names}"
        raise BadFile(
            problem + ("…" if len(empty) > 5 else ""),
            hint="put pictures there, or move the folder away to download it",
        )
    return sorted(found, key=lambda item: item[2])


def _test_files(folder: Path, wnids: list[str]) -> list[Found]:
    """Every picture that the annotations name and that is there."""
    annotations, label_of = (
        folder / "val" / "val_annotations.txt",
        {wnid: label for label, wnid in enumerate(wnids)},
    )
    if not is_regular(annotations):
        raise BadFile(
            f"{annotations} is not there",
            hint="its labels are needed: move the folder away to download it again",
        )
    lines = [line.split("\t") for line in _text(annotations).splitlines()]
    unknown = next((line[:2] for line in lines if len(line) < 2 or line[1] not in label_of), None)
    if unknown:
        raise BadFile(
            f"{annotations} has a line without a known class: {unknown}",
            hint="take the official file",
        )
    named = [(folder / "val" / "images" / name, label_of[wnid]) for name, wnid, *_ in lines]
    found = [
        (path, label, PER_CLASS * CLASSES + _number(path))
        for path, label in named
        if is_regular(path)
    ]
    if not found:
        raise BadFile(
            f"there are no pictures in {folder / 'val' / 'images'}",
            hint="move the folder away to download it again",
        )
    return sorted(found, key=lambda item: item[2])


def _number(path: Path) -> int:
    """`n01443537_12.JPEG` is number 12 of its class."""
    match = re.search(r"_([0-9]{1,9})$", path.stem)
    if match is None:
        raise BadFile(
            f"{path} has no number in its name",
            hint="official pictures are called n01443537_12.JPEG or val_12.JPEG",
        )
    return int(match[1])


def _pictures(name: str, found: Iterable[Found], official: int, workers: int) -> ImageFileSplit:
    paths, labels, index = zip(*found, strict=True)
    is_whole = len(paths) == official
    note = (
        None
        if is_whole
        else f"{len(paths):,} of the {official:,} {name} pictures of Tiny ImageNet are there"
    )
    return ImageFileSplit(
        paths,
        torch.tensor(labels),
        torch.tensor(index),
        Decoder(),
        SHAPE,
        f"{TOP} {name}",
        workers,
        note,
    )
