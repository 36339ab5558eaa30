"""Time several functions so that their times can be compared, and upper bounds of their speed.

The functions alternate, so that other load on the machine affects all of them equally. The upper
bounds of an attack are the bare passes that it needs, and a matrix product.
"""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from ..core.nn.fusion import prepare_for_attack, to_memory_format
from ..runtime.accelerators import synchronize

MATRIX_SIDE = 2048
"""Rows and columns of the matrices whose product measures the peak. They exceed most caches."""
PRODUCTS = 4
"""Number of matrix products per measurement."""
PRODUCT_FLOPS = PRODUCTS * 2 * MATRIX_SIDE**3
"""Floating-point operations of one measurement."""
BLOCK_BYTES = 2**28
"""Size of the block whose copy measures the bandwidth of memory. It exceeds all caches."""
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


class Roofline(TorchDispatchMode):
    """Adds up the shortest time of all convolutions and matrix products inside.

    It is the longer of the time to compute and the time to read operands and write results. Other
    operations count as nothing: a perfect compiler would make them part of these.
    """

    def __init__(self, flops_per_second: float, bytes_per_second: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seconds = 0.0
        self._flops_per_second = flops_per_second
        self._bytes_per_second = bytes_per_second

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - torch gives operators no public type
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the operator returns
        result = func(*args, **(kwargs or {}))
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            flops = count(*args, **(kwargs or {}), out_val=result)
            tensors = [each for each in tree_leaves((args, result)) if isinstance(each, Tensor)]
            num_bytes = sum(each.numel() * each.element_size() for each in tensors)
            self.seconds += max(flops / self._flops_per_second, num_bytes / self._bytes_per_second)
        return result


def estimate_roofline(
    network: nn.Module,
    images: Tensor,
    steps: int,
    *,
    flops_per_second: float,
    bytes_per_second: float,
) -> float:
    """Return the seconds that `run_bare_passes` would take at the roofline."""
    forward = Roofline(flops_per_second, bytes_per_second)
    with forward, torch.no_grad():
        network(images)
    step = Roofline(flops_per_second, bytes_per_second)
    current = images.detach().requires_grad_()
    with step:
        torch.autograd.grad(network(current).sum(), current)
    return steps * step.seconds + forward.seconds


def copy_block(source: Tensor, target: Tensor) -> None:
    """Copy a large block inside the memory of a device."""
    target.copy_(source)
    synchronize(target.device)


def make_matrices(device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return two matrices to multiply, (2, side, side)."""
    return torch.rand(2, MATRIX_SIDE, MATRIX_SIDE, device=device, dtype=dtype)


def multiply(left: Tensor, right: Tensor) -> None:
    """Multiply two matrices repeatedly, which comes close to the peak speed of a machine."""
    for _ in range(PRODUCTS):
        torch.mm(left, right)
    synchronize(left.device)
