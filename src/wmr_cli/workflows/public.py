"""What notebooks and plugins may call."""

import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, overload

import torch
from torch import nn
from torch.utils.data import Dataset

from ..config import METRICS, default_data_dir
from ..core.contracts import Attack, DataSource, Defense, Kernel, Split
from ..core.lean import CHECKED
from ..core.modes import device_of, placed, undisturbed
from ..core.streams import images_of
from ..errors import BadInput
from ..local_code import trust_hashes, trust_named
from ..plugins import installed
from ..reporting.doubts import doubts
from ..spec import Spec
from ..storage import checkpoints, foreign
from . import parts
from .asking import asked, task_of
from .evaluate import examination_of, recorded, weighed
from .examine import stack, walked
from .portions import taken
from .result import Result

__all__ = ["Result", "create", "evaluate", "load", "read_saved"]


@overload
def create(kind: Literal["attack"], spec: str | Spec, **given: Any) -> Attack: ...
@overload
def create(kind: Literal["model"], spec: str | Spec, **given: Any) -> nn.Module: ...
@overload
def create(kind: Literal["dataset"], spec: str | Spec, **given: Any) -> DataSource: ...
@overload
def create(kind: Literal["kernel"], spec: str | Spec, **given: Any) -> Kernel: ...
@overload
def create(kind: Literal["defense"], spec: str | Spec, **given: Any) -> Defense: ...
@overload
def create(kind: str, spec: str | Spec, **given: Any) -> Any: ...
def create(kind: str, spec: str | Spec, **given: Any) -> Any:
    """Build a component by name: `create("attack", "pgd:steps=20", eps=8 / 255)`.

    A kind is `attack`, `dataset`, `defense`, `kernel` or `model`. A model needs `num_classes` and `input_shape`. A data set
    is looked for where the command line looks for it, unless `root` names another folder.
    """
    registry = installed().registry
    trust_named([spec], remember=False)
    if kind == "model" and given.keys() == {"num_classes", "input_shape"}:
        return parts.model(registry, str(spec), **given)
    if (
        kind == "dataset"
        and "root" not in given
        and registry.accepts(kind, (Spec.parse(spec) if isinstance(spec, str) else spec).name, "root")
    ):
        given["root"] = default_data_dir()
    return registry.create(kind, spec, **given)


def load(checkpoint: str | Path, *, trust_code: str | Iterable[str] = ()) -> nn.Module:
    """The network of a checkpoint, a file or a run folder, with its weights, in eval mode.

    A checkpoint whose model is a class in a Python file is refused, unless you have named that class on a command line or with
    `create`. `trust_code` is the SHA-256 of such a file that you have read and trust, or several of them.
    """
    trust_hashes([trust_code] if isinstance(trust_code, str) else trust_code, remember=False)
    return parts.restored(installed().registry, checkpoints.load(Path(checkpoint)))


def read_saved(path: str | Path) -> Any:
    """What `torch.save` wrote, on the CPU. A file that would have to run code to be read is refused, and so is a damaged one."""
    return foreign.saved(Path(path))


def evaluate(
    model: nn.Module,
    data: Split | Dataset[Any] | Iterable[Any],
    *,
    eps: float | None = None,
    attack: str | Spec | Attack = "pgd",
    norm: str | None = None,
    alphas: Iterable[float] | None = None,
    rhos: Iterable[float] = (),
    kernel: str = "exp",
    metrics: Sequence[str] = METRICS,
    seed: int = 0,
    batch_size: int = 256,
    device: str | torch.device | None = None,
    num_classes: int | None = None,
    name: str | None = None,
    dataset: str | None = None,
) -> Result:
    """Measure a network under an attack, as `wmr evaluate` does: for the same weights, images, attack and seed, to the bit.

    `model` maps images (N, C, H, W) in [0, 1] to logits, and is left as it was. `data` is a split, a torch `Dataset` of
    (image, label), or an iterable of batches (images, labels) or (images, labels, index).

    `eps` and `norm` are the ball, `linf` unless said; an attack that was created with a ball needs neither. `alphas` are 1,
    1.5 and 2 unless said: each is one more attack, for A_tr, while A_sa is free at any other. `rhos` adds the worst case in
    balls of these radii. `metrics` are some of `nat`, `rob`, `sa` and `tr`.

    The work is done where the model is, or on `device`. There are as many classes as the model has outputs, which
    `num_classes` can make sure of. `name` and `dataset` are what tables call model and data.
    """
    registry = installed().registry
    trust_named([kernel, *([attack] if isinstance(attack, str | Spec) else [])], remember=False)
    question = asked(
        registry, attack, norm, eps,
        alphas=alphas, rhos=rhos, kernel=kernel, metrics=metrics, batch_size=batch_size, seed=seed,
    )  # fmt: skip
    images, where = images_of(data, batch_size), device_of(model) if device is None else torch.device(device)
    with placed(model, where), undisturbed(where):
        batches = taken(images, batch_size)
        first = next(batches, None)
        if first is None:
            raise BadInput("there are no images", hint="an iterator that was used up gives nothing the second time")
        channels, height, width = first.images.shape[1:]
        called = dataset or type(getattr(data, "dataset", data)).__name__
        task = task_of(
            question, registry, model, images, (channels, height, width), num_classes=num_classes, name=name, dataset=called
        )
        for text in (*parts.notes(images), *parts.advice(task.attack, task.eps, task.checkpoint.num_classes)):
            warnings.warn(text, stacklevel=2)
        shown = first.images[:CHECKED].to(where)
        started = time.perf_counter()
        rows = weighed(task, stack(list(walked(examination_of(task, model, shown), chain([first], batches), where))))
        seconds = time.perf_counter() - started
    task = replace(task, positions=torch.arange(len(images)))  # of a stream the number is known now
    record = recorded(task, rows, [], seconds, len(images) / seconds, where.type)
    for text in doubts(record):
        warnings.warn(text, stacklevel=2)
    return Result(record, rows)
