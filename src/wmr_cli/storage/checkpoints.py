"""Weights that describe themselves: a safetensors file whose header names model, data set, threat model and config.

`content_sha256` covers every tensor and every other line of the header; a flipped bit anywhere is noticed on load.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Protocol

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .. import __version__
from ..config import TrainConfig
from ..errors import BadFile
from .files import content_hash, write_atomically

SCHEMA = "1"
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
    """Read a checkpoint, or say why the file is none."""
    path = path / "last.safetensors" if path.is_dir() else path
    tensors, header = load_tensors(path)
    if "wmr.schema" not in header:
        raise BadFile(f"{path} was not written by wmr", hint=FROM_ELSEWHERE)
    if header["wmr.schema"] != SCHEMA:
        problem = f"{path} has schema {header['wmr.schema']}"
        raise BadFile(problem, hint=f"this version reads checkpoints of schema {SCHEMA}, as `wmr train` writes them")
    try:
        return _described(path, tensors, header)
    except (KeyError, ValueError, TypeError) as error:
        raise BadFile(f"the header of {path} cannot be read: {error}", hint="it was written by another version of wmr") from None


def is_checkpoint(path: Path) -> bool:
    """Whether wmr wrote this file, or the last checkpoint of this folder; only the header is looked at."""
    try:
        with safe_open(path / "last.safetensors" if path.is_dir() else path, framework="pt") as file:
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
    """What the header says, read."""
    channels, height, width = json.loads(header["input_shape"])
    return Checkpoint(
        path=path,
        sha256=header["content_sha256"],
        model=header["model"],
        num_classes=int(header["num_classes"]),
        input_shape=(channels, height, width),
        dataset=header["dataset"],
        defense=header["defense"],
        kernel=header["kernel"],
        alpha_train=json.loads(header["alpha_train"]),
        norm=header["norm"],
        eps=float(header["eps"]),
        epoch=int(header["epoch"]),
        seed=int(header["seed"]),
        config=TrainConfig.from_json(header["config"]),
        tensors=tensors,
        class_names=None if (names := json.loads(header.get("class_names", "null"))) is None else tuple(names),
        drawn=json.loads(header.get("drawn", "null")),
    )


def save_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> None:
    """Write tensors and header with their hash. safetensors takes neither strided nor shared storage, hence the copies."""
    own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    signed = {**header, "content_sha256": tensors_hash(own, header)}
    write_atomically(path, lambda temporary: safetensors.torch.save_file(own, temporary, metadata=signed))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and header of a file, its hash checked."""
    if not path.is_file():
        raise BadFile(f"there is no file {path}", hint="name a checkpoint such as runs/NAME/last.safetensors, or its run folder")
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
