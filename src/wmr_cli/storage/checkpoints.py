"""Checkpoints: safetensors files whose header names model, dataset, threat model and config.

`content_sha256` covers every tensor and every other line of the header, so that `load` detects a
flipped bit anywhere in the file.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Protocol

import msgspec
import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .. import __version__
from ..config import TrainConfig
from ..core.norms import NORMS
from ..errors import BadFile
from ..reading import check_regular, decode_json, is_folder, parse_json
from ..registry import PLUGIN_OF_NAME, suggest_plugin
from .atomic import write_atomically
from .records import MAX_CLASSES, MAX_EPS, content_hash

SCHEMA = "1"
# Headers beyond these limits are damaged. They are refused before a model of that size is built.
MAX_IMAGE_VALUES = 2**31
MAX_INTEGER = 2**63 - 1
IMPORTED_DEFENSE = "imported"
"""The defense of weights that another program trained."""
UNWEIGHTED_KERNEL = "none"
"""The kernel of these weights: their training loss is not known to be weighted."""
IMPORT_HINT = (
    "for weights of another program set `model` and `dataset`, "
    "or convert them to a checkpoint with `wmr import`"
)


class ExtraData(msgspec.Struct, frozen=True):
    """The extra images that a run was trained on, beside those of its dataset."""

    dataset: str
    fraction: float
    """The fraction of a batch that is extra."""
    sha256: str
    """Hash of the images, labels and indices."""
    labels: str | None
    """Hash of the checkpoint that predicted the labels; None for the dataset's own labels."""


@dataclass(frozen=True)
class Checkpoint:
    """The header of a checkpoint file, and its weights."""

    path: Path
    sha256: str
    model: str
    num_classes: int
    input_shape: tuple[int, int, int]
    dataset: str
    defense: str
    kernel: str
    alpha_train: float | None
    norm: str
    eps: float
    epoch: int
    seed: int
    config: TrainConfig
    tensors: Mapping[str, Tensor]
    class_names: tuple[str, ...] | None = None
    """None in checkpoints of wmr 0.1 and for datasets without names."""
    drawn: str | None = None
    """Hash of a random split. It detects data that were split differently for training."""
    extra: ExtraData | None = None


class DataFormat(Protocol):
    """Classes and image shape that a model is built for; every data source has them."""

    @property
    def num_classes(self) -> int: ...
    @property
    def input_shape(self) -> tuple[int, int, int]: ...
    @property
    def class_names(self) -> tuple[str, ...] | None: ...
    @property
    def random_split_sha256(self) -> str | None: ...


def save(
    path: Path,
    tensors: Mapping[str, Tensor],
    config: TrainConfig,
    data: DataFormat,
    *,
    alpha_train: float | None,
    epoch: int,
    extra: ExtraData | None = None,
) -> None:
    """Write a checkpoint atomically."""
    header = _make_header(config, data, alpha_train, epoch)
    if extra is not None:
        header["extra"] = msgspec.json.encode(extra).decode()
    save_tensors(path, tensors, header)


def describe_unsaved(
    path: Path, tensors: Mapping[str, Tensor], config: TrainConfig, data: DataFormat
) -> Checkpoint:
    """Describe imported weights without saving them, with the hash that their file would have."""
    header = _make_header(config, data, alpha_train=None, epoch=0)
    return _from_header(path, tensors, {**header, "content_sha256": tensors_hash(tensors, header)})


def describe_network(
    name: str,
    kind: str,
    state: Mapping[str, object],
    num_classes: int,
    input_shape: tuple[int, int, int],
) -> Checkpoint:
    """Describe a model in memory by its name, the name of its class and a hash of its weights."""
    tensors = {
        key: value.detach().cpu() for key, value in state.items() if isinstance(value, Tensor)
    }
    config = TrainConfig(model=kind, defense=IMPORTED_DEFENSE, kernel=UNWEIGHTED_KERNEL)
    return Checkpoint(
        path=Path(name),
        sha256=tensors_hash(tensors, {"model": kind}),
        model=kind,
        num_classes=num_classes,
        input_shape=input_shape,
        dataset=config.dataset,
        defense=config.defense,
        kernel=config.kernel,
        alpha_train=None,
        norm=config.norm,
        eps=config.eps,
        epoch=0,
        seed=0,
        config=config,
        # the model itself is in memory
        tensors={},
    )


