"""What a machine can do at best: the bare passes that no attack can do without, and a matrix product."""

import copy

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ..core.layouts import arrange, arranged
from ..core.lean import leaned
from .devices import memory_format, settle

SIDE, TIMES = 2048, 4
"""Of the matrices whose product shows the peak, larger than most caches; and how often they are multiplied."""


def bare(model: nn.Module, images: Tensor, layout: str) -> tuple[nn.Module, Tensor]:
    """A copy for nothing but input gradients, as lean as attacks have it, and images (N, C, H, W), both in this layout."""
    wanted = memory_format(layout, images.device)
    network = copy.deepcopy(model).eval().requires_grad_(False)
    arrange(network, wanted)
    placed = arranged(as_planes(images), wanted)
    return leaned(network, placed, wanted), placed


def as_planes(images: Tensor) -> Tensor:
    """Images in torch's usual layout. With one channel torch takes them to be in it already, whatever their strides say."""
    return images.clone(memory_format=torch.contiguous_format)


def climb(network: nn.Module, images: Tensor, steps: int) -> None:
    """The passes of an attack without the attack: `steps` times forward and back to the input, and the last forward."""
    for _ in range(steps):
        current = images.detach().requires_grad_()
        torch.autograd.grad(network(current).sum(), current)
    with torch.no_grad():
        network(images)
    settle(images.device)


def operations(network: nn.Module, images: Tensor, steps: int) -> int:
    """Floating-point operations of `climb`, in the convolutions and matrix products of the network."""
    forward, both = (FlopCounterMode(display=False) for _ in range(2))
    with forward, torch.no_grad():
        network(images)
    with both:
        network(images.detach().requires_grad_() + 0).sum().backward()  # the counter cannot follow `grad` to a leaf
    return steps * int(both.get_total_flops()) + int(forward.get_total_flops())


def multiply(left: Tensor, right: Tensor) -> None:
    """A matrix product, several times: as near to its peak as a machine comes."""
    for _ in range(TIMES):
        torch.mm(left, right)
    settle(left.device)


def matrices(device: torch.device) -> Tensor:
    """Two matrices to multiply, (2, SIDE, SIDE)."""
    return torch.rand(2, SIDE, SIDE, device=device)


PRODUCT = TIMES * 2 * SIDE**3
"""Operations of that."""
