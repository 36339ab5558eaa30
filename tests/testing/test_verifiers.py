"""The check of verifiers accepts a sound one, and refuses each kind of violation."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from wmr_cli.core import Batch, LogitBounds, VerifierTraits
from wmr_cli.testing import check_verifier

Change = Callable[[Tensor, nn.Module, Batch], object]


@dataclass
class Interval:
    """Interval bounds of the network of the check, with a `change` of its result."""

    change: Change = lambda lower, model, batch: lower
    calls: int = 0

    traits = VerifierTraits()

    def __call__(
        self, model: nn.Module, batch: Batch, *, norm: str, eps: float, num_classes: int
    ) -> Any:  # noqa: ANN401 - some are not bounds
        self.calls += 1
        low = (batch.images - eps).clamp(min=0).double().flatten(1)
        high = (batch.images + eps).clamp(max=1).double().flatten(1)
        for layer in model.children():
            if isinstance(layer, nn.Linear):
                centre = (low + high) / 2 @ layer.weight.double().T + layer.bias.double()
                radius = (high - low) / 2 @ layer.weight.double().abs().T
                low, high = centre - radius, centre + radius
            elif isinstance(layer, nn.ReLU):
                low, high = low.relu(), high.relu()
        true_class = batch.labels[:, None]
        lower = (low.gather(1, true_class) - high - 1e-5).detach()
        found = self.change(lower.scatter(1, true_class, torch.inf), model, batch)
        return LogitBounds(found) if isinstance(found, Tensor) else found


def test_interval_bounds_meet_the_contract() -> None:
    check_verifier(Interval())


def shift_by_calls(verifier: Interval) -> Change:
    return lambda lower, model, batch: lower - verifier.calls


def write_into_model(lower: Tensor, model: nn.Module, batch: Batch) -> Tensor:
    with torch.no_grad():
        next(model.parameters()).mul_(1.0001)
    return lower - 10


def write_into_batch(lower: Tensor, model: nn.Module, batch: Batch) -> Tensor:
    batch.images.mul_(0.999)
    return lower


def train(lower: Tensor, model: nn.Module, batch: Batch) -> Tensor:
    model.train()
    return lower


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda lower, model, batch: lower + 50, "violates"),
        (lambda lower, model, batch: lower[:, 1:], "shape"),
        (lambda lower, model, batch: lower.float(), "float64"),
        (lambda lower, model, batch: lower.clamp(max=3), r"\+inf"),
        (lambda lower, model, batch: lower * torch.nan, r"\+inf"),
        (lambda lower, model, batch: lower.tolist(), "LogitBounds"),
        (lambda lower, model, batch: lower - len(lower), "other images"),
        (write_into_model, "model"),
        (write_into_batch, "batch"),
        (train, "training mode"),
    ],
)
def test_each_violation_is_refused(change: Change, problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        check_verifier(Interval(change))


def test_a_result_that_depends_on_earlier_calls_is_refused() -> None:
    verifier = Interval()
    verifier.change = shift_by_calls(verifier)
    with pytest.raises(AssertionError, match="other bounds"):
        check_verifier(verifier)


def test_a_verifier_without_traits_or_norms_is_refused() -> None:
    class Bare:
        __call__ = Interval.__call__

    with pytest.raises(AssertionError, match="traits"):
        check_verifier(Bare())  # type: ignore[arg-type]

    class WithoutNorms(Interval):
        traits = VerifierTraits(norms=frozenset())

    with pytest.raises(AssertionError, match="norms"):
        check_verifier(WithoutNorms())
