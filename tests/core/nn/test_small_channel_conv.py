from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import grad

from wmr_cli.core.nn.fusion import to_memory_format
from wmr_cli.core.nn.small_channel_conv import (
    SmallChannelConv2d,
    has_few_channels,
    matmul_input_gradient,
)

MEMORY_FORMATS = [torch.contiguous_format, torch.channels_last]


@pytest.mark.parametrize("memory_format", MEMORY_FORMATS, ids=["contiguous", "channels last"])
@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize(("kernel", "padding"), [(3, 0), (3, 1), ((5, 3), (2, 0)), (1, 0)])
def test_outputs_and_input_gradients_equal_those_of_torch(
    channels: int,
    kernel: int | tuple[int, int],
    padding: int | tuple[int, int],
    memory_format: torch.memory_format,
) -> None:
    torch.manual_seed(0)
    library = nn.Conv2d(channels, 6, kernel, padding=padding).double()
    small = SmallChannelConv2d(library)
    images = to_memory_format(
        torch.rand(4, channels, 9, 11, dtype=torch.float64), memory_format
    ).requires_grad_()
    expected, given = library(images), small(images)
    assert torch.equal(given, expected)
    output_gradient = torch.rand_like(expected)
    torch.testing.assert_close(
        grad(given, images, output_gradient)[0], grad(expected, images, output_gradient)[0]
    )


def test_layer_uses_the_faster_gradient_only_inside_the_context() -> None:
    layer, images = nn.Conv2d(1, 4, 3), torch.rand(2, 1, 5, 5, requires_grad=True)
    (expected,) = grad(layer(images).square().sum(), images)
    with matmul_input_gradient(layer):
        output = layer(images)
        assert "_SmallChannelConv" in type(output.grad_fn).__name__
        torch.testing.assert_close(grad(output.square().sum(), images)[0], expected)
    assert "_SmallChannelConv" not in type(layer(images).grad_fn).__name__
    with matmul_input_gradient(nn.ReLU()):
        pass


def test_second_derivatives_are_correct() -> None:
    small, images = (
        SmallChannelConv2d(nn.Conv2d(1, 2, 3).double()),
        torch.rand(2, 1, 5, 5, dtype=torch.float64, requires_grad=True),
    )
    assert torch.autograd.gradgradcheck(
        lambda images: small.requires_grad_(False)(images).square(), images
    )


def test_vmap_gives_the_gradients_of_single_images() -> None:
    small, images = (
        SmallChannelConv2d(nn.Conv2d(1, 2, 3)).requires_grad_(False),
        torch.rand(3, 1, 5, 5),
    )

    def image_gradient(image: Tensor) -> Tensor:
        result: Tensor = torch.func.grad(lambda image: small(image[None]).square().sum())(image)
        return result

    expected = torch.stack([image_gradient(image) for image in images])
    torch.testing.assert_close(torch.func.vmap(image_gradient)(images), expected)


@pytest.mark.parametrize(
    "options",
    [
        {"in_channels": 4}, {"stride": 2}, {"dilation": 2}, {"groups": 2, "in_channels": 2},
        {"padding": "same"}, {"padding_mode": "reflect", "padding": 1},
    ],
    ids=str,
)  # fmt: skip
def test_other_geometries_are_not_supported(options: dict[str, Any]) -> None:
    geometry = {"in_channels": 1, "out_channels": 4, "kernel_size": 3} | options
    assert not has_few_channels(nn.Conv2d(**geometry))


def test_gradient_is_bit_identical_for_any_number_of_threads() -> None:
    small, before = (
        SmallChannelConv2d(nn.Conv2d(1, 32, 3)).requires_grad_(False),
        torch.get_num_threads(),
    )
    images = to_memory_format(torch.rand(69, 1, 28, 28), torch.channels_last).requires_grad_()
    output_gradient = to_memory_format(torch.rand(69, 32, 26, 26), torch.channels_last)
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(grad(small(images), images, output_gradient)[0])
    torch.set_num_threads(before)
    assert torch.equal(*found)
