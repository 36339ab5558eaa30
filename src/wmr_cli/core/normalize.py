"""Normalisation as a layer of the model, so that images stay in [0, 1] and eps is in pixel units."""

import torch
from torch import Tensor, nn

from ..errors import BadInput


class Normalized(nn.Module):
    """A network that sees (images - mean) / std, a number per channel or one for all. Both come from the spec."""

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, mean: tuple[float, ...], std: tuple[float, ...], channels: int) -> None:
        super().__init__()
        for name, values in {"mean": mean, "std": std}.items():
            if len(values) not in (1, channels):
                problem = f"{name} has {len(values)} values for images of {channels} channels"
                raise BadInput(problem, hint=f"write {name}=… with one value, or one per channel joined by colons")
            self.register_buffer(name, torch.tensor(values).reshape(1, -1, 1, 1), persistent=False)
        if min(std) <= 0:
            raise BadInput(f"std {min(std):g} is not positive", hint="pixels are divided by std")
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network((images - self.mean) / self.std)
        return logits
