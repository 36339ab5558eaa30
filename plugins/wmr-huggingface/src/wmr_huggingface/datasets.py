"""Datasets of the hub and folders that the package `datasets` reads: images with one label."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wmr_cli import BadFile, BadInput, UnknownName, did_you_mean
from wmr_cli.core import (
    Decoder,
    LazySplits,
    MemorySplit,
    Source,
    holdout_mask,
    parse_background,
    report_progress,
)

from .hub import Place, explain_errors

VALIDATION_NAMES = ("validation", "val", "valid", "dev")
TEST_NAMES = ("test", "testing")
MAX_BYTES = 16 << 30
"""Images of a split stay in memory, so larger splits are refused."""
Table = Any
"""A `datasets.Dataset`, which has no types."""


def from_hub(
    name: str | None = None,
    path: Path | None = None,
    revision: str | None = None,
    config: str | None = None,
    split: str | None = None,
    train: str = "train",
    val: str | None = None,
    image: str | None = None,
    label: str | None = None,
    size: int | None = None,
    resize: int | None = None,
    channels: int = 3,
    background: str | None = None,
    holdout: float = 0.1,
    test: float = 0.2,
    split_seed: int = 0,
) -> Source:
    """Read images and labels; `split`, `train` and `val` name the dataset's splits.

    `split` is the test set: by default `test`, else the validation set, else a random fraction
    `test`. Without a validation set, `holdout` of the training images is chosen at random.
    """
    place = Place(name, path, revision)
    _check_numbers(channels, holdout, test)
    tables = _load_tables(place, config)
    columns = _find_columns(next(iter(tables.values())), place, image, label)
    classes = _read_classes(tables, columns)
    parts, is_random = _choose_parts(tables, columns, classes, place, _Names(split, train, val))
    color = None if background is None else parse_background(background)
    decoder = Decoder(channels, size, resize, color)
    parts = _hold_out(parts, holdout, test, split_seed)
    first = next(iter(parts.values()))
    # the first image decides, and the others are compared with it when a split is read
    example = next(first.rows([0]))[columns.image]
    shape = _to_pixels(example, decoder, place).shape
    readers = {
        key: cache(partial(_read_split, part, columns, decoder, tuple(shape), place))
        for key, part in parts.items()
    }
    return Source(
        len(classes.names),
        (channels, shape[1], shape[2]),
        LazySplits(readers),
        class_names=classes.names if classes.are_named else None,
        random_split_sha256=_hash_images(parts["train"], columns) if is_random else None,
    )


@dataclass(frozen=True)
class _Names:
    test: str | None
    train: str
    val: str | None


@dataclass(frozen=True)
class _Columns:
    image: str
    label: str


@dataclass(frozen=True)
class _Classes:
    """Names of the classes, and the class of each value of the label column."""

    names: tuple[str, ...]
    number_of: Mapping[object, int] | None
    are_named: bool

    def to_numbers(self, values: Sequence[Any]) -> Tensor:
        """Return the classes (N,) of values of the label column."""
        if self.number_of is None:
            return torch.tensor(values, dtype=torch.long)
        return torch.tensor([self.number_of[value] for value in values], dtype=torch.long)


@dataclass(frozen=True)
class _Part:
    """Some rows of a table: their positions, labels, and numbers in the whole dataset."""

    table: Table
    positions: Tensor
    labels: Tensor
    first_index: int

    def subset(self, chosen: Tensor) -> "_Part":
        """Return the part of the rows at these places (N,)."""
        return _Part(self.table, self.positions[chosen], self.labels[chosen], self.first_index)

    def rows(self, places: Sequence[int]) -> Iterator[Mapping[str, Any]]:
        """Yield rows with the bytes or path of their image."""
        for position in self.positions[list(places)].tolist():
            yield self.table[position]


def _check_numbers(channels: int, holdout: float, test: float) -> None:
    if channels not in (1, 3):
        raise BadInput(f"channels={channels} is not 1 or 3", hint="channels=3 for colour")
    for key, fraction in (("holdout", holdout), ("test", test)):
        if not 0 <= fraction < 1:
            raise BadInput(f"{key}={fraction:g} is not in [0, 1)", hint=f"write {key}=0.1")


def _load_tables(place: Place, config: str | None) -> Mapping[str, Table]:
    """Return the tables of a dataset by split."""
    import datasets

    datasets.disable_progress_bars()
    folder = place.path
    try:
        if folder is None:
            with explain_errors(str(place)):
                loaded = datasets.load_dataset(place.name, config, revision=place.revision)
        elif not folder.is_dir():
            raise BadFile(f"{folder} is not a folder", hint="name a folder with a dataset")
        elif (folder / "dataset_dict.json").exists() or (folder / "state.json").exists():
            loaded = datasets.load_from_disk(str(folder))
        else:
            loaded = datasets.load_dataset(str(folder), config)
    # `datasets` raises these for unknown names, configurations and formats, for damaged files, and
    # for datasets that would run a script
    except (
        ValueError,
        RuntimeError,
        FileNotFoundError,
        datasets.exceptions.DatasetsError,
    ) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise BadFile(
            f"{place} cannot be read by datasets: {reason}",
            hint="check the name, config=…, and the network unless HF_HUB_OFFLINE is set",
        ) from error
    return dict(loaded) if isinstance(loaded, dict) else {"train": loaded}


def _find_columns(table: Table, place: Place, image: str | None, label: str | None) -> _Columns:
    import datasets

    features: Mapping[str, Any] = table.features
    images = [key for key, kind in features.items() if isinstance(kind, datasets.Image)]
    labels = [key for key, kind in features.items() if isinstance(kind, datasets.ClassLabel)]
    labels = labels or [key for key in features if key in ("label", "labels", "class")]
    found = {"image": image, "label": label}
    for key, candidates in (("image", images), ("label", labels)):
        chosen = found[key]
        if chosen is not None and chosen not in features:
            raise UnknownName(
                f"{place} has no column {chosen!r}", hint=did_you_mean(chosen, features)
            )
        if chosen is None and len(candidates) != 1:
            listed = ", ".join(features)
            raise BadInput(
                f"{place} has {len(candidates)} columns for the {key}",
                hint=f"set {key}=… to one of {listed}",
            )
        found[key] = chosen or candidates[0]
    if found["image"] not in images:
        raise BadInput(
            f"column {found['image']!r} of {place} does not hold images",
            hint=f"set image=… to one of {', '.join(images)}",
        )
    assert found["image"] is not None
    assert found["label"] is not None
    return _Columns(found["image"], found["label"])


def _read_classes(tables: Mapping[str, Table], columns: _Columns) -> _Classes:
    """Return the classes: of the column's type, or else the sorted values of all splits."""
    import datasets

    kind = next(iter(tables.values())).features[columns.label]
    if isinstance(kind, datasets.ClassLabel):
        return _Classes(tuple(kind.names), None, are_named=True)
    values = {value for table in tables.values() for value in table.unique(columns.label)}
    if all(isinstance(value, int) for value in values) and values:
        names = tuple(str(number) for number in range(max(values) + 1))
        return _Classes(names, None, are_named=False)
    if not all(isinstance(value, str) for value in values):
        raise BadInput(
            f"column {columns.label!r} holds neither numbers nor names of classes",
            hint="set label=… to another column",
        )
    ordered = tuple(sorted(values))
    return _Classes(
        ordered, {value: number for number, value in enumerate(ordered)}, are_named=True
    )


