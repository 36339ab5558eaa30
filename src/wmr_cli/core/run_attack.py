"""Promises checked where they are cheap to check; the error names the image that broke one."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import BrokenContract, WmrError, out_of_memory
from .norms import Norm
from .protocols import Attack, AttackResult, Batch, Objective, StepReport

ABSOLUTE, RELATIVE = 1e-6, 1e-5
"""What float32 may add to the size of a perturbation: rounding of pixels adds up over a large image."""


def exceeds_eps(size: Tensor, eps: float | Tensor) -> Tensor:
    """Which perturbations of these sizes (N,) are beyond the ball, whose radius may be one per image (N,)."""
    return size > eps * (1 + RELATIVE) + ABSOLUTE


def is_in_unit_range(images: Tensor) -> Tensor:
    """Which images (N, C, H, W) lie in [0, 1]; one with a NaN does not."""
    return ((images >= 0) & (images <= 1)).flatten(1).all(dim=1)


def raise_for_images(broken: Tensor, index: Tensor, what: str, hint: str = "") -> None:
    """Raise for the first image of the mask (N,), by its index in the data set."""
    if broken.any():
        image = int(index[int(broken.nonzero()[0, 0])])
        raise BrokenContract(f"image {image}: {what}", hint=hint)


def check_batch(batch: Batch, num_classes: int) -> None:
    """Refuse a batch that is not one, whose images are not in [0, 1], or whose labels are not in [0, C)."""
    form = "a split returns Batch(images, labels, index): images (N, C, H, W), labels and index (N,), as tensors"
    _check_tensors("the data set", batch, ("images", "labels", "index"), form)
    count = len(batch.images) if batch.images.ndim == 4 else -1
    if not batch.images.is_floating_point() or any(
        not _are_whole(part, count) for part in (batch.labels, batch.index)
    ):
        shapes = ", ".join(
            f"{part.dtype} {tuple(part.shape)}"
            for part in (batch.images, batch.labels, batch.index)
        )
        raise BrokenContract(f"the data set returned a batch of {shapes}", hint=form)
    hint = "scale images to [0, 1]; normalisation belongs inside the model"
    raise_for_images(
        ~is_in_unit_range(batch.images), batch.index, "its pixels are not in [0, 1]", hint
    )
    raise_for_images(
        (batch.labels < 0) | (batch.labels >= num_classes),
        batch.index,
        f"its label is not in 0…{num_classes - 1}",
        "number the classes from 0",
    )


def _check_tensors(owner: str, made: object, names: tuple[str, ...], hint: str) -> None:
    """Refuse a result without these tensors."""
    for name in names:
        if not isinstance(getattr(made, name, None), Tensor):
            raise BrokenContract(
                f"{owner} returned a {type(made).__name__} without a tensor {name!r}", hint=hint
            )


def _are_whole(values: Tensor, count: int) -> bool:
    """Return whether there are so many whole numbers."""
    return values.shape == (count,) and not (
        values.is_floating_point() or values.is_complex() or values.dtype == torch.bool
    )


def check_logits(logits: Tensor, index: Tensor, num_classes: int) -> None:
    """Refuse outputs that are not one finite logit per class and image."""
    if not isinstance(logits, Tensor):
        raise BrokenContract(
            f"the model returned a {type(logits).__name__}",
            hint="a model returns one tensor of logits",
        )
    if logits.shape != (len(index), num_classes) or num_classes < 2:
        raise BrokenContract(
            f"the model gave outputs of shape {tuple(logits.shape)} for {len(index)} images of {num_classes} classes",
            hint="a model returns logits of shape (images, classes), and needs two classes at least",
        )
    hint = "the network has diverged, or its weights are damaged"
    raise_for_images(~logits.isfinite().all(dim=1), index, "its logits are not finite", hint)


def check_log_weights(kernel: object, log_weights: Tensor, count: int) -> None:
    """Refuse what is not one log-weight per image, a number or -inf."""
    name = type(kernel).__name__
    hint = "a kernel returns one log-weight per image, (N,), as floats; -inf is a weight of zero"
    if not isinstance(log_weights, Tensor):
        raise BrokenContract(f"kernel {name} returned a {type(log_weights).__name__}", hint=hint)
    if log_weights.shape != (count,) or not log_weights.is_floating_point():
        shape = f"{log_weights.dtype} of shape {tuple(log_weights.shape)}"
        raise BrokenContract(f"kernel {name} returned {shape} for {count} images", hint=hint)
    if bool((log_weights.isnan() | (log_weights == torch.inf)).any()):
        raise BrokenContract(f"kernel {name} returned a log-weight that is not a number", hint=hint)


def check_report(defense: object, report: StepReport, count: int) -> None:
    """Refuse what is not the report of a training step on so many images; its length differs where a step replays a batch."""
    name = type(defense).__name__
    names = ("losses", "weights", "margins", "correct")
    hint = f"step() of a defense returns StepReport({', '.join(names)}), with one value per image in each"
    _check_tensors(f"step of {name}", report, names, hint)
    lengths = {tuple(getattr(report, part).shape) for part in names}
    if len(lengths) != 1 or len(report.losses.shape) != 1 or (count and not len(report.losses)):
        shapes = ", ".join(map(str, sorted(lengths)))
        raise BrokenContract(
            f"step of {name} returned values of shape {shapes} for {count} images", hint=hint
        )


@dataclass(frozen=True, eq=False)
class ThreatModel:
    """The ε-ball that an attack must not leave, and the number of classes of its logits.

    The radius may be one per image, (N,).
    """

    norm: Norm
    eps: float | Tensor
    num_classes: int


def run_attack(
    attack: Attack,
    model: nn.Module,
    batch: Batch,
    objective: Objective,
    threat: ThreatModel,
    *,
    seed: int,
    need_logits: bool = True,
) -> AttackResult:
    """Run an attack and verify its result: inside the ε-ball and [0, 1], finite logits, model unchanged."""
    with _reporting_failures(attack), require_unchanged(model, attack):
        result = attack(model, batch, objective, seed=seed, need_logits=need_logits)
    _check_result(attack, result, batch, need_logits=need_logits)
    _check_images(attack, result.images, batch, threat.norm, threat.eps)
    if result.logits is not None:
        check_logits(result.logits, batch.index, threat.num_classes)
    return result


def _check_result(attack: Attack, result: AttackResult, batch: Batch, *, need_logits: bool) -> None:
    """Refuse a result without its tensors, one row for each image and on the device of the images."""
    name = type(attack).__name__
    hint = "an attack returns AttackResult(images, steps_survived, logits), as tensors"
    names: tuple[str, ...] = ("images", "steps_survived")
    if need_logits or (isinstance(result, AttackResult) and result.logits is not None):
        names = (*names, "logits")
    _check_tensors(name, result, names, hint)
    for part in names:
        tensor: Tensor = getattr(result, part)
        if tensor.device != batch.images.device:
            problem = f"{name} returned {part} on {tensor.device}, the images are on {batch.images.device}"
            raise BrokenContract(problem, hint=hint)
        if part != "steps_survived" and not tensor.is_floating_point():
            raise BrokenContract(f"{name} returned {part} as {tensor.dtype}", hint=hint)
    shape = result.steps_survived.shape
    if shape != batch.labels.shape:
        problem = (
            f"{name} returned steps_survived of shape {tuple(shape)} for {len(batch.labels)} images"
        )
        raise BrokenContract(problem, hint=hint)


def _check_images(
    attack: Attack, images: Tensor, batch: Batch, norm: Norm, eps: float | Tensor
) -> None:
    name = type(attack).__name__
    if images.shape != batch.images.shape:
        shapes = f"{tuple(images.shape)} from {tuple(batch.images.shape)}"
        raise BrokenContract(
            f"{name} made images of shape {shapes}",
            hint="an attack returns images of the shape it was given",
        )
    raise_for_images(
        ~is_in_unit_range(images),
        batch.index,
        f"{name} left [0, 1]",
        "clamp the images of the attack to [0, 1]",
    )
    ball = "its ball" if isinstance(eps, Tensor) else f"the ball of radius {eps:g}"
    raise_for_images(
        exceeds_eps(norm.size(images - batch.images), eps),
        batch.index,
        f"{name} left {ball}",
        "project the change of the attack into the ball",
    )


@contextmanager
def _reporting_failures(attack: Attack) -> Iterator[None]:
    """Raise BrokenContract for an error inside an attack from elsewhere. An error inside a built-in one is a bug of ours."""
    try:
        yield
    except WmrError:
        raise
    except (Exception, SystemExit) as error:
        is_ours = type(attack).__module__.partition(".")[0] == __name__.partition(".")[0]
        if is_ours or out_of_memory(error) is not None:
            raise
        line = traceback.extract_tb(error.__traceback__)[-1]
        problem = f"attack {type(attack).__name__} failed: {type(error).__name__}: {error}"
        raise BrokenContract(problem, hint=f"see line {line.lineno} of {line.filename}") from error


@contextmanager
def require_unchanged(model: nn.Module, attack: Attack) -> Iterator[None]:
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
    changed = [
        path for path in parameters.keys() | after.keys() if parameters.get(path) != after.get(path)
    ]
    now = dict(model.named_buffers())
    changed += [
        path for path, before in buffers.items() if path not in now or not _same(before, now[path])
    ]
    if changed:
        raise BrokenContract(f"{name} changed {min(changed)!r} of the model", hint=hint)


def _stamps(parameter: nn.Parameter) -> tuple[int | bool, ...]:
    """What changes when a parameter, or its gradient, is replaced or written to."""
    grad = parameter.grad
    own = (id(parameter), parameter.data_ptr(), parameter._version, parameter.requires_grad)
    return own if grad is None else (*own, id(grad), grad._version)


def _same(before: Tensor, after: Tensor) -> bool:
    """Equal as bits are: a NaN is the same as itself."""
    return before.shape == after.shape and bool(
        torch.where(before.isnan(), after.isnan(), before == after).all()
    )


def predictions(logits: Tensor) -> Tensor:
    """The predicted class, (N, C) to (N,). Right or wrong is decided here and never by the sign of a margin."""
    return torch.argmax(logits, dim=1)
