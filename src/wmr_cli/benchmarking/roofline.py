"""Upper bounds of speed: the bare passes that every attack needs, and a matrix product."""

import copy

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ..core.nn.fusion import arrange, arranged, leaned
from ..runtime.fabric import memory_format, synchronize

MATRIX_SIDE = 2048
"""Rows and columns of the matrices whose product measures the peak. They exceed most caches."""
PRODUCTS = 4
"""Number of matrix products per measurement."""
PRODUCT_FLOPS = PRODUCTS * 2 * MATRIX_SIDE**3
"""Floating-point operations of one measurement."""


def make_bare_network(model: nn.Module, images: Tensor, layout: str) -> tuple[nn.Module, Tensor]:
    """Return a fused copy of a network, and images (N, C, H, W), both in this memory format."""
    wanted = memory_format(layout, images.device)
    # without weight gradients, as an attack needs those of its input only
    network = copy.deepcopy(model).eval().requires_grad_(False)
    arrange(network, wanted)
    inputs = arranged(to_contiguous(images), wanted)
    return leaned(network, inputs, wanted), inputs


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
    forward_and_backward = FlopCounterMode(display=False)
    with forward_and_backward:
        # `backward()` and "+ 0", because the counter cannot follow `grad` to a leaf
        network(images.detach().requires_grad_() + 0).sum().backward()
    per_step = int(forward_and_backward.get_total_flops())
    return steps * per_step + int(forward.get_total_flops())


def make_matrices(device: torch.device) -> Tensor:
    """Return two matrices to multiply, (2, side, side)."""
    return torch.rand(2, MATRIX_SIDE, MATRIX_SIDE, device=device)


def multiply(left: Tensor, right: Tensor) -> None:
    """Multiply two matrices repeatedly, which comes close to the peak speed of a machine."""
    for _ in range(PRODUCTS):
        torch.mm(left, right)
    synchronize(left.device)
