"""What a machine can do at best: the bare passes that no attack can do without, and a matrix product."""

import copy
import warnings

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from .devices import settle

LAYOUTS = {"contiguous": torch.contiguous_format, "channels-last": torch.channels_last}
"""How images and convolutions may lie in memory."""
SIDE, TIMES = 2048, 4
"""Of the matrices whose product shows the peak, larger than most caches; and how often they are multiplied."""


def bare(model: nn.Module, layout: str) -> nn.Module:
    """A copy for nothing but input gradients: eval mode, batch-norm folded where torch can, parameters without gradient."""
    network = _folded(copy.deepcopy(model).eval())
    for parameter in network.parameters():
        if parameter.ndim == 4:
            parameter.data = laid_out(parameter.data, layout)
    return network.requires_grad_(False)


def _folded(network: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the module of torch that folds brings old parts of it along
        from torch.fx.experimental.optimization import fuse
    try:
        return fuse(network)  # a copy
    except Exception:  # noqa: BLE001 - of any kind: a stranger's forward that cannot be traced stays as it is
        return network


def climb(network: nn.Module, images: Tensor, steps: int) -> None:
    """The passes of an attack without the attack: `steps` times forward and back to the input, and the last forward."""
    for _ in range(steps):
        current = images.detach().requires_grad_()
        torch.autograd.grad(network(current).sum(), current)
    with torch.no_grad():
        network(images)
    settle(images.device)


def laid_out(images: Tensor, layout: str) -> Tensor:
    """Images (N, C, H, W), or the weights of a convolution, in a layout."""
    return images.contiguous(memory_format=LAYOUTS[layout])


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
