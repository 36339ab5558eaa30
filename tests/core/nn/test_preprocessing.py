"""Normalisation is the first layer: it moves no weight, and eps stays in pixels."""

import pytest
import torch
from torch import nn

from wmr_cli.core.nn.preprocessing import Normalized
from wmr_cli.errors import BadInput
from wmr_cli.registry import Registry


def test_the_network_sees_pixels_less_mean_over_std() -> None:
    images = torch.rand(2, 3, 4, 5)
    seen = Normalized(nn.Identity(), (0.1, 0.2, 0.3), (0.5, 1.0, 2.0), channels=3)(images)
    for channel, (mean, std) in enumerate([(0.1, 0.5), (0.2, 1.0), (0.3, 2.0)]):
        torch.testing.assert_close(seen[:, channel], (images[:, channel] - mean) / std)


def test_one_value_serves_every_channel() -> None:
    images = torch.rand(2, 3, 4, 5)
    torch.testing.assert_close(
        Normalized(nn.Identity(), (0.5,), (0.25,), channels=3)(images), (images - 0.5) / 0.25
    )


def test_the_gradient_to_the_pixels_is_that_of_the_network_over_std() -> None:
    images = torch.rand(1, 2, 3, 3, requires_grad=True)
    Normalized(nn.Identity(), (0.5,), (0.25, 0.1), channels=2)(images).sum().backward()
    torch.testing.assert_close(
        images.grad, torch.tensor([4.0, 10.0]).reshape(1, 2, 1, 1).expand_as(images)
    )


@pytest.mark.parametrize(
    ("mean", "std", "name", "length"),
    [((0.5, 0.5), (1.0,), "mean", 2), ((0.5,), (1.0,) * 4, "std", 4)],
)
def test_another_number_of_values_than_channels_is_refused(
    mean: tuple[float, ...], std: tuple[float, ...], name: str, length: int
) -> None:
    with pytest.raises(
        BadInput, match=f"{name} has {length} values for images of 3 channels"
    ) as refused:
        Normalized(nn.Identity(), mean, std, channels=3)
    assert f"{name}=…" in refused.value.hint


@pytest.mark.parametrize("std", [(0.0,), (0.2, -0.1, 0.2)])
def test_a_std_that_is_not_positive_is_refused(std: tuple[float, ...]) -> None:
    with pytest.raises(BadInput, match="is not positive"):
        Normalized(nn.Identity(), (0.0,), std, channels=3)


def test_mean_and_std_come_from_the_spec_and_not_from_the_weights() -> None:
    model = Normalized(nn.Conv2d(3, 4, 1), (0.5,), (0.25,), channels=3)
    assert list(model.state_dict()) == ["network.weight", "network.bias"]


def test_mean_and_std_move_with_the_model() -> None:
    model = Normalized(nn.Identity(), (0.5,), (0.25,), channels=3).to(torch.float64)
    assert model.mean.dtype == model.std.dtype == torch.float64


def test_a_spec_can_ask_any_model_for_it(registry: Registry) -> None:
    from wmr_cli.runtime import components

    plain = components.build_model(registry, "digits-cnn", 4, (1, 8, 8))
    model = components.build_model(registry, "digits-cnn:mean=0.5,std=1/4", 4, (1, 8, 8))
    model.get_submodule("network").load_state_dict(plain.state_dict())
    images = torch.rand(3, 1, 8, 8)
    torch.testing.assert_close(model(images), plain((images - 0.5) / 0.25))
