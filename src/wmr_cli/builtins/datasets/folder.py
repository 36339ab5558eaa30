"""Your own pictures: a folder per class, with or without folders train, val and test above them."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from ...core.data.image_files import ENDINGS, Decoder, ImageFileSplit
from ...core.data.splits import Source, add_missing_splits, check_fraction
from ...errors import BadFile, BadInput
from ...reading import is_folder

SPLITS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}
"""Folders that are splits and not classes."""
LARGEST = 4096


def folder(
    root: Path,
    path: Path,
    size: int | None = None,
    resize: int | None = None,
    channels: int = 3,
    holdout: float = 0.1,
    test: float = 0.2,
    workers: int = 0,
    split_seed: int = 0,
) -> Source:
    """`path/CLASS/*.png` and so on; classes are numbered in the order of their names.

    Without split folders `test` of every class is tested on and `holdout` of the rest validates, chosen by `split_seed`;
    the split `all` is everything. With `train` and `val` but no `test`, `val` is tested on. With `size` the shorter side
    is brought to `resize` (or `size`) and the middle is cut out.
    """
    if channels not in (1, 3):
        raise BadInput(
            f"pictures cannot have {channels} channels",
            hint="channels=3 for colour, channels=1 for grey",
        )
    if size is not None and not 1 <= size <= (resize or size) <= LARGEST:
        problem = f"a square of side {size} cannot be cut from pictures of side {resize or size}"
        raise BadInput(
            problem, hint=f"size is at least 1, at most resize, and both are at most {LARGEST}"
        )
    if size is None and resize is not None:
        raise BadInput("resize alone leaves sides of different length", hint="say size=… too")
    check_fraction("holdout", holdout)
    check_fraction("test", test)
    places = _places(path)
    names = _classes(places.get("train") or next(iter(places.values())))
    decoder, splits, count = Decoder(channels, size, resize), dict[str, ImageFileSplit](), 0
    for split, place in places.items():
        paths, labels = _pictures(place, names)
        shape = next(iter(splits.values())).shape if splits else decoder.shape(paths[0])
        index = count + torch.arange(len(paths))
        there = set(labels.tolist())
        lacking = [name for label, name in enumerate(names) if label not in there]
        note = f"there are no pictures of {', '.join(lacking[:5])} in {place}" if lacking else None
        splits[split] = ImageFileSplit(
            paths, labels, index, decoder, shape, f"{path.name} {split}", workers, note
        )
        splits[split].check()
        count += len(paths)
    made = add_missing_splits(splits, holdout, test, split_seed)
    drawn = (
        None
        if "test" in splits or "val" in splits or "train" not in made
        else _membership(made["train"], path)
    )
    return Source(len(names), shape, made, class_names=tuple(names), random_split_sha256=drawn)


def _membership(split: ImageFileSplit, path: Path) -> str:
    """A hash over the names of the pictures that are trained on."""
    digest = hashlib.sha256()
    for picture in split.paths:
        digest.update(os.fsencode(picture.relative_to(path)) + b"\0")
    return digest.hexdigest()


def _places(path: Path) -> dict[str, Path]:
    """The folder of class folders of each split; `all` where there are no splits."""
    if not is_folder(path):
        raise BadFile(
            f"there is no folder {path}",
            hint="folder:path=… names a folder that holds a folder per class",
        )
    inside = _folders(path)
    splits = {place: SPLITS[place.name.lower()] for place in inside if place.name.lower() in SPLITS}
    if not splits:
        return {"all": path}
    others = [place.name for place in inside if place not in splits]
    if others or len(set(splits.values())) < len(splits):
        listed = ", ".join(place.name for place in inside[:6])
        hint = "keep either train, val, test or class folders there; a class of such a name needs another"
        raise BadFile(f"{path} mixes splits and other folders: {listed}", hint=hint)
    return {
        split: place
        for name in ("train", "val", "test")
        for place, split in splits.items()
        if split == name
    }


def _classes(place: Path) -> list[str]:
    names = [folder.name for folder in _folders(place)]
    if len(names) < 2:
        found = f"only {names[0]}" if names else "none"
        raise BadFile(
            f"a classifier needs two class folders at least, {place} has {found}",
            hint="put every class into its own folder",
        )
    unreadable = next((name for name in names if not _is_text(name)), None)
    if unreadable is not None:  # class names are stored in checkpoints and records, which are UTF-8
        raise BadFile(
            f"the name of class {unreadable!a} in {place} is not UTF-8", hint="rename the folder"
        )
    return names


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _pictures(place: Path, names: list[str]) -> tuple[list[Path], Tensor]:
    """Paths and labels (N,), class by class in the order of names."""
    unknown = [folder.name for folder in _folders(place) if folder.name not in names]
    if unknown:
        raise BadFile(
            f"{place} has classes that are not trained on: {', '.join(unknown[:5])}",
            hint=f"the classes are {', '.join(names[:9])}",
        )
    listed = [(path, label) for label, name in enumerate(names) for path in _files(place / name)]
    if not listed:
        raise BadFile(f"{place} holds no pictures", hint=f"pictures end in {', '.join(ENDINGS)}")
    return [path for path, _ in listed], torch.tensor([label for _, label in listed])


def _files(folder: Path) -> list[Path]:
    """The pictures of one class; a class that has a folder has pictures."""
    listed = _walk(folder) if folder.exists() else ()
    shown = (
        path
        for path in listed
        if not any(part.startswith((".", "__")) for part in path.relative_to(folder).parts)
    )
    found = sorted(path for path in shown if path.suffix.lower() in ENDINGS)
    if folder.exists() and not found:
        raise BadFile(
            f"{folder} holds no pictures",
            hint=f"remove the folder, or fill it: pictures end in {', '.join(ENDINGS)}",
        )
    return found


def _walk(folder: Path) -> Iterator[Path]:
    """Yield all files below a folder. Links are followed, but each folder is visited once: links can form cycles."""
    visited: set[str] = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        folders[:] = [] if real in visited else sorted(folders)
        names = [] if real in visited else names
        visited.add(real)
        yield from (Path(place) / name for name in names)


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(
            item
            for item in path.iterdir()
            if item.is_dir() and not item.name.startswith((".", "__"))
        )
    except OSError as error:
        raise BadFile(
            f"cannot read {path}: {error.strerror}",
            hint="check its permissions, and the links inside it",
        ) from None
