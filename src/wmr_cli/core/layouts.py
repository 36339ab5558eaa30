"""How the numbers of images and weights lie in memory: image by image as planes, or pixel by pixel (channels last)."""

import torch
from torch import Tensor, nn

from .modes import evaluating


def arranged(tensor: Tensor, memory_format: torch.memory_format) -> Tensor:
    """The same numbers (N, C, H, W) in this layout. With one channel, too, where torch takes the two layouts for one."""
    if memory_format == torch.channels_last and tensor.stride(1) != 1:
        return tensor.clone(memory_format=memory_format)
    return tensor


def arrange(network: nn.Module, memory_format: torch.memory_format) -> None:
    """Bring the weights of convolutions into this layout; the parameters stay the same objects."""
    for parameter in network.parameters():
        if parameter.ndim == 4:
            parameter.data = arranged(parameter.data, memory_format)


def bearable(network: nn.Module, images: Tensor, wanted: torch.memory_format) -> torch.memory_format:
    """This layout, or the plain one for a network that cannot take it: one that calls `view` where it means `reshape`."""
    if wanted == torch.channels_last:
        try:
            with torch.no_grad(), evaluating(network):
                network(arranged(images, wanted))
        except RuntimeError:
            return torch.contiguous_format
    return wanted
