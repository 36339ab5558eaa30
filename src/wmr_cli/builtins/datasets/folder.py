"""Your own image files: a folder per class, optionally inside folders train, val and test."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from ...core.data.image_files import (
    IMAGE_SUFFIXES,
    Decoder,
    FilePaths,
    ImageFileSplit,
    parse_background,
)
from ...core.data.splits import Source, add_missing_splits, check_fraction
from ...errors import BadFile, BadInput
from ...reading import is_folder

SPLIT_OF_FOLDER = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}
"""Names of folders that are splits and not classes."""
MAX_SIDE = 4096
"""Largest side of an image in pixels."""
IGNORED_PREFIXES = (".", "__")
"""Names that other tools create, such as .DS_Store and __MACOSX."""


def folder(
    root: Path,
    path: Path,
    size: int | None = None,
    resize: int | None = None,
    channels: int = 3,
    background: str | None = None,
    holdout: float = 0.1,
    test: float = 0.2,
    workers: int = 0,
    split_seed: int = 0,
) -> Source:
    """`path/CLASS/*.png` and so on; classes are numbered in the order of their names.

    Without split folders, `test` of every class is the test set and `holdout` of the rest is the
    validation set, chosen by `split_seed`; the split `all` has every image. With `train` and `val`
    but no `test`, `val` is the test set. With `size` the shorter side is resized to `resize` (or
    `size`) and the centre is cropped. Partly transparent images are composited on the colour
    `background`, and refused without it.
    """
    _check_sizes(size, resize, channels)
    check_fraction("holdout", holdout)
    check_fraction("test", test)
    color = None if background is None else parse_background(background)
    folders = _find_split_folders(path)
    class_names = _list_classes(folders.get("train") or next(iter(folders.values())))
    decoder = Decoder(channels, size, resize, color)
    shape: tuple[int, int, int] | None = None
    splits: dict[str, ImageFileSplit] = {}
    count = 0
    for name, place in folders.items():
        paths, labels = _list_images(place, class_names)
        # the first image decides; `check` compares all others with it
        shape = shape or decoder.shape(paths[0])
        splits[name] = ImageFileSplit(
            paths,
            labels,
            index=count + torch.arange(len(paths)),
            decoder=decoder,
            shape=shape,
            name=f"{path.name} {name}",
            workers=workers,
            note=_note_empty_classes(labels, class_names, place),
        )
        # headers only: all files are checked before a run starts, without decoding them
        splits[name].check()
        count += len(paths)
    assert shape is not None
    complete = add_missing_splits(splits, holdout, test, split_seed)
    # stored in checkpoints: an evaluation must not test on images that were trained on
    random_split_sha256 = None
    if "train" in complete and not {"val", "test"} & splits.keys():
        random_split_sha256 = _hash_names(complete["train"], path)
    return Source(
        len(class_names),
        shape,
        complete,
        class_names=tuple(class_names),
        random_split_sha256=random_split_sha256,
    )


def _check_sizes(size: int | None, resize: int | None, channels: int) -> None:
    if channels not in (1, 3):
        raise BadInput(
            f"channels={channels} is not 1 or 3", hint="channels=3 for colour, channels=1 for grey"
        )
    if size is None and resize is not None:
        raise BadInput("resize alone leaves sides of different length", hint="add size=…")
    if size is not None and not 1 <= size <= (resize or size) <= MAX_SIDE:
        raise BadInput(
            f"a square of side {size} cannot be cropped from images of side {resize or size}",
            hint=f"size is at least 1, at most resize, and both are at most {MAX_SIDE}",
        )


def _note_empty_classes(labels: Tensor, class_names: list[str], place: Path) -> str | None:
    """Return a message about classes without images, if any."""
    present = set(labels.tolist())
    empty = [name for label, name in enumerate(class_names) if label not in present]
    if not empty:
        return None
    return f"{place} has no images of {', '.join(empty[:5])}"


def _hash_names(split: ImageFileSplit, path: Path) -> str:
    """Hash the names of the images of a split."""
    digest = hashlib.sha256()
    # FilePaths of this folder: a path object for each name would take seconds
    start = len(str(path / "x")) - 1
    for name in FilePaths.of(split.paths).names:
        # NUL separates names: no file name contains it
        digest.update(os.fsencode(name[start:]) + b"\0")
    return digest.hexdigest()


def _find_split_folders(path: Path) -> dict[str, Path]:
    """Return the folder of class folders of each split; `all` without split folders."""
    if not is_folder(path):
        raise BadFile(
            f"{path} is not a folder",
            hint="folder:path=… names a folder with a folder per class",
        )
    inside = _list_folders(path)
    split_of = {
        place: SPLIT_OF_FOLDER[place.name.lower()]
        for place in inside
        if place.name.lower() in SPLIT_OF_FOLDER
    }
    if not split_of:
        return {"all": path}
    has_duplicates = len(set(split_of.values())) < len(split_of)
    if has_duplicates or len(split_of) < len(inside):
        listed = ", ".join(place.name for place in inside[:6])
        raise BadFile(
            f"{path} mixes splits and other folders: {listed}",
            hint="keep either train, val, test or class folders there; rename a class of that name",
        )
    folder_of = {split: place for place, split in split_of.items()}
    # a fixed order: images are numbered through the splits
    return {split: folder_of[split] for split in ("train", "val", "test") if split in folder_of}


def _list_classes(place: Path) -> list[str]:
    names = [folder.name for folder in _list_folders(place)]
    if len(names) < 2:
        found = f"only {names[0]}" if names else "none"
        raise BadFile(
            f"a classifier needs at least two class folders, {place} has {found}",
            hint="put every class into its own folder",
        )
    for name in names:
        # class names are stored in checkpoints and records, which are UTF-8
        try:
            name.encode()
        except UnicodeEncodeError:
            raise BadFile(
                f"the name of class {name!a} in {place} is not UTF-8", hint="rename the folder"
            ) from None
    return names


def _list_images(place: Path, class_names: list[str]) -> tuple[FilePaths, Tensor]:
    """Return paths and labels (N,), class by class in the order of names."""
    # an image of an unknown class has no label
    unknown = [folder.name for folder in _list_folders(place) if folder.name not in class_names]
    if unknown:
        raise BadFile(
            f"{place} has classes that the training set does not have: {', '.join(unknown[:5])}",
            hint=f"the classes are {', '.join(class_names[:9])}",
        )
    paths: list[str] = []
    sizes: list[int] = []
    for name in class_names:
        found = _list_class(place / name)
        paths += found
        sizes.append(len(found))
    if not paths:
        raise BadFile(
            f"{place} has no images", hint=f"image files end in {', '.join(IMAGE_SUFFIXES)}"
        )
    return FilePaths(paths), torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))


def _list_class(folder: Path) -> list[str]:
    """Return the images of one class; an existing folder must have some."""
    if not folder.exists():
        return []
    # by the parts of a path: a separator sorts before all other characters
    images = sorted(_find_images(folder), key=lambda name: name.replace(os.sep, "\0"))
    if not images:
        raise BadFile(
            f"{folder} has no images",
            hint=f"remove the folder, or add image files: {', '.join(IMAGE_SUFFIXES)}",
        )
    return images


def _find_images(folder: Path) -> Iterator[str]:
    """Yield the paths of all images below a folder, through links.

    Paths are text: there may be millions of them.
    """
    visited: set[str] = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        # each folder once: links can form cycles
        real = os.path.realpath(place)
        if real in visited:
            folders.clear()
            continue
        visited.add(real)
        folders.sort()
        inside = Path(place).relative_to(folder)
        if any(part.startswith(IGNORED_PREFIXES) for part in inside.parts):
            continue
        for name in names:
            is_ignored = name.startswith(IGNORED_PREFIXES)
            if name.lower().endswith(IMAGE_SUFFIXES) and not is_ignored:
                yield f"{place}{os.sep}{name}"


def _list_folders(path: Path) -> list[Path]:
    try:
        return sorted(
            item
            for item in path.iterdir()
            if item.is_dir() and not item.name.startswith(IGNORED_PREFIXES)
        )
    except OSError as error:
        raise BadFile(
            f"cannot read {path}: {error.strerror}",
            hint="check its permissions, and the links inside it",
        ) from None
