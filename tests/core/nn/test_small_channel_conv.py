from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import grad

from wmr_cli.core.nn.fusion import arranged
from wmr_cli.core.nn.small_channel_conv import ThinConv2d, is_thin, thinned

LAYOUTS = [torch.contiguous_format, torch.channels_last]


@pytest.mark.parametrize("layout", LAYOUTS, ids=["contiguous", "channels last"])
@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize(("kernel", "padding"), [(3, 0), (3, 1), ((5, 3), (2, 0)), (1, 0)])
def test_outputs_and_input_gradients_are_those_of_the_library(
    channels: int,
    kernel: int | tuple[int, int],
    padding: int | tuple[int, int],
    layout: torch.memory_format,
) -> None:
    torch.manual_seed(0)
    known = nn.Conv2d(channels, 6, kernel, padding=padding).double()
    thin = ThinConv2d(known)
    images = arranged(torch.rand(4, channels, 9, 11, dtype=torch.float64), layout).requires_grad_()
    expected, given = known(images), thin(images)
    assert torch.equal(given, expected)
    slope = torch.rand_like(expected)
    torch.testing.assert_close(grad(given, images, slope)[0], grad(expected, images, slope)[0])


def test_a_layer_is_thin_for_a_while() -> None:
    layer, images = nn.Conv2d(1, 4, 3), torch.rand(2, 1, 5, 5, requires_grad=True)
    (expected,) = grad(layer(images).square().sum(), images)
    with thinned(layer):
        output = layer(images)
        assert "_Thin" in type(output.grad_fn).__name__
        torch.testing.assert_close(grad(output.square().sum(), images)[0], expected)
    assert "_Thin" not in type(layer(images).grad_fn).__name__
    with thinned(nn.ReLU()):
        pass


def test_it_can_be_differentiated_twice() -> None:
    thin, images = (
        ThinConv2d(nn.Conv2d(1, 2, 3).double()),
        torch.rand(2, 1, 5, 5, dtype=torch.float64, requires_grad=True),
    )
    assert torch.autograd.gradgradcheck(
        lambda images: thin.requires_grad_(False)(images).square(), images
    )


def test_it_can_be_mapped_over_images() -> None:
    thin, images = ThinConv2d(nn.Conv2d(1, 2, 3)).requires_grad_(False), torch.rand(3, 1, 5, 5)

    def slope(image: Tensor) -> Tensor:
        result: Tensor = torch.func.grad(lambda image: thin(image[None]).square().sum())(image)
        return result

    expected = torch.stack([slope(image) for image in images])
    torch.testing.assert_close(torch.func.vmap(slope)(images), expected)


@pytest.mark.parametrize(
    "options",
    [
        {"in_channels": 4}, {"stride": 2}, {"dilation": 2}, {"groups": 2, "in_channels": 2},
        {"padding": "same"}, {"padding_mode": "reflect", "padding": 1},
    ],
    ids=str,
)  # fmt: skip
def test_others_are_left_to_the_library(options: dict[str, Any]) -> None:
    geometry = {"in_channels": 1, "out_channels": 4, "kernel_size": 3} | options
    assert not is_thin(nn.Conv2d(**geometry))


def test_no_bit_depends_on_the_number_of_threads() -> None:
    thin, before = ThinConv2d(nn.Conv2d(1, 32, 3)).requires_grad_(False), torch.get_num_threads()
    images = arranged(torch.rand(69, 1, 28, 28), torch.channels_last).requires_grad_()
    slope = arranged(torch.rand(69, 32, 26, 26), torch.channels_last)
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(grad(thin(images), images, slope)[0])
    torch.set_num_threads(before)
    assert torch.equal(*found)
