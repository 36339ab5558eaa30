"""Run attacks and check what components return.

All checks are cheap. An error names the component, or the image by its index in the dataset.
"""

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import BrokenContract, WmrError, out_of_memory
from .norms import Norm
from .protocols import Attack, AttackResult, Batch, Objective, StepReport

# float32 rounding of pixels adds up over a large image
ABSOLUTE_TOLERANCE = 1e-6
RELATIVE_TOLERANCE = 1e-5
"""Tolerances for the size of a perturbation."""


def exceeds_eps(size: Tensor, eps: float | Tensor) -> Tensor:
    """Return which perturbations of these sizes (N,) leave the ε-ball; eps may be one per image."""
    return size > eps * (1 + RELATIVE_TOLERANCE) + ABSOLUTE_TOLERANCE


def is_in_unit_range(images: Tensor) -> Tensor:
    """Return which images (N, C, H, W) have all pixels in [0, 1]; NaN is not."""
    return ((images >= 0) & (images <= 1)).flatten(1).all(dim=1)


def predictions(logits: Tensor) -> Tensor:
    """Return the predicted class, (N, C) to (N,)."""
    # the one definition of a prediction: the sign of a margin differs from it at ties
    return torch.argmax(logits, dim=1)


def raise_for_images(is_invalid: Tensor, index: Tensor, problem: str, hint: str = "") -> None:
    """Raise BrokenContract for the first image of the mask (N,)."""
    if is_invalid.any():
        image = int(index[int(is_invalid.nonzero()[0, 0])])
        raise BrokenContract(f"image {image}: {problem}", hint=hint)


@dataclass(frozen=True, eq=False)
class ImageCheck:
    """The images (N,) that violate a condition, and the error for the first of them."""

    is_invalid: Tensor
    problem: str
    hint: str = ""


def raise_for_checks(checks: Sequence[ImageCheck], index: Tensor) -> None:
    """Raise BrokenContract for the first check that an image does not pass."""
    # one result for all checks: each result that the host reads is a wait for the device
    if not bool(torch.stack([check.is_invalid for check in checks]).any()):
        return
    for check in checks:
        raise_for_images(check.is_invalid, index, check.problem, check.hint)


def check_batch(batch: Batch, num_classes: int) -> None:
    """Check types and shapes of a batch, images in [0, 1] and labels in [0, C)."""
    hint = (
        "a split returns Batch(images, labels, index): "
        "images (N, C, H, W), labels and index (N,), as tensors"
    )
    _check_tensors("the dataset", batch, ("images", "labels", "index"), hint)
    parts = (batch.images, batch.labels, batch.index)
    count = len(batch.images) if batch.images.ndim == 4 else -1
    has_integers = all(_are_integers(part, count) for part in (batch.labels, batch.index))
    if not batch.images.is_floating_point() or not has_integers:
        shapes = ", ".join(f"{part.dtype} {tuple(part.shape)}" for part in parts)
        raise BrokenContract(f"the dataset returned a batch of {shapes}", hint=hint)
    pixels = ImageCheck(
        ~is_in_unit_range(batch.images),
        "its pixels are not in [0, 1]",
        "scale images to [0, 1]; normalisation belongs inside the model",
    )
    raise_for_checks((pixels, _find_unknown_labels(batch, num_classes)), batch.index)


def check_stored_batch(batch: Batch, num_classes: int) -> None:
    """Check the labels of a batch whose images are bytes: all bytes are valid pixels."""
    raise_for_checks((_find_unknown_labels(batch, num_classes),), batch.index)


def _find_unknown_labels(batch: Batch, num_classes: int) -> ImageCheck:
    return ImageCheck(
        (batch.labels < 0) | (batch.labels >= num_classes),
        f"its label is not in 0…{num_classes - 1}",
        "number the classes from 0",
    )


def _check_tensors(owner: str, result: object, names: tuple[str, ...], hint: str) -> None:
    """Check that a result has these tensors."""
    for name in names:
        # plugins may return any object
        if not isinstance(getattr(result, name, None), Tensor):
            raise BrokenContract(
                f"{owner} returned a {type(result).__name__} without a tensor {name!r}", hint=hint
            )


def _are_integers(values: Tensor, count: int) -> bool:
    """Return whether this is a vector of `count` integers."""
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        return False
    return values.shape == (count,)


def check_logits(logits: Tensor, index: Tensor, num_classes: int) -> None:
    """Check that outputs are one finite logit per class and image."""
    _check_logit_shape(logits, len(index), num_classes)
    raise_for_checks((_find_infinite_logits(logits),), index)


