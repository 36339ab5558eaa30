"""What a kernel promises."""

import copy
import dataclasses
from typing import Any

import torch
from torch import Tensor

from ..core.losses import cross_entropy
from ..core.protocols import Evidence, Kernel, ObservesValidation
from ..core.traits import KernelTraits
from .assertions import all_close, check_state, require, require_traits
from .fixtures import CLASSES


def check_kernel(kernel: Kernel) -> None:
    """One log-weight per image, a number or -inf, from the evidence that it names and from no other image, unless it says
    that it compares; gradients that an attack can climb, or it is detached; with alpha = 0 all weights are 1.
    """
    _check_traits(kernel)
    fresh = copy.deepcopy(kernel)
    evidence = _evidence(kernel)
    logs = _weighed(kernel, evidence)
    _check_values(logs, evidence)
    require(
        torch.equal(logs, _weighed(kernel, evidence)), "the same evidence gives other log-weights"
    )
    _check_order(kernel, evidence, logs)
    _check_precision(kernel, evidence, logs)
    _check_gradient(kernel, evidence)
    _check_alpha(kernel, evidence)
    if isinstance(kernel, ObservesValidation):
        kernel.observe(_full_evidence())
        _check_values(_weighed(kernel, evidence), evidence)
    check_state(kernel, fresh, "the kernel")


def _full_evidence() -> Evidence:
    """Random logits, logits of a network that is sure of the right or a wrong class, and ties."""
    torch.manual_seed(0)
    labels = torch.arange(12) % CLASSES
    logits = torch.randn(12, CLASSES)
    rows = torch.arange(12)
    logits[6], logits[7, labels[7]], logits[8, labels[8]] = 0.0, 60.0, -60.0
    logits[9], logits[9, labels[9]] = -40.0, 40.0
    clean = logits + 0.1 * torch.randn(12, CLASSES)
    return Evidence(
        logits, labels, rows, clean, steps_survived=rows % 5, loss=cross_entropy(logits, labels)
    )


def _evidence(kernel: Kernel) -> Evidence:
    """Logits, labels and what the kernel names in `needs`: the rest it has to do without."""
    full = _full_evidence()
    needed: dict[str, Any] = {name: getattr(full, name) for name in kernel.traits.needs}
    return Evidence(full.logits, full.labels, **needed)


def _at(evidence: Evidence, rows: Tensor) -> Evidence:
    """The evidence of these rows alone."""
    known: dict[str, Any] = {
        field.name: getattr(evidence, field.name) for field in dataclasses.fields(evidence)
    }
    parts: dict[str, Any] = {
        name: part if part is None else part[rows] for name, part in known.items()
    }
    return Evidence(**parts)


def _weighed(kernel: Kernel, evidence: Evidence) -> Tensor:
    try:
        return kernel(evidence)
    except (AttributeError, TypeError) as error:
        told = [
            field.name
            for field in dataclasses.fields(evidence)
            if getattr(evidence, field.name) is not None
        ]
        raise AssertionError(
            f"it fails with {', '.join(told)} alone; other evidence that it requires belongs into the trait `needs`"
        ) from error


def _check_traits(kernel: Kernel) -> None:
    traits = require_traits(kernel, KernelTraits, "the kernel")
    if not traits.differentiable:
        return
    require(
        not traits.compares_images,
        "a kernel that compares images has the trait `differentiable=False`",
    )
    beyond = sorted(traits.needs - {"loss"})
    require(
        not beyond,
        f"a weighted attack has no {', '.join(beyond)}: set the trait `differentiable=False`",
    )


def _check_values(logs: Tensor, evidence: Evidence) -> None:
    count = len(evidence.labels)
    require(
        logs.shape == (count,),
        f"log-weights of shape {tuple(logs.shape)}, not one for each of {count} images",
    )
    require(logs.is_floating_point(), f"log-weights of type {logs.dtype}, not of a float")
    require(~(logs.isnan() | (logs == torch.inf)).any(), "a log-weight is not a number or -inf")


def _check_order(kernel: Kernel, evidence: Evidence, logs: Tensor) -> None:
    turned = torch.arange(len(logs)).flip(0)
    is_same = all_close(_weighed(kernel, _at(evidence, turned)), logs[turned])
    require(is_same, "log-weights are not in the order of the images")
    if not kernel.traits.compares_images:
        rows = torch.tensor([7, 2, 5])
        is_own = all_close(_weighed(kernel, _at(evidence, rows)), logs[rows])
        require(
            is_own,
            "an image's weight depends on the other images: "
            "set the traits `compares_images=True` and `differentiable=False`",
        )


def _check_precision(kernel: Kernel, evidence: Evidence, logs: Tensor) -> None:
    """Metrics weigh in float64."""
    loss = None if evidence.loss is None else evidence.loss.double()
    fine = _weighed(
        kernel, dataclasses.replace(evidence, logits=evidence.logits.double(), loss=loss)
    )
    require(
        all_close(fine.double(), logs.double(), atol=1e-4, rtol=1e-4),
        "logits in float64 give other log-weights than in float32",
    )


def _check_gradient(kernel: Kernel, evidence: Evidence) -> None:
    """Where there is a gradient, an attack climbs it unless the kernel says that it is detached."""
    logits = evidence.logits.clone().requires_grad_()
    loss = None if evidence.loss is None else cross_entropy(logits, evidence.labels)
    logs = _weighed(kernel, dataclasses.replace(evidence, logits=logits, loss=loss))
    if not kernel.traits.differentiable or not logs.requires_grad:
        return
    finite = logs.isfinite()
    (gradient,) = torch.autograd.grad(logs[finite].sum(), logits, allow_unused=True)
    require(
        gradient is None or bool(gradient.isfinite().all()),
        "the gradient of a log-weight is not finite",
    )


def _check_alpha(kernel: Any, evidence: Evidence) -> None:
    if "alpha" not in {field.name for field in _fields(kernel)}:
        return
    unweighted = dataclasses.replace(kernel, alpha=0.0)
    require(
        (_weighed(unweighted, evidence) == 0).all(),
        "with alpha = 0 a weight is not 1: --alpha 0 is the unweighted baseline",
    )


def _fields(kernel: Kernel) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(kernel) if dataclasses.is_dataclass(kernel) else ()