def load(path: Path) -> Checkpoint:
    """Read a checkpoint or the last one of a run folder; raise BadFile for any other file."""
    if is_folder(path):
        path = path / "last.safetensors"
    tensors, header = load_tensors(path)
    # the schema first: other lines may have another meaning in a later one
    if "wmr.schema" not in header:
        raise BadFile(f"{path} was not written by wmr", hint=IMPORT_HINT)
    if header["wmr.schema"] != SCHEMA:
        raise BadFile(
            f"{path} has schema {header['wmr.schema']}",
            hint=f"this version reads checkpoints of schema {SCHEMA}, as `wmr train` writes them",
        )
    try:
        return _from_header(path, tensors, header)
    except (KeyError, ValueError, TypeError) as error:
        # the text of a KeyError is only the key
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise BadFile(
            f"the header of {path} cannot be read: {reason}",
            hint="it is damaged, or written by another version of wmr: copy it or train again",
        ) from None


def is_checkpoint(path: Path) -> bool:
    """Return whether a file, or the last checkpoint of a folder, has a header of wmr."""
    file_path = path / "last.safetensors" if is_folder(path) else path
    try:
        # safe_open would block on a FIFO
        check_regular(file_path)
        # the header only: a file of weights may be large
        with safe_open(file_path, framework="pt") as file:
            return "wmr.schema" in (file.metadata() or {})
    except (SafetensorError, OSError, UnicodeDecodeError):
        return False


def _make_header(
    config: TrainConfig, data: DataFormat, alpha_train: float | None, epoch: int
) -> dict[str, str]:
    """Return the header as text: safetensors stores only strings."""
    return {
        "wmr.schema": SCHEMA,
        "wmr.version": __version__,
        "model": config.model,
        "num_classes": str(data.num_classes),
        "input_shape": json.dumps(data.input_shape),
        "class_names": json.dumps(data.class_names),
        "drawn": json.dumps(data.random_split_sha256),
        "dataset": config.dataset,
        "defense": config.defense,
        "kernel": config.kernel,
        "alpha_train": json.dumps(alpha_train),
        "norm": config.norm,
        # repr keeps every bit of a float
        "eps": repr(config.eps),
        "epoch": str(epoch),
        "seed": str(config.seed),
        "config": config.to_json(),
    }


def _from_header(
    path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, str]
) -> Checkpoint:
    """Parse a header; raise KeyError or ValueError if it does not describe a checkpoint."""
    num_classes = _parse_integer(header, "num_classes", 2, MAX_CLASSES)
    if header["norm"] not in NORMS:
        raise ValueError(f"norm is {_abbreviate(header['norm'])}, not one of {', '.join(NORMS)}")
    return Checkpoint(
        path=path,
        sha256=header["content_sha256"],
        model=header["model"],
        num_classes=num_classes,
        input_shape=_parse_shape(header),
        dataset=header["dataset"],
        defense=header["defense"],
        kernel=header["kernel"],
        alpha_train=_parse_alpha(header),
        norm=header["norm"],
        eps=_parse_eps(header),
        epoch=_parse_integer(header, "epoch", 0, MAX_INTEGER),
        seed=_parse_integer(header, "seed", 0, MAX_INTEGER),
        config=_parse_config(header),
        tensors=tensors,
        class_names=_parse_class_names(header, num_classes),
        drawn=_parse_drawn(header),
        extra=_parse_extra(header),
    )


def _abbreviate(value: object) -> str:
    """Return a value of a header for a message, on one line."""
    # repr escapes control characters, which could otherwise change the user's terminal
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _parse_value(header: Mapping[str, str], key: str) -> object:
    try:
        return parse_json(header[key])
    except ValueError as error:
        raise ValueError(
            f"{key} is {_abbreviate(header[key])}, which is not JSON: {error}"
        ) from None


def _parse_integer(header: Mapping[str, str], key: str, smallest: int, largest: int) -> int:
    text = header[key]
    # int() accepts spaces, underscores and digits of other scripts, and limits the number of digits
    if not re.fullmatch(r"[0-9]{1,19}", text) or not smallest <= int(text) <= largest:
        raise ValueError(
            f"{key} is {_abbreviate(text)}, not a whole number from {smallest} to {largest}"
        )
    return int(text)


