"""The contract of a kernel."""

import copy
import dataclasses
from typing import Any

import torch
from torch import Tensor

from ..core.losses import cross_entropy
from ..core.protocols import Evidence, Kernel, ObservesValidation
from ..core.traits import KernelTraits
from .fixtures import CLASSES, all_close, check_state, require, require_traits


def check_kernel(kernel: Kernel) -> None:
    """Check the log-weights of a kernel, its traits, its gradient and its state.

    There is one log-weight per image, a number or -inf. It depends on the evidence that `needs`
    names and, unless the kernel compares images, on no other image. With alpha = 0 all weights
    are 1.
    """
    _check_traits(kernel)
    fresh = copy.deepcopy(kernel)
    evidence = _needed_evidence(kernel)
    log_weights = _apply(kernel, evidence)
    _check_values(log_weights, evidence)
    require(
        torch.equal(log_weights, _apply(kernel, evidence)),
        "the same evidence gives other log-weights",
    )
    _check_order(kernel, evidence, log_weights)
    _check_precision(kernel, evidence, log_weights)
    _check_gradient(kernel, evidence)
    _check_alpha(kernel, evidence)
    if isinstance(kernel, ObservesValidation):
        kernel.observe(_full_evidence())
        _check_values(_apply(kernel, evidence), evidence)
    check_state(kernel, fresh, "the kernel")


def _check_traits(kernel: Kernel) -> None:
    traits = require_traits(kernel, KernelTraits, "the kernel")
    if not traits.differentiable:
        return
    require(
        not traits.compares_images,
        "a kernel that compares images has the trait `differentiable=False`",
    )
    # an attack on the weights sees one image at a time, and only its logits, label and loss
    unavailable = sorted(traits.needs - {"loss"})
    require(
        not unavailable,
        f"a weighted attack has no {', '.join(unavailable)}: set the trait `differentiable=False`",
    )


def _full_evidence() -> Evidence:
    """Return random logits, confident logits of the true and of another class, and ties."""
    torch.manual_seed(0)
    labels = torch.arange(12) % CLASSES
    logits = torch.randn(12, CLASSES)
    rows = torch.arange(12)
    # all classes tie
    logits[6] = 0.0
    # margins of +1 and -1 to within rounding, where logarithms and softmax may overflow
    logits[7, labels[7]] = 60.0
    logits[8, labels[8]] = -60.0
    logits[9] = -40.0
    logits[9, labels[9]] = 40.0
    clean = logits + 0.1 * torch.randn(12, CLASSES)
    loss = cross_entropy(logits, labels)
    return Evidence(logits, labels, rows, clean, steps_survived=rows % 5, loss=loss)


def _needed_evidence(kernel: Kernel) -> Evidence:
    """Return logits, labels and what the trait `needs` names, but nothing else."""
    full = _full_evidence()
    needed: dict[str, Any] = {name: getattr(full, name) for name in kernel.traits.needs}
    return Evidence(full.logits, full.labels, **needed)


def _select(evidence: Evidence, rows: Tensor) -> Evidence:
    """Return the evidence of these rows."""
    fields = {field.name: getattr(evidence, field.name) for field in dataclasses.fields(evidence)}
    return dataclasses.replace(
        evidence, **{name: value[rows] for name, value in fields.items() if value is not None}
    )


def _apply(kernel: Kernel, evidence: Evidence) -> Tensor:
    try:
        return kernel(evidence)
    except (AttributeError, TypeError) as error:
        available = [
            field.name
            for field in dataclasses.fields(evidence)
            if getattr(evidence, field.name) is not None
        ]
        raise AssertionError(
            f"it fails with only {', '.join(available)}; "
            "the trait `needs` names all other evidence that it requires"
        ) from error


def _check_values(log_weights: Tensor, evidence: Evidence) -> None:
    count = len(evidence.labels)
    require(
        log_weights.shape == (count,),
        f"log-weights of shape {tuple(log_weights.shape)}, not one for each of {count} images",
    )
    require(log_weights.is_floating_point(), f"log-weights of type {log_weights.dtype}, not float")
    is_invalid = log_weights.isnan() | (log_weights == torch.inf)
    require(~is_invalid.any(), "a log-weight is NaN or +inf")


def _check_order(kernel: Kernel, evidence: Evidence, log_weights: Tensor) -> None:
    # with all images, so that kernels that compare images give the same weights
    reverse = torch.arange(len(log_weights)).flip(0)
    is_same = all_close(_apply(kernel, _select(evidence, reverse)), log_weights[reverse])
    require(is_same, "log-weights are not in the order of the images")
    if kernel.traits.compares_images:
        return
    rows = torch.tensor([7, 2, 5])
    is_independent = all_close(_apply(kernel, _select(evidence, rows)), log_weights[rows])
    require(
        is_independent,
        "an image's weight depends on the other images: "
        "set the traits `compares_images=True` and `differentiable=False`",
    )


def _check_precision(kernel: Kernel, evidence: Evidence, log_weights: Tensor) -> None:
    """Check that float64, in which metrics are computed, gives the same log-weights."""
    loss = None if evidence.loss is None else evidence.loss.double()
    in_float64 = dataclasses.replace(evidence, logits=evidence.logits.double(), loss=loss)
    require(
        all_close(_apply(kernel, in_float64).double(), log_weights.double(), atol=1e-4, rtol=1e-4),
        "logits in float64 give other log-weights than in float32",
    )


def _check_gradient(kernel: Kernel, evidence: Evidence) -> None:
    """Check that a gradient, which attacks follow, is finite."""
    logits = evidence.logits.clone().requires_grad_()
    loss = None if evidence.loss is None else cross_entropy(logits, evidence.labels)
    log_weights = _apply(kernel, dataclasses.replace(evidence, logits=logits, loss=loss))
    if not kernel.traits.differentiable or not log_weights.requires_grad:
        return
    # a weight of 0 has a log-weight of -inf, whose gradient is not defined
    is_finite = log_weights.isfinite()
    (gradient,) = torch.autograd.grad(log_weights[is_finite].sum(), logits, allow_unused=True)
    require(
        gradient is None or bool(gradient.isfinite().all()),
        "the gradient of a log-weight is not finite",
    )


def _check_alpha(kernel: Any, evidence: Evidence) -> None:  # noqa: ANN401 - or no dataclass
    is_dataclass = dataclasses.is_dataclass(kernel)
    if not is_dataclass or "alpha" not in {field.name for field in dataclasses.fields(kernel)}:
        return
    unweighted: Kernel = dataclasses.replace(kernel, alpha=0.0)
    require(
        (_apply(unweighted, evidence) == 0).all(),
        "with `alpha=0`, the unweighted baseline, a weight is not 1",
    )
