"""Preprocessing as layers of the model.

Outside the model images stay in [0, 1] and in their own size, so eps is in units of their pixels.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...errors import BadInput


class Normalized(nn.Module):
    """A model of (images - mean) / std, with one value per channel or one for all."""

    mean: Tensor
    std: Tensor

    def __init__(
        self, network: nn.Module, mean: tuple[float, ...], std: tuple[float, ...], channels: int
    ) -> None:
        super().__init__()
        for name, values in {"mean": mean, "std": std}.items():
            if len(values) not in (1, channels):
                raise BadInput(
                    f"{name} has {len(values)} values for images of {channels} channels",
                    hint=f"write {name}=… with one value, or one per channel joined by colons",
                )
            # not persistent: both come from the spec, and checkpoints of other tools lack them
            self.register_buffer(name, torch.tensor(values).reshape(1, -1, 1, 1), persistent=False)
        if min(std) <= 0:
            raise BadInput(f"std {min(std):g} is not positive", hint="pixels are divided by std")
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network((images - self.mean) / self.std)
        return logits


class Resized(nn.Module):
    """A model of images resized bilinearly, from (N, C, H, W) to (N, C, size, size)."""

    def __init__(self, network: nn.Module, size: int) -> None:
        super().__init__()
        self.network = network
        self.size = size

    def forward(self, images: Tensor) -> Tensor:
        # without antialiasing a smaller image would depend on a few of the pixels only
        is_smaller = self.size < max(images.shape[2:])
        resized = functional.interpolate(
            images, (self.size, self.size), mode="bilinear", antialias=is_smaller
        )
        logits: Tensor = self.network(resized)
        return logits


def unwrap_preprocessing(model: nn.Module) -> tuple[nn.Module, str]:
    """Return the network inside these layers, and the prefix of its parameter names."""
    prefix = ""
    while isinstance(model, Normalized | Resized):
        model = model.network
        prefix += "network."
    return model, prefix