def _parse_shape(header: Mapping[str, str]) -> tuple[int, int, int]:
    shape = _parse_value(header, "input_shape")
    # not isinstance: JSON's true would pass as the integer 1
    if (
        isinstance(shape, list)
        and len(shape) == 3
        and all(type(side) is int and side >= 1 for side in shape)
        and math.prod(shape) <= MAX_IMAGE_VALUES
    ):
        channels, height, width = shape
        return channels, height, width
    raise ValueError(
        f"input_shape is {_abbreviate(shape)}, not the [channels, height, width] of an image"
    )


def _parse_alpha(header: Mapping[str, str]) -> float | None:
    alpha = _parse_value(header, "alpha_train")
    if alpha is None:
        return None
    # NaN fails every comparison, so it is refused as well; bool is a subclass of int
    if isinstance(alpha, int | float) and not isinstance(alpha, bool) and abs(alpha) <= MAX_INTEGER:
        return float(alpha)
    raise ValueError(f"alpha_train is {_abbreviate(alpha)}, not a finite number")


def _parse_eps(header: Mapping[str, str]) -> float:
    try:
        eps = float(header["eps"])
    except ValueError:
        eps = math.nan
    if not 0 <= eps <= MAX_EPS:
        raise ValueError(f"eps is {_abbreviate(header['eps'])}, not a number from 0 to {MAX_EPS:g}")
    return eps


def _parse_config(header: Mapping[str, str]) -> TrainConfig:
    try:
        return TrainConfig.from_json(header["config"])
    except ValueError as error:
        raise ValueError(f"config: {error}") from None


def _parse_class_names(header: Mapping[str, str], num_classes: int) -> tuple[str, ...] | None:
    # checkpoints of wmr 0.1 do not have this line
    names = _parse_value(header, "class_names") if "class_names" in header else None
    if names is None:
        return None
    if (
        not isinstance(names, list)
        or len(names) != num_classes
        or not all(isinstance(name, str) for name in names)
    ):
        raise ValueError(
            f"class_names is {_abbreviate(names)}, not the names of {num_classes} classes"
        )
    return tuple(names)


def _parse_drawn(header: Mapping[str, str]) -> str | None:
    drawn = _parse_value(header, "drawn") if "drawn" in header else None
    if drawn is not None and not isinstance(drawn, str):
        raise ValueError(f"drawn is {_abbreviate(drawn)}, not text")
    return drawn


def _parse_extra(header: Mapping[str, str]) -> ExtraData | None:
    if "extra" not in header:
        return None
    try:
        return decode_json(header["extra"], ExtraData)
    except ValueError as error:
        raise ValueError(f"extra: {error}") from None


def save_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> None:
    """Write tensors and header with their hash."""
    # safetensors refuses strided tensors and tensors that share memory, so each one is copied
    own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    signed = {**header, "content_sha256": tensors_hash(own, header)}
    # atomically: a crash while saving keeps the previous checkpoint
    write_atomically(
        path, lambda temporary: safetensors.torch.save_file(own, temporary, metadata=signed)
    )


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return tensors and header of a file, checksum verified."""
    hint = "name a checkpoint such as runs/NAME/last.safetensors, or its run folder"
    scheme, has_scheme, _ = str(path).partition(":")
    if has_scheme and scheme in PLUGIN_OF_NAME:
        hint = suggest_plugin(scheme)
    try:
        check_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        raise BadFile(f"{path} does not exist", hint=hint) from None
    except OSError as error:
        raise BadFile(f"cannot read {path}: {error.strerror}", hint=hint) from None
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError, UnicodeDecodeError) as error:
        problem = f"{path} is not a checkpoint, or only part of one: {error}"
        raise BadFile(problem, hint=f"checkpoints are safetensors files; {IMPORT_HINT}") from None
    # the hash cannot cover itself; callers refuse files without one, which other programs wrote
    stored = header.get("content_sha256")
    rest = {key: value for key, value in header.items() if key != "content_sha256"}
    if stored is not None and stored != tensors_hash(tensors, rest):
        raise BadFile(
            f"{path} is damaged: its content does not match its hash",
            hint="copy it again from where it came",
        )
    return tensors, header


def tensors_hash(tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> str:
    """Return the content hash of a file with these tensors and this header."""
    parts = (
        (
            name,
            str(tensor.dtype),
            list(tensor.shape),
            # NumPy has no bfloat16, so the bytes are read as uint8
            tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes(),
        )
        for name, tensor in sorted(tensors.items(), key=itemgetter(0))
    )
    return content_hash(parts, header)
