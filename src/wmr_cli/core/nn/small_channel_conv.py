"""A convolution over one to three channels whose input gradient is a matrix product.

Libraries are made for many channels. At the first layer of a network of images this takes a fifth of their time on a
processor, a tenth of a whole pass of a small network.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

MOST_CHANNELS = 3


def is_thin(convolution: nn.Conv2d) -> bool:
    """Whether the gradient of this convolution can be had so."""
    plain = (
        convolution.stride == (1, 1) and convolution.dilation == (1, 1) and convolution.groups == 1
    )
    is_padded_by_zeros = convolution.padding_mode == "zeros" and not isinstance(
        convolution.padding, str
    )
    return plain and is_padded_by_zeros and convolution.in_channels <= MOST_CHANNELS


@contextmanager
def thinned(layer: nn.Module) -> Iterator[None]:
    """Inside, a convolution over few channels has that gradient, and its weights get none; any other layer is as it was."""
    if type(layer) is not nn.Conv2d or not is_thin(layer):
        yield
        return
    layer.forward = lambda images: _Thin.apply(images, layer.weight, layer.bias, layer.padding)  # type: ignore[assignment, method-assign, no-untyped-call]
    try:
        yield
    finally:
        del layer.forward


class ThinConv2d(nn.Conv2d):
    """A convolution with that gradient; its weights get none."""

    def __init__(self, like: nn.Conv2d) -> None:
        super().__init__(
            like.in_channels,
            like.out_channels,
            like.kernel_size,  # type: ignore[arg-type]
            padding=like.padding,  # type: ignore[arg-type]
            bias=like.bias is not None,
            device="meta",  # no weights are drawn: they are there
        )
        self.weight = nn.Parameter(like.weight.detach().clone())
        self.bias = None if like.bias is None else nn.Parameter(like.bias.detach().clone())

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = _Thin.apply(images, self.weight, self.bias, self.padding)  # type: ignore[no-untyped-call]
        return result


class _Thin(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        images: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]
    ) -> Tensor:
        return functional.conv2d(images, weight, bias, padding=padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        images, weight, _, padding = inputs
        ctx.save_for_backward(weight)
        ctx.shape, ctx.padding = images.shape, padding

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        """Every output pixel hands a share of its slope to each pixel under its window: a product, then a sum of shifts."""
        (weight,), (slope,) = ctx.saved_tensors, slopes
        count, channels, height, width = ctx.shape
        rows, columns = slope.shape[2:]
        # image by image: one product over all would round by how many threads share it
        windows = weight.reshape(len(weight), -1).T.expand(count, -1, -1)
        shares = torch.bmm(
            windows,
            slope.permute(0, 2, 3, 1).reshape(count, rows * columns, len(weight)).transpose(1, 2),
        )
        shares = shares.view(count, *weight.shape[1:], rows, columns)
        top, left = ctx.padding
        padded = slope.new_zeros(count, channels, height + 2 * top, width + 2 * left)
        for down in range(weight.shape[2]):
            for right in range(weight.shape[3]):
                padded[:, :, down : down + rows, right : right + columns] += shares[
                    :, :, down, right
                ]
        return padded[:, :, top : top + height, left : left + width], None, None, None
