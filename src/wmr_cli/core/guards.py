"""Promises checked where they are cheap to check; the error names the image that broke one."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..errors import BrokenContract
from .contracts import Attack, Attacked, Batch, Crafted, Objective
from .norms import Norm

ABSOLUTE, RELATIVE = 1e-6, 1e-5
"""What float32 may add to the size of a perturbation: rounding of pixels adds up over a large image."""


def outside(size: Tensor, eps: float | Tensor) -> Tensor:
    """Which perturbations of these sizes (N,) are beyond the ball, whose radius may be one per image (N,)."""
    return size > eps * (1 + RELATIVE) + ABSOLUTE


def in_range(images: Tensor) -> Tensor:
    """Which images (N, C, H, W) lie in [0, 1]; one with a NaN does not."""
    return ((images >= 0) & (images <= 1)).flatten(1).all(dim=1)


def refuse(broken: Tensor, index: Tensor, what: str, hint: str = "") -> None:
    """Raise for the first image of the mask (N,), by its index in the data set."""
    if broken.any():
        image = int(index[int(broken.nonzero()[0, 0])])
        raise BrokenContract(f"image {image}: {what}", hint=hint)


def check_batch(batch: Batch, num_classes: int) -> None:
    """Images lie in [0, 1] and labels in [0, C)."""
    hint = "scale images to [0, 1]; normalisation belongs inside the model"
    refuse(~in_range(batch.images), batch.index, "its pixels are not in [0, 1]", hint)
    refuse(
        (batch.labels < 0) | (batch.labels >= num_classes),
        batch.index,
        f"its label is not in 0…{num_classes - 1}",
        "number the classes from 0",
    )


def check_logits(logits: Tensor, index: Tensor, num_classes: int) -> None:
    """One finite logit per class and image."""
    if logits.shape != (len(index), num_classes) or num_classes < 2:
        raise BrokenContract(
            f"the model gave outputs of shape {tuple(logits.shape)} for {len(index)} images of {num_classes} classes",
            hint="a model returns logits of shape (images, classes), and needs two classes at least",
        )
    hint = "the network has diverged, or its weights are damaged"
    refuse(~logits.isfinite().all(dim=1), index, "its logits are not finite", hint)


def guarded(
    attack: Attack,
    model: nn.Module,
    batch: Batch,
    objective: Objective,
    seed: int,
    norm: Norm,
    eps: float | Tensor,
    num_classes: int,
) -> Attacked:
    """Run an attack and check that it kept to the ball, to [0, 1] and to finite numbers, and left the model alone."""
    with untouched(model, attack):
        attacked = attack(model, batch.images, batch.labels, objective, batch.index, seed)
    _check_images(attack, attacked.images, batch, norm, eps)
    check_logits(attacked.logits, batch.index, num_classes)
    return attacked


def crafted(
    attack: Attack, model: nn.Module, batch: Batch, objective: Objective, seed: int, norm: Norm, eps: float | Tensor
) -> Crafted:
    """The same for whoever needs no logits, by the `craft` of an attack that has it."""
    with untouched(model, attack):
        made: Crafted = attack.craft(model, batch.images, batch.labels, objective, batch.index, seed)  # type: ignore[attr-defined]
    _check_images(attack, made.images, batch, norm, eps)
    return made


def _check_images(attack: Attack, images: Tensor, batch: Batch, norm: Norm, eps: float | Tensor) -> None:
    name = type(attack).__name__
    if images.shape != batch.images.shape:
        shapes = f"{tuple(images.shape)} from {tuple(batch.images.shape)}"
        raise BrokenContract(f"{name} made images of shape {shapes}")
    refuse(~in_range(images), batch.index, f"{name} left [0, 1]")
    ball = "its ball" if isinstance(eps, Tensor) else f"the ball of radius {eps:g}"
    refuse(outside(norm.size(images - batch.images), eps), batch.index, f"{name} left {ball}")


@contextmanager
def untouched(model: nn.Module, attack: Attack) -> Iterator[None]:
    """Refuse that what happens inside changes the model: its modes, parameters, their gradients, or its buffers.

    Parameters are known by identity and version, so that a large model costs no copy. Buffers are few and are compared by
    value: batch-norm writes to its statistics without a new version. In train mode it is meant to, so then they are free.
    """
    name, modes = type(attack).__name__, [module.training for module in model.modules()]
    parameters = {path: _stamps(parameter) for path, parameter in model.named_parameters()}
    buffers = {} if any(modes) else {path: buffer.clone() for path, buffer in model.named_buffers()}
    yield
    hint = "an attack reads the model and leaves it as it was; so does the model's own forward pass in eval mode"
    if modes != [module.training for module in model.modules()]:
        raise BrokenContract(f"{name} changed the mode of the model", hint=hint)
    after = {path: _stamps(parameter) for path, parameter in model.named_parameters()}
    changed = [path for path in parameters.keys() | after.keys() if parameters.get(path) != after.get(path)]
    now = dict(model.named_buffers())
    changed += [path for path, before in buffers.items() if path not in now or not _same(before, now[path])]
    if changed:
        raise BrokenContract(f"{name} changed {min(changed)!r} of the model", hint=hint)


def _stamps(parameter: nn.Parameter) -> tuple[int | bool, ...]:
    """What changes when a parameter, or its gradient, is replaced or written to."""
    grad = parameter.grad
    own = (id(parameter), parameter.data_ptr(), parameter._version, parameter.requires_grad)
    return own if grad is None else (*own, id(grad), grad._version)


def _same(before: Tensor, after: Tensor) -> bool:
    """Equal as bits are: a NaN is the same as itself."""
    return before.shape == after.shape and bool(torch.where(before.isnan(), after.isnan(), before == after).all())


def predictions(logits: Tensor) -> Tensor:
    """The predicted class, (N, C) to (N,). Right or wrong is decided here and never by the sign of a margin."""
    return torch.argmax(logits, dim=1)
