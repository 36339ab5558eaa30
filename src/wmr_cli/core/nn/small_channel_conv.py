"""Convolutions over one to three channels whose input gradient is a matrix product.

Libraries are optimised for many channels. At the first layer of an image model this needs a fifth
of their time on a CPU, which saves a tenth of a whole pass of a small model.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

MAX_CHANNELS = 3


def has_few_channels(convolution: nn.Conv2d) -> bool:
    """Whether the input gradient of this convolution can be computed as a matrix product."""
    is_plain = (
        convolution.stride == (1, 1) and convolution.dilation == (1, 1) and convolution.groups == 1
    )
    # padding by name ("same") may differ between the two sides
    is_padded_by_zeros = convolution.padding_mode == "zeros" and not isinstance(
        convolution.padding, str
    )
    return is_plain and is_padded_by_zeros and convolution.in_channels <= MAX_CHANNELS


@contextmanager
def matmul_input_gradient(layer: nn.Module) -> Iterator[None]:
    """Let a convolution over few channels use the faster gradient inside, without weight gradients.

    Any other layer stays as it is.
    """
    if type(layer) is not nn.Conv2d or not has_few_channels(layer):
        yield
        return
    layer.forward = lambda images: _SmallChannelConv.apply(  # type: ignore[assignment, method-assign, no-untyped-call]
        images, layer.weight, layer.bias, layer.padding
    )
    try:
        yield
    finally:
        # the method of the class becomes visible again
        del layer.forward


class SmallChannelConv2d(nn.Conv2d):
    """A convolution with the faster input gradient; its weights get no gradient."""

    def __init__(self, original: nn.Conv2d) -> None:
        super().__init__(
            original.in_channels,
            original.out_channels,
            original.kernel_size,  # type: ignore[arg-type]
            padding=original.padding,  # type: ignore[arg-type]
            bias=original.bias is not None,
            device="meta",  # no random initialisation: the weights are copied
        )
        self.weight = nn.Parameter(original.weight.detach().clone())
        if original.bias is not None:
            self.bias = nn.Parameter(original.bias.detach().clone())

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = _SmallChannelConv.apply(  # type: ignore[no-untyped-call]
            images, self.weight, self.bias, self.padding
        )
        return result


class _SmallChannelConv(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        images: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]
    ) -> Tensor:
        return functional.conv2d(images, weight, bias, padding=padding)

    @staticmethod
    def setup_context(
        ctx: Any,  # noqa: ANN401 - torch gives its class no public name
        inputs: tuple[Any, ...],
        output: Tensor,
    ) -> None:
        images, weight, _, padding = inputs
        ctx.save_for_backward(weight)
        ctx.shape = images.shape
        ctx.padding = padding

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401 - torch gives its class no public name
        *gradients: Tensor,
    ) -> tuple[Tensor | None, ...]:
        """Distribute the gradient of each output pixel to the pixels under its window."""
        (weight,) = ctx.saved_tensors
        (gradient,) = gradients
        count, channels, height, width = ctx.shape
        rows, columns = gradient.shape[2:]
        # image by image: how one product over all images is rounded depends on the threads
        windows = weight.reshape(len(weight), -1).T.expand(count, -1, -1)
        outputs = gradient.permute(0, 2, 3, 1).reshape(count, rows * columns, len(weight))
        contributions = torch.bmm(windows, outputs.transpose(1, 2))
        contributions = contributions.view(count, *weight.shape[1:], rows, columns)
        top, left = ctx.padding
        padded = gradient.new_zeros(count, channels, height + 2 * top, width + 2 * left)
        # a sum over window offsets: each shifts the contributions of one weight position
        for down in range(weight.shape[2]):
            for right in range(weight.shape[3]):
                window = padded[:, :, down : down + rows, right : right + columns]
                window += contributions[:, :, down, right]
        return padded[:, :, top : top + height, left : left + width], None, None, None
