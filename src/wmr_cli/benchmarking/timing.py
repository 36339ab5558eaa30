"""Time several functions so that their times can be compared, and upper bounds of their speed.

The functions alternate, so that other load on the machine affects all of them equally. The upper
bounds of an attack are the bare passes that it needs, and a matrix product.
"""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ..core.nn.fusion import prepare_for_attack, to_memory_format
from ..runtime.accelerators import synchronize

MATRIX_SIDE = 2048
"""Rows and columns of the matrices whose product measures the peak. They exceed most caches."""
PRODUCTS = 4
"""Number of matrix products per measurement."""
PRODUCT_FLOPS = PRODUCTS * 2 * MATRIX_SIDE**3
"""Floating-point operations of one measurement."""
Work = Callable[[], object]
"""A function to be timed. It returns when its work is complete, also on an accelerator."""


@dataclass(frozen=True)
class Quartiles:
    """The median of several measurements, and their quartiles."""

    low: float
    median: float
    high: float


def time_alternately(
    functions: Mapping[str, Work],
    rounds: int,
    seconds: float = float("inf"),
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return the seconds of each function in each round. No round begins after `seconds`."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    names = list(functions)
    started = clock()
    for number in range(rounds):
        # rotate the order: a function that always runs first would find other cache contents
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            begin = clock()
            functions[name]()
            times[name].append(clock() - begin)
        if clock() - started > seconds:
            break
    return times


def quartiles(values: Sequence[float]) -> Quartiles:
    """Return median and quartiles."""
    low, median, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    return Quartiles(low, median, high)


def time_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Quartiles:
    """Return how many times as long one function takes as another."""
    # per round: both functions of a round met the same load, so it cancels
    pairs = zip(numerators, denominators, strict=True)
    return quartiles([numerator / denominator for numerator, denominator in pairs])


def make_bare_network(model: nn.Module, images: Tensor, layout: str) -> tuple[nn.Module, Tensor]:
    """Return a fused copy of a network, and images (N, C, H, W), both in this memory format."""
    # without weight gradients, as an attack needs those of its input only
    network = copy.deepcopy(model).eval().requires_grad_(False)
    images = to_contiguous(images)
    prepared = prepare_for_attack(network, images, layout=layout, converts_weights=True)
    return prepared.module, to_memory_format(images, prepared.memory_format)


def to_contiguous(images: Tensor) -> Tensor:
    """Return a copy of images in the contiguous memory format."""
    # `contiguous()` does not copy one-channel images: their strides fit both memory formats
    return images.clone(memory_format=torch.contiguous_format)


def run_bare_passes(network: nn.Module, images: Tensor, steps: int) -> None:
    """Run the passes of an attack: `steps` input gradients, and one last forward pass."""
    for _ in range(steps):
        current = images.detach().requires_grad_()
        torch.autograd.grad(network(current).sum(), current)
    with torch.no_grad():
        network(images)
    # kernels of an accelerator are queued; without this only the launch would be timed
    synchronize(images.device)


def count_flops(network: nn.Module, images: Tensor, steps: int) -> int:
    """Count floating-point operations of `run_bare_passes`: convolutions and matrix products."""
    forward = FlopCounterMode(display=False)
    with forward, torch.no_grad():
        network(images)
    # make_bare_network has turned weight gradients off, so the backward pass has the input only
    forward_and_backward = FlopCounterMode(display=False)
    with forward_and_backward:
        # `backward()` and "+ 0", because the counter cannot follow `grad` to a leaf
        network(images.detach().requires_grad_() + 0).sum().backward()
    per_step = int(forward_and_backward.get_total_flops())
    return steps * per_step + int(forward.get_total_flops())


def make_matrices(device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return two matrices to multiply, (2, side, side)."""
    return torch.rand(2, MATRIX_SIDE, MATRIX_SIDE, device=device, dtype=dtype)


def multiply(left: Tensor, right: Tensor) -> None:
    """Multiply two matrices repeatedly, which comes close to the peak speed of a machine."""
    for _ in range(PRODUCTS):
        torch.mm(left, right)
    synchronize(left.device)
