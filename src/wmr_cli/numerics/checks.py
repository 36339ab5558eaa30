"""Compare the arithmetic of a device with stored, proved and exactly known results.

Tolerances are far above the rounding of float32 and far below that of TF32 or bfloat16. All
computations use the precision of an evaluation: float32 without TF32.
"""

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..api import Result, create, evaluate
from ..core import rng
from ..core.contexts import exact_float32
from ..core.losses import cross_entropy
from ..core.nn.fusion import prepare_for_attack
from ..core.protocols import Batch
from .reference import (
    ALPHA,
    EPS,
    NUM_IMAGES,
    PGD,
    Reference,
    load_reference,
    make_random_words,
)

MAX_LOGIT_DEVIATION = 1e-4
"""Logits are below 20: rounding causes about 1e-5, TF32 about 1e-2."""
MAX_RELATIVE_DEVIATION = 3e-5
"""As a fraction of the largest value: rounding causes about 1e-6, TF32 about 1e-3."""
MAX_A_SA_DEVIATION = 1e-3
"""A gradient near 0 may change its sign by rounding, which moves one pixel of an image."""
MIN_FOUND = 0.97
"""Fraction of the vulnerable images that a short AutoAttack finds."""
AUTOATTACK = "autoattack:steps=20,queries=200"
MATRIX_SIZE = 64
# Up to 12 bits, of which TF32 keeps 11 and bfloat16 8. All sums stay below 2^24, so that float32
# has no rounding error in any order of summation.
LARGEST_LEFT = 4095
LARGEST_RIGHT = 7
NETWORK_SHAPE = (8, 3, 12, 12)
"""Images of the network with convolutions and batch-norm."""


@dataclass(frozen=True)
class Finding:
    """One quantity on this device beside its expected value."""

    quantity: str
    here: float
    expected: float
    tolerance: float = 0.0
    is_bound: bool = False
    """Whether larger values are as good."""

    @property
    def deviation(self) -> float:
        """Distance from the expected value; 0 on the better side of a bound."""
        difference = self.here - self.expected
        if self.is_bound:
            return max(0.0, -difference)
        return abs(difference)

    @property
    def passed(self) -> bool:
        """Whether the value is a number within the tolerance."""
        return math.isfinite(self.here) and self.deviation <= self.tolerance

    def to_builtins(self) -> dict[str, str | float | bool | None]:
        """Return all values for JSON, which has no NaN."""
        values = {"here": self.here, "expected": self.expected, "deviation": self.deviation}
        finite = {name: one if math.isfinite(one) else None for name, one in values.items()}
        return {
            "quantity": self.quantity,
            **finite,
            "tolerance": self.tolerance,
            "is_bound": self.is_bound,
            "passed": self.passed,
        }


def check_numerics(device: torch.device) -> Iterator[Finding]:
    """Yield all findings on a device."""
    reference = load_reference()
    split = create("dataset", "digits").splits["test"]
    batch = split.batch(torch.arange(NUM_IMAGES))
    yield _check_random_words(reference, device)
    with exact_float32():
        yield _check_matrix_product(device)
        yield from _check_convolutions(device)
        yield from _check_network(reference, batch, device)
    yield from _check_pgd(reference, batch, device)
    yield from _check_attacks(reference, batch, device)


def _check_random_words(reference: Reference, device: torch.device) -> Finding:
    words = make_random_words(device).cpu()
    different = int((words != reference.random_words).sum())
    return Finding(f"random words that differ, of {words.numel()}", different, 0)


def _check_matrix_product(device: torch.device) -> Finding:
    left = _make_integers(LARGEST_LEFT, seed=1)
    right = _make_integers(LARGEST_RIGHT, seed=2)
    found = left.float().to(device) @ right.float().to(device)
    wrong = int((found.cpu() != (left @ right).float()).sum())
    return Finding(f"wrong entries of an integer matrix product, of {found.numel()}", wrong, 0)


def _make_integers(largest: int, seed: int) -> Tensor:
    """Return a square matrix of integers from -largest to largest."""
    words = rng.random_words(torch.arange(MATRIX_SIZE), MATRIX_SIZE, seed)
    return words % (2 * largest + 1) - largest


