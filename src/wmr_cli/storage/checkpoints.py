"""Weights that describe themselves: a safetensors file whose header names model, data set, threat model and config.

`content_sha256` covers every tensor and every other line of the header; a flipped bit anywhere is noticed on load.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .. import __version__
from ..config import TrainConfig
from ..core.norms import NORMS
from ..errors import BadFile
from ..reading import check_regular, is_folder, parse_json
from .files import content_hash, write_atomically

SCHEMA = "1"
MOST_CLASSES = 10**6
MOST_VALUES = 2**31
"""Numbers of an image. A header beyond this is damaged: nothing of its size should be built."""
LARGEST_EPS = 1e9
LARGEST_INTEGER = 2**63 - 1
IMPORTED = "imported"
"""The defense of weights that came from elsewhere."""
FROM_ELSEWHERE = "for weights from elsewhere add --model and --dataset, or make them a checkpoint with `wmr import`"


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint file says of itself, and its weights."""

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
    drawn: str | None = None


class MadeFor(Protocol):
    """The data that a network was made for; a data source is one."""

    @property
    def num_classes(self) -> int: ...
    @property
    def input_shape(self) -> tuple[int, int, int]: ...


def save(
    path: Path,
    tensors: Mapping[str, Tensor],
    config: TrainConfig,
    made_for: MadeFor,
    *,
    alpha_train: float | None,
    epoch: int,
) -> None:
    """Write a checkpoint atomically."""
    save_tensors(path, tensors, _header(config, made_for, alpha_train, epoch))


def unsaved(path: Path, tensors: Mapping[str, Tensor], config: TrainConfig, made_for: MadeFor) -> Checkpoint:
    """The checkpoint that weights from elsewhere would be once saved, with the hash that its file would have."""
    header = _header(config, made_for, alpha_train=None, epoch=0)
    return _described(path, tensors, {**header, "content_sha256": tensors_hash(tensors, header)})


def of_network(
    name: str, kind: str, state: Mapping[str, object], num_classes: int, input_shape: tuple[int, int, int]
) -> Checkpoint:
    """What is known of a network that nobody saved: its name, the name of its class, and a hash of its weights."""
    tensors = {key: value.detach().cpu() for key, value in state.items() if isinstance(value, Tensor)}
    config = TrainConfig(model=kind, defense=IMPORTED, kernel="none")
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
        tensors={},
    )


def load(path: Path) -> Checkpoint:
    """Read a checkpoint; raise BadFile for a file that is not one, or whose header makes no sense."""
    path = path / "last.safetensors" if is_folder(path) else path
    tensors, header = load_tensors(path)
    if "wmr.schema" not in header:
        raise BadFile(f"{path} was not written by wmr", hint=FROM_ELSEWHERE)
    if header["wmr.schema"] != SCHEMA:
        problem = f"{path} has schema {header['wmr.schema']}"
        raise BadFile(problem, hint=f"this version reads checkpoints of schema {SCHEMA}, as `wmr train` writes them")
    try:
        return _described(path, tensors, header)
    except (KeyError, ValueError, TypeError) as error:
        reason = f"there is no {error}" if isinstance(error, KeyError) else error
        hint = "it is damaged, or was written by another version of wmr: copy it again, or train again"
        raise BadFile(f"the header of {path} cannot be read: {reason}", hint=hint) from None


def is_checkpoint(path: Path) -> bool:
    """Whether wmr wrote this file, or the last checkpoint of this folder; only the header is looked at."""
    file_path = path / "last.safetensors" if is_folder(path) else path
    try:
        check_regular(file_path)
        with safe_open(file_path, framework="pt") as file:
            return "wmr.schema" in (file.metadata() or {})
    except (SafetensorError, OSError, UnicodeDecodeError):
        return False


def _header(config: TrainConfig, made_for: MadeFor, alpha_train: float | None, epoch: int) -> dict[str, str]:
    """What a checkpoint says of itself, as text."""
    return {
        "wmr.schema": SCHEMA,
        "wmr.version": __version__,
        "model": config.model,
        "num_classes": str(made_for.num_classes),
        "input_shape": json.dumps(made_for.input_shape),
        "class_names": json.dumps(getattr(made_for, "class_names", None)),
        "drawn": json.dumps(getattr(made_for, "drawn", None)),
        "dataset": config.dataset,
        "defense": config.defense,
        "kernel": config.kernel,
        "alpha_train": json.dumps(alpha_train),
        "norm": config.norm,
        "eps": repr(config.eps),
        "epoch": str(epoch),
        "seed": str(config.seed),
        "config": config.to_json(),
    }