def _choose_parts(
    tables: Mapping[str, Table],
    columns: _Columns,
    classes: _Classes,
    place: Place,
    names: _Names,
) -> tuple[dict[str, _Part], bool]:
    """Return train, val and test as far as they exist, and whether the test set is random."""
    # a dataset need not have training images, unless the user names them
    train = None if names.train == "train" else names.train
    for wanted in (names.test, names.val, train):
        if wanted is not None and wanted not in tables:
            raise UnknownName(f"{place} has no split {wanted!r}", hint=did_you_mean(wanted, tables))
    validation = names.val or next((key for key in VALIDATION_NAMES if key in tables), None)
    test = names.test or next((key for key in TEST_NAMES if key in tables), validation)
    if validation == test:
        validation = None
    chosen = {"train": names.train, "val": validation, "test": test}
    parts: dict[str, _Part] = {}
    first_index = 0
    for key, table in tables.items():
        role = next((role for role, split in chosen.items() if split == key), None)
        # roles are assigned from the last one: `split=train` evaluates on the training images
        if key == test:
            role = "test"
        if role is not None:
            table = table.select_columns([columns.image, columns.label])
            labels = classes.to_numbers(table[columns.label][:])
            table = _without_decoding(table, columns)
            parts[role] = _Part(table, torch.arange(len(labels)), labels, first_index)
        first_index += len(table)
    if not parts:
        raise UnknownName(
            f"{place} has no split {names.train!r}", hint=did_you_mean(names.train, tables)
        )
    ordered = {role: parts[role] for role in chosen if role in parts}
    return ordered, "test" not in ordered


