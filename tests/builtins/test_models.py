"""The embedded networks: shapes, names and how they begin."""

import pytest
import torch

from wmr_cli.builtins.models.digits_cnn import DigitsCnn
from wmr_cli.builtins.models.small_cnn import SmallCnn
from wmr_cli.errors import BadInput


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def test_small_cnn_has_the_parameters_of_the_trades_network():
    assert parameters(SmallCnn(10, (1, 28, 28))) == 312_202


def test_small_cnn_names_its_weights_as_the_trades_network_does():
    convolutions = [f"feature_extractor.conv{number}" for number in (1, 2, 3, 4)]
    layers = [*convolutions, *(f"classifier.fc{number}" for number in (1, 2, 3))]
    assert list(SmallCnn(10, (1, 28, 28)).state_dict()) == [f"{layer}.{part}" for layer in layers for part in ("weight", "bias")]


def test_small_cnn_starts_with_every_class_as_likely_as_any_other():
    logits = SmallCnn(10, (1, 28, 28))(torch.rand(3, 1, 28, 28, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(logits, torch.zeros(3, 10))


def test_small_cnn_starts_with_convolutions_of_he_normal_weights():
    torch.manual_seed(0)
    for number, inputs in ((2, 32), (3, 32), (4, 64)):
        weight = SmallCnn(10, (1, 28, 28)).feature_extractor.get_submodule(f"conv{number}").weight
        assert weight.std().item() == pytest.approx((2 / (9 * inputs)) ** 0.5, rel=0.05)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 16, 16), (2, 17, 30)])
def test_small_cnn_takes_images_of_other_shapes(shape):
    assert SmallCnn(7, shape)(torch.rand(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 15, 28), (1, 28, 15), (1, 2, 2)])
def test_small_cnn_refuses_images_that_are_too_small(shape):
    with pytest.raises(BadInput, match="16x16 pixels at least"):
        SmallCnn(10, shape)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 7), (1, 2, 2), (1, 28, 28)])
@pytest.mark.parametrize("classes", [2, 10])
def test_digits_cnn_takes_images_of_any_shape(shape, classes):
    logits = DigitsCnn(classes, shape)(torch.rand(5, *shape))
    assert logits.shape == (5, classes)
    assert logits.isfinite().all()


def test_digits_cnn_has_the_size_of_its_layers():
    convolutions = (9 * 1 * 4 + 4) + (9 * 4 * 8 + 8)
    assert parameters(DigitsCnn(10, (1, 8, 8), width=4, hidden=6)) == convolutions + (8 * 4 * 4 * 6 + 6) + (6 * 10 + 10)


@pytest.mark.parametrize(("shape", "settings"), [((1, 1, 8), {}), ((1, 8, 8), {"width": 0}), ((1, 8, 8), {"hidden": 0})])
def test_digits_cnn_refuses_what_cannot_be_built(shape, settings):
    with pytest.raises(BadInput, match="digits-cnn cannot be built"):
        DigitsCnn(10, shape, **settings)