def _described(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> Checkpoint:
    """Return what the header describes; raise KeyError or ValueError for one that describes no checkpoint."""
    num_classes = _whole(header, "num_classes", 2, MOST_CLASSES)
    if header["norm"] not in NORMS:
        raise ValueError(f"norm is {_shown(header['norm'])}, and there are: {', '.join(NORMS)}")
    return Checkpoint(
        path=path,
        sha256=header["content_sha256"],
        model=header["model"],
        num_classes=num_classes,
        input_shape=_shape(header),
        dataset=header["dataset"],
        defense=header["defense"],
        kernel=header["kernel"],
        alpha_train=_alpha(header),
        norm=header["norm"],
        eps=_eps(header),
        epoch=_whole(header, "epoch", 0, LARGEST_INTEGER),
        seed=_whole(header, "seed", 0, LARGEST_INTEGER),
        config=_config(header),
        tensors=tensors,
        class_names=_class_names(header, num_classes),
        drawn=_drawn(header),
    )


def _shown(value: object) -> str:
    """Return a value of a header for a message: short, and on one line."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _parsed(header: Mapping[str, str], key: str) -> Any:
    try:
        return parse_json(header[key])
    except ValueError as error:
        raise ValueError(f"{key} is {_shown(header[key])}, which is not JSON: {error}") from None


def _whole(header: Mapping[str, str], key: str, smallest: int, largest: int) -> int:
    text = header[key]
    # int() also takes spaces, underscores and digits of other scripts; a short text also avoids its limit on digits
    if not re.fullmatch(r"[0-9]{1,19}", text) or not smallest <= int(text) <= largest:
        raise ValueError(f"{key} is {_shown(text)}, not a whole number from {smallest} to {largest}")
    return int(text)


def _shape(header: Mapping[str, str]) -> tuple[int, int, int]:
    shape = _parsed(header, "input_shape")
    is_shape = isinstance(shape, list) and len(shape) == 3 and all(type(side) is int and side >= 1 for side in shape)
    if not is_shape or math.prod(shape) > MOST_VALUES:
        raise ValueError(f"input_shape is {_shown(shape)}, not the [channels, height, width] of an image")
    channels, height, width = shape
    return channels, height, width


def _alpha(header: Mapping[str, str]) -> float | None:
    alpha = _parsed(header, "alpha_train")
    if alpha is None:
        return None
    if type(alpha) not in (int, float) or not abs(alpha) <= LARGEST_INTEGER:  # nor NaN
        raise ValueError(f"alpha_train is {_shown(alpha)}, not a finite number")
    return float(alpha)


def _eps(header: Mapping[str, str]) -> float:
    try:
        eps = float(header["eps"])
    except ValueError:
        eps = math.nan
    if not 0 <= eps <= LARGEST_EPS:
        raise ValueError(f"eps is {_shown(header['eps'])}, not a number from 0 to {LARGEST_EPS:g}")
    return eps


def _config(header: Mapping[str, str]) -> TrainConfig:
    try:
        return TrainConfig.from_json(header["config"])
    except ValueError as error:
        raise ValueError(f"config: {error}") from None


def _class_names(header: Mapping[str, str], num_classes: int) -> tuple[str, ...] | None:
    names = _parsed(header, "class_names") if "class_names" in header else None
    if names is None:
        return None
    if not isinstance(names, list) or len(names) != num_classes or not all(isinstance(name, str) for name in names):
        raise ValueError(f"class_names is {_shown(names)}, not the names of {num_classes} classes")
    return tuple(names)


def _drawn(header: Mapping[str, str]) -> str | None:
    drawn = _parsed(header, "drawn") if "drawn" in header else None
    if drawn is not None and not isinstance(drawn, str):
        raise ValueError(f"drawn is {_shown(drawn)}, not text")
    return drawn


def save_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> None:
    """Write tensors and header with their hash. safetensors takes neither strided nor shared storage, hence the copies."""
    own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    signed = {**header, "content_sha256": tensors_hash(own, header)}
    write_atomically(path, lambda temporary: safetensors.torch.save_file(own, temporary, metadata=signed))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return tensors and header of a file, checksum verified."""
    hint = "name a checkpoint such as runs/NAME/last.safetensors, or its run folder"
    try:
        check_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        raise BadFile(f"there is no file {path}", hint=hint) from None
    except OSError as error:
        raise BadFile(f"cannot read {path}: {error.strerror}", hint=hint) from None
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError, UnicodeDecodeError) as error:
        problem = f"{path} is not a checkpoint, or only part of one: {error}"
        raise BadFile(problem, hint=f"checkpoints are safetensors files; {FROM_ELSEWHERE}") from None
    stored = header.get("content_sha256")
    rest = {key: value for key, value in header.items() if key != "content_sha256"}
    if stored is not None and stored != tensors_hash(tensors, rest):
        raise BadFile(f"{path} is damaged: its content does not match its hash", hint="copy it again from where it came")
    return tensors, header


def tensors_hash(tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> str:
    """The content hash of a file with these tensors and this header."""
    parts = (
        (name, str(tensor.dtype), list(tensor.shape), tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        for name, tensor in sorted(tensors.items(), key=itemgetter(0))
    )
    return content_hash(parts, header)