def _without_decoding(table: Table, columns: _Columns) -> Table:
    """Return the table with images as bytes or paths."""
    import datasets

    return table.cast_column(columns.image, datasets.Image(decode=False))


def _hold_out(
    parts: Mapping[str, _Part], holdout: float, test: float, seed: int
) -> dict[str, _Part]:
    """Choose `test` and `val` at random from `train` unless they exist."""
    complete = dict(parts)
    for key, fraction in (("test", test), ("val", holdout)):
        if key in complete or "train" not in complete or not fraction:
            continue
        remaining = complete["train"]
        mask = holdout_mask(remaining.labels, fraction, seed)
        complete[key] = remaining.subset(mask.nonzero().squeeze(1))
        complete["train"] = remaining.subset((~mask).nonzero().squeeze(1))
    return complete


def _hash_images(part: _Part, columns: _Columns) -> str:
    """Hash the files of the training images: an evaluation must not test on them."""
    digest = hashlib.sha256()
    for row in part.rows(range(len(part.labels))):
        content, _ = _read_bytes(row[columns.image])
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()


def _read_split(
    part: _Part, columns: _Columns, decoder: Decoder, shape: tuple[int, ...], place: Place
) -> MemorySplit:
    """Decode all images of a part into memory."""
    count = len(part.labels)
    if count * int(np.prod(shape)) > MAX_BYTES:
        raise BadInput(
            f"{count:,} images of {shape[1]}x{shape[2]} do not fit into {MAX_BYTES >> 30} GiB",
            hint="set a smaller size=…, or save the images and use the dataset folder",
        )
    if count and int(part.labels.min()) < 0:
        raise BadFile(
            f"a split of {place} has images without a label",
            hint="evaluate on another split, such as split=validation",
        )
    images = torch.empty((count, *shape), dtype=torch.uint8)
    for number, row in enumerate(part.rows(range(count))):
        pixels = _to_pixels(row[columns.image], decoder, place)
        if pixels.shape != shape:
            found = "x".join(map(str, pixels.shape[1:]))
            expected = "x".join(map(str, shape[1:]))
            raise BadFile(
                f"images of {place} have different sizes: {found} and {expected}",
                hint=f"resize and crop all to one size: size={min(shape[1:])}",
            )
        images[number] = pixels
        if number % 1000 == 999:
            report_progress(f"reading {place}", number + 1, count)
    return MemorySplit(images, part.labels, part.first_index + part.positions)


def _to_pixels(cell: Mapping[str, Any], decoder: Decoder, place: Place) -> Tensor:
    """Decode one image to uint8 (C, H, W)."""
    content, origin = _read_bytes(cell)
    return decoder.decode(content, origin or f"an image of {place}")


def _read_bytes(cell: Mapping[str, Any]) -> tuple[bytes, str]:
    """Return the bytes of an image file and its path; `datasets` stores one of the two."""
    origin = str(cell.get("path") or "")
    if cell.get("bytes") is not None:
        return cell["bytes"], origin
    try:
        return Path(origin).read_bytes(), origin
    except OSError as error:
        raise BadFile(f"{origin} cannot be read: {error.strerror}", hint="repair it") from None