def _check_convolutions(device: torch.device) -> Iterator[Finding]:
    """Yield the deviation of convolutions and of their fused form from float64."""
    network = _make_convolutions()
    images = rng.uniform(torch.empty(NETWORK_SHAPE), torch.arange(NETWORK_SHAPE[0]), seed=3)
    with torch.no_grad():
        # the CPU computes the reference: some devices have no float64
        exact = network.double()(images.double())
        network.float().to(device)
        plain = network(images.to(device))
    prepared = prepare_for_attack(network, images.to(device))
    # a fused model that differs from the plain one is not used
    yield Finding("batch-norms fused into convolutions", prepared.num_fused, 2)
    with torch.no_grad():
        fused = prepared.module(images.to(device))
    logits = {"convolutions": plain, "fused convolutions": fused}
    for name, found in logits.items():
        yield Finding(
            f"{name}: largest deviation", _relative(found, exact), 0, MAX_RELATIVE_DEVIATION
        )


def _make_convolutions() -> nn.Sequential:
    """Return a small network with batch-norm whose weights and statistics are random numbers."""
    network = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 36, 10),
    )
    state = network.state_dict()
    for number, (name, values) in enumerate(state.items()):
        if values.is_floating_point():
            drawn = rng.uniform(values[None], torch.tensor([number]), seed=4)[0]
            # variances are positive; all other values have both signs
            values.copy_(drawn + 0.5 if name.endswith("running_var") else drawn - 0.5)
    return network.eval().requires_grad_(False)


def _check_network(reference: Reference, batch: Batch, device: torch.device) -> Iterator[Finding]:
    """Yield deviations of clean logits and of input gradients from float64."""
    network = reference.network.to(device)
    on_device = batch.to(device)
    images = on_device.images.clone().requires_grad_()
    logits = network(images)
    (gradients,) = torch.autograd.grad(cross_entropy(logits, on_device.labels).sum(), images)
    largest = float((logits.detach().cpu() - reference.logits).abs().max())
    yield Finding("clean logits: largest deviation", largest, 0, MAX_LOGIT_DEVIATION)
    relative = _relative(gradients, reference.gradients)
    yield Finding("input gradients: largest deviation", relative, 0, MAX_RELATIVE_DEVIATION)


def _relative(found: Tensor, exact: Tensor) -> float:
    """Return the largest deviation as a fraction of the largest value."""
    return float((found.detach().cpu().double() - exact).abs().max() / exact.abs().max())


def _check_pgd(reference: Reference, batch: Batch, device: torch.device) -> Iterator[Finding]:
    """Yield what deterministic PGD gives beside its stored results."""
    result = evaluate_attack(reference.network, batch, PGD, device)
    labels = batch.labels.numpy()
    stored = reference.pgd_predictions.numpy()
    different = int((result.rows["uniform/prediction"] != stored).sum())
    yield Finding(f"PGD: predictions that differ, of {len(stored)}", different, 0)
    a_nat = float((reference.logits.argmax(dim=1) == batch.labels).double().mean())
    yield Finding("A_nat", result.a_nat.value, a_nat)
    yield Finding("PGD: A_rob", result.a_rob.value, float((stored == labels).mean()))
    a_sa = result.a_sa(ALPHA).value
    yield Finding(f"PGD: A_sa({ALPHA:g})", a_sa, reference.pgd_a_sa, MAX_A_SA_DEVIATION)


def _check_attacks(reference: Reference, batch: Batch, device: torch.device) -> Iterator[Finding]:
    """Yield what attacks reach beside the proved lowest margins."""
    lowest = reference.lowest_margins.numpy()
    rows = evaluate_attack(reference.network, batch, "pgd-margin", device).rows
    below = max(float((lowest - rows["uniform/logit_margin"]).max()), 0.0)
    yield Finding("PGD: margin below the proved lowest one", below, 0, MAX_LOGIT_DEVIATION)
    rows = evaluate_attack(reference.network, batch, AUTOATTACK, device).rows
    is_broken = rows["uniform/prediction"] != rows["label"]
    is_vulnerable = lowest < 0
    broken = int((is_broken & ~is_vulnerable).sum())
    robust = int((~is_vulnerable).sum())
    yield Finding(f"AutoAttack: misclassified images of {robust} robust ones", broken, 0)
    found = float(is_broken[is_vulnerable].mean())
    missed = 1 - MIN_FOUND
    name = "AutoAttack: fraction of the vulnerable images"
    yield Finding(name, found, 1, tolerance=missed, is_bound=True)


def evaluate_attack(network: nn.Module, batch: Batch, attack: str, device: torch.device) -> Result:
    """Evaluate as a user does, without caveats about the small number of images."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return evaluate(
            network,
            [(batch.images, batch.labels, batch.index)],
            attack=attack,
            eps=EPS,
            metrics=("nat", "rob", "sa"),
            alphas=(ALPHA,),
            device=device,
        )