def _check_logit_shape(logits: Tensor, count: int, num_classes: int) -> None:
    """Check that outputs are one logit per class and image."""
    if not isinstance(logits, Tensor):
        raise BrokenContract(
            f"the model returned a {type(logits).__name__}",
            hint="a model returns one tensor of logits, or an object that holds it as 'logits'",
        )
    if logits.shape != (count, num_classes) or num_classes < 2:
        raise BrokenContract(
            f"the model returned outputs of shape {tuple(logits.shape)} "
            f"for {count} images of {num_classes} classes",
            hint="a model returns logits (images, classes), for at least two classes",
        )


def _find_infinite_logits(logits: Tensor) -> ImageCheck:
    """Find images with a logit that is not finite."""
    # argmax would silently choose a class that is NaN
    return ImageCheck(
        ~logits.isfinite().all(dim=1),
        "its logits are not finite",
        "the model has diverged, or its weights are damaged",
    )


def check_log_weights(kernel: object, log_weights: Tensor, count: int) -> None:
    """Check that a kernel returned one log-weight per image, finite or -inf."""
    name = type(kernel).__name__
    hint = "a kernel returns one log-weight per image, (N,), as floats; -inf is a weight of zero"
    if not isinstance(log_weights, Tensor):
        raise BrokenContract(f"kernel {name} returned a {type(log_weights).__name__}", hint=hint)
    if log_weights.shape != (count,) or not log_weights.is_floating_point():
        shape = f"{log_weights.dtype} of shape {tuple(log_weights.shape)}"
        raise BrokenContract(f"kernel {name} returned {shape} for {count} images", hint=hint)
    if bool((log_weights.isnan() | (log_weights == torch.inf)).any()):
        raise BrokenContract(f"kernel {name} returned a log-weight of NaN or +inf", hint=hint)


