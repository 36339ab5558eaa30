"""What happens to images first, as layers of the model: outside they stay in [0, 1], and eps is in their own pixels."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...errors import BadInput


class Normalized(nn.Module):
    """A network that sees (images - mean) / std, a number per channel or one for all. Both come from the spec."""

    mean: Tensor
    std: Tensor

    def __init__(
        self, network: nn.Module, mean: tuple[float, ...], std: tuple[float, ...], channels: int
    ) -> None:
        super().__init__()
        for name, values in {"mean": mean, "std": std}.items():
            if len(values) not in (1, channels):
                problem = f"{name} has {len(values)} values for images of {channels} channels"
                raise BadInput(
                    problem,
                    hint=f"write {name}=… with one value, or one per channel joined by colons",
                )
            self.register_buffer(name, torch.tensor(values).reshape(1, -1, 1, 1), persistent=False)
        if min(std) <= 0:
            raise BadInput(f"std {min(std):g} is not positive", hint="pixels are divided by std")
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network((images - self.mean) / self.std)
        return logits


class Resized(nn.Module):
    """A network that sees images resized bilinearly, (N, C, H, W) to (N, C, size, size); gradient reaches the original pixels."""

    def __init__(self, network: nn.Module, size: int) -> None:
        super().__init__()
        self.network, self.size = network, size

    def forward(self, images: Tensor) -> Tensor:
        # made smaller without antialias, images lose most of their pixels; made larger, they do not need it
        is_smaller = self.size < max(images.shape[2:])
        resized = functional.interpolate(
            images, (self.size, self.size), mode="bilinear", antialias=is_smaller
        )
        logits: Tensor = self.network(resized)
        return logits


def unwrap_preprocessing(model: nn.Module) -> tuple[nn.Module, str]:
    """The network behind these layers, and what the names of its weights begin with."""
    prefix = ""
    while isinstance(model, Normalized | Resized):
        model, prefix = model.network, f"{prefix}network."
    return model, prefix