def check_report(defense: object, report: StepReport, count: int) -> None:
    """Check the report of a training step on `count` images."""
    name = type(defense).__name__
    names = ("losses", "weights", "margins", "correct")
    hint = (
        f"step() of a defense returns StepReport({', '.join(names)}), "
        "with one value per image in each"
    )
    _check_tensors(f"step of {name}", report, names, hint)
    shapes = {tuple(getattr(report, part).shape) for part in names}
    is_vector = len(shapes) == 1 and report.losses.ndim == 1
    # another length than the batch is allowed: a step may replay a batch and report every pass
    if not is_vector or (count > 0 and not len(report.losses)):
        listed = ", ".join(map(str, sorted(shapes)))
        raise BrokenContract(
            f"step of {name} returned values of shape {listed} for {count} images", hint=hint
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
    """Run an attack and check its result: in the ε-ball and [0, 1], finite logits, same model."""
    with _reporting_failures(attack), require_unchanged(model, attack):
        result = attack(model, batch, objective, seed=seed, need_logits=need_logits)
    _check_result(attack, result, batch, need_logits=need_logits)
    checks = _find_invalid_images(attack, result.images, batch, threat)
    if result.logits is not None:
        _check_logit_shape(result.logits, len(batch.index), threat.num_classes)
        checks.append(_find_infinite_logits(result.logits))
    raise_for_checks(checks, batch.index)
    return result


def _check_result(attack: Attack, result: AttackResult, batch: Batch, *, need_logits: bool) -> None:
    """Check that a result has its tensors, on the device of the images."""
    name = type(attack).__name__
    hint = "an attack returns AttackResult(images, steps_survived, logits), as tensors"
    # logits that an attack returns without need are checked, too: they may be used
    names: tuple[str, ...] = ("images", "steps_survived")
    if need_logits or (isinstance(result, AttackResult) and result.logits is not None):
        names = (*names, "logits")
    _check_tensors(name, result, names, hint)
    device = batch.images.device
    for part in names:
        tensor: Tensor = getattr(result, part)
        if tensor.device != device:
            raise BrokenContract(
                f"{name} returned {part} on {tensor.device}, the images are on {device}", hint=hint
            )
        if part != "steps_survived" and not tensor.is_floating_point():
            raise BrokenContract(f"{name} returned {part} as {tensor.dtype}", hint=hint)
    shape = tuple(result.steps_survived.shape)
    if shape != tuple(batch.labels.shape):
        raise BrokenContract(
            f"{name} returned steps_survived of shape {shape} for {len(batch.labels)} images",
            hint=hint,
        )


def _find_invalid_images(
    attack: Attack, images: Tensor, batch: Batch, threat: ThreatModel
) -> list[ImageCheck]:
    """Find adversarial images outside the ε-ball or [0, 1]."""
    name = type(attack).__name__
    if images.shape != batch.images.shape:
        shapes = f"{tuple(images.shape)} from {tuple(batch.images.shape)}"
        raise BrokenContract(
            f"{name} made images of shape {shapes}",
            hint="an attack returns images of the shape it was given",
        )
    radius = "" if isinstance(threat.eps, Tensor) else f" of radius {threat.eps:g}"
    return [
        ImageCheck(
            ~is_in_unit_range(images),
            f"{name} left [0, 1]",
            "clamp the images of the attack to [0, 1]",
        ),
        ImageCheck(
            exceeds_eps(threat.norm.size(images - batch.images), threat.eps),
            f"{name} left the ε-ball{radius}",
            "project the perturbation into the ε-ball",
        ),
    ]


@contextmanager
def _reporting_failures(attack: Attack) -> Iterator[None]:
    """Raise BrokenContract for an error inside the attack of a plugin."""
    try:
        yield
    except WmrError:
        raise
    # SystemExit too: a plugin must not end the run without a message
    except (Exception, SystemExit) as error:
        # an error inside a built-in attack is a bug here, and keeps its traceback
        is_builtin = type(attack).__module__.partition(".")[0] == __name__.partition(".")[0]
        if is_builtin or out_of_memory(error) is not None:
            raise
        line = traceback.extract_tb(error.__traceback__)[-1]
        problem = f"attack {type(attack).__name__} failed: {type(error).__name__}: {error}"
        raise BrokenContract(problem, hint=f"see line {line.lineno} of {line.filename}") from error


@contextmanager
def require_unchanged(model: nn.Module, attack: Attack) -> Iterator[None]:
    """Raise BrokenContract if modes, parameters, gradients or buffers change inside."""
    name = type(attack).__name__
    modes = [module.training for module in model.modules()]
    # by identity and version, so that a large model costs no copy
    parameters = {path: _version(parameter) for path, parameter in model.named_parameters()}
    # by value, because batch-norm updates its statistics without a new version; buffers are small.
    # In train mode these updates are intended.
    buffers = None if any(modes) else BufferSnapshot.take(model)
    yield
    hint = "an attack must not change the model, nor may its forward pass in eval mode"
    if modes != [module.training for module in model.modules()]:
        raise BrokenContract(f"{name} changed the mode of the model", hint=hint)
    new_parameters = {path: _version(parameter) for path, parameter in model.named_parameters()}
    changed = [
        path
        for path in parameters.keys() | new_parameters.keys()
        if parameters.get(path) != new_parameters.get(path)
    ]
    if buffers is not None:
        changed += buffers.list_changes(model)
    if changed:
        raise BrokenContract(f"{name} changed {min(changed)!r} of the model", hint=hint)


def _version(parameter: nn.Parameter) -> tuple[int | bool, ...]:
    """Values that change when a parameter or its gradient is replaced or written to."""
    own = (id(parameter), parameter.data_ptr(), parameter._version, parameter.requires_grad)
    if parameter.grad is None:
        return own
    return (*own, id(parameter.grad), parameter.grad._version)


@dataclass(frozen=True, eq=False)
class BufferSnapshot:
    """Values of all buffers of a model, as one tensor per type and device.

    Many small copies and comparisons would take longer on a GPU than the attack step.
    """

    paths: dict[tuple[torch.dtype, torch.device], list[str]]
    shapes: dict[str, torch.Size]
    values: dict[tuple[torch.dtype, torch.device], Tensor]

    @classmethod
    def take(cls, model: nn.Module) -> "BufferSnapshot":
        """Copy the current values."""
        buffers = dict(model.named_buffers())
        paths: dict[tuple[torch.dtype, torch.device], list[str]] = {}
        for path, buffer in buffers.items():
            paths.setdefault((buffer.dtype, buffer.device), []).append(path)
        shapes = {path: buffer.shape for path, buffer in buffers.items()}
        values = {kind: _join(buffers, of_kind) for kind, of_kind in paths.items()}
        return cls(paths, shapes, values)

    def list_changes(self, model: nn.Module) -> list[str]:
        """Return the paths of buffers that were removed, replaced by another kind, or changed."""
        buffers = dict(model.named_buffers())
        replaced = [
            path
            for kind, of_kind in self.paths.items()
            for path in of_kind
            if path not in buffers
            or (buffers[path].dtype, buffers[path].device) != kind
            or buffers[path].shape != self.shapes[path]
        ]
        if replaced:
            return replaced
        masks = {
            # NaN equals NaN, and nothing else differs from itself
            kind: (old != new) & ((old == old) | (new == new))
            for kind, old in self.values.items()
            for new in [_join(buffers, self.paths[kind])]
        }
        if not masks:
            return []
        # one result for all: each result that the host reads is a wait for the device
        device = next(iter(masks.values())).device
        if not bool(torch.stack([mask.any().to(device) for mask in masks.values()]).any()):
            return []
        changed = []
        for kind, mask in masks.items():
            sizes = [self.shapes[path].numel() for path in self.paths[kind]]
            parts = zip(self.paths[kind], mask.split(sizes), strict=True)
            changed += [path for path, part in parts if bool(part.any())]
        return changed


def _join(buffers: dict[str, Tensor], paths: list[str]) -> Tensor:
    """Return the values of these buffers as one vector."""
    return torch.cat([buffers[path].flatten() for path in paths])
