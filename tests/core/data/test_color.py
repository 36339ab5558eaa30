"""Colour changes, RandAugment and random erasing equal torchvision's functions image by image."""

import importlib
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, ks_2samp, kstest
from torch import Tensor

from wmr_cli.core.data import augment, color, rand_augment
from wmr_cli.core.data.augment import Augmentation
from wmr_cli.core.data.color import ColorJitter
from wmr_cli.core.data.rand_augment import OPERATIONS, RandAugment
from wmr_cli.core.torchvision_compat import torchvision

v2 = importlib.import_module(f"{torchvision.__name__}.transforms.v2")
functional = v2.functional
ADJUSTMENTS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "brightness": (color.adjust_brightness, functional.adjust_brightness),
    "contrast": (color.adjust_contrast, functional.adjust_contrast),
    "saturation": (color.adjust_saturation, functional.adjust_saturation),
    "hue": (color.adjust_hue, functional.adjust_hue),
}
THEIRS = v2.RandAugment()


def make_images(count: int = 8, channels: int = 3, height: int = 16, width: int = 20) -> Tensor:
    """Random images; the first two are black and grey, which have no hue."""
    images = torch.rand(
        count, channels, height, width, generator=torch.Generator().manual_seed(count)
    )
    images[0] = 0
    images[1] = 0.5
    return images


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", ADJUSTMENTS)
def test_an_adjustment_equals_that_of_torchvision(name: str, channels: int) -> None:
    ours, theirs = ADJUSTMENTS[name]
    images = make_images(channels=channels)
    factors = torch.tensor([0.0, 0.3, 0.9, 1.0, 1.1, 1.7, 2.5, 0.5])
    if name == "hue":
        factors = torch.tensor([0.0, 0.3, -0.5, 0.5, -0.1, 0.1, 0.49, -0.25])
    expected = [theirs(image, float(f)) for image, f in zip(images, factors, strict=True)]
    assert (ours(images, factors) - torch.stack(expected)).abs().max() < 5e-6


def test_a_jitter_applies_its_drawn_factors_in_its_drawn_order() -> None:
    jitter = ColorJitter(0.5, 0.4, 0.3, 0.2)
    images = make_images(24)
    index = torch.arange(24) + 50
    order, factors = jitter.draw(index, seed=3)
    assert len({tuple(row) for row in order.tolist()}) > 8
    theirs = [theirs for _, theirs in ADJUSTMENTS.values()]
    for image, own_order, own_factors, made in zip(
        images, order.tolist(), factors.tolist(), jitter(images, index, 3), strict=True
    ):
        expected = image
        for kind in own_order:
            expected = theirs[kind](expected, own_factors[kind])
        # a hue of almost equal channels amplifies rounding
        assert (made - expected).abs().max() < 1e-4


def test_factors_of_a_jitter_are_uniform_in_their_range() -> None:
    order, factors = ColorJitter(0.5, 0.4, 1.5, 0.2).draw(torch.arange(4000), seed=1)
    for column, (low, high) in enumerate([(0.5, 1.5), (0.6, 1.4), (0.0, 2.5), (-0.2, 0.2)]):
        assert kstest(factors[:, column].numpy(), "uniform", (low, high - low)).pvalue > 0.001
    counts = np.unique(order.numpy(), axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert chisquare(counts).pvalue > 0.001


def test_a_jitter_of_strength_0_changes_nothing() -> None:
    images = make_images()
    assert torch.equal(ColorJitter()(images, torch.arange(8), 0), images)


@pytest.mark.parametrize("magnitude", [0, 9, 30])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", OPERATIONS[1:])
def test_an_operation_equals_that_of_torchvision(
    name: str, channels: int, sign: int, magnitude: int
) -> None:
    images = make_images(channels=channels)
    _, height, width = images.shape[1:]
    make_values, is_signed = THEIRS._AUGMENTATION_SPACE[name]
    values = make_values(31, height, width)
    value = 0.0 if values is None else float(values[magnitude])
    if is_signed:
        value *= sign
    expected = [
        THEIRS._apply_image_or_video_transform(image, name, value, "nearest", {Tensor: None})
        for image in images
    ]
    own_value = RandAugment(2, magnitude).value(name, height, width)
    made = rand_augment.apply_operation(name, images, own_value, sign)
    assert (made - torch.stack(expected)).abs().max() < 5e-6


def test_operations_are_those_of_torchvision_and_equally_frequent() -> None:
    assert list(OPERATIONS) == list(THEIRS._AUGMENTATION_SPACE)
    kinds, negative = RandAugment(2).draw(torch.arange(5000), seed=2)
    for place in range(2):
        assert chisquare(kinds[:, place].bincount(minlength=14).numpy()).pvalue > 0.001
        assert chisquare(negative[:, place].long().bincount().numpy()).pvalue > 0.001


def test_operations_are_applied_one_after_the_other() -> None:
    images = make_images(30)
    index = torch.arange(30)
    change = RandAugment(3, 12)
    kinds, negative = change.draw(index, seed=5)
    made = change(images, index, 5)
    height, width = images.shape[2:]
    for number, image in enumerate(images):
        expected = image[None]
        for kind, is_negative in zip(kinds[number], negative[number], strict=True):
            name = OPERATIONS[kind]
            if name != "Identity":
                value = change.value(name, height, width)
                sign = -1 if is_negative else 1
                expected = rand_augment.apply_operation(name, expected, value, sign)
        assert (made[number] - expected[0]).abs().max() < 1e-6


def test_erased_boxes_have_the_distribution_of_torchvision() -> None:
    boxes = augment.draw_erased_boxes(torch.arange(3000), 32, 40, 3, probability=1.0)
    image = torch.zeros(1, 32, 40)
    theirs = v2.RandomErasing(p=1.0)
    torch.manual_seed(0)
    drawn = [theirs.make_params([image]) for _ in range(3000)]
    for column, key in enumerate("ijhw"):
        expected = [each[key] for each in drawn]
        assert ks_2samp(boxes[:, column].numpy(), expected).pvalue > 0.001, key


def test_erasing_equals_that_of_torchvision() -> None:
    images = make_images(12) + 0.1
    index = torch.arange(12)
    boxes = augment.draw_erased_boxes(index, 16, 20, 7, probability=0.5)
    made = Augmentation(erase=0.5)(images, index, 7)
    assert 0 < (boxes[:, 2] > 0).sum() < 12
    for image, box, ours in zip(images, boxes.tolist(), made, strict=True):
        expected = functional.erase(image, *box, torch.zeros(1, 1, 1))
        assert torch.equal(ours, expected)


def test_erasing_has_its_probability() -> None:
    boxes = augment.draw_erased_boxes(torch.arange(4000), 32, 32, 1, probability=0.25)
    erased = int((boxes[:, 2:].prod(dim=1) > 0).sum())
    assert chisquare([erased, 4000 - erased], [1000, 3000]).pvalue > 0.001


@pytest.mark.parametrize(
    "change",
    [
        Augmentation(jitter=ColorJitter(0.4, 0.4, 0.4, 0.1)),
        Augmentation(rand_augment=RandAugment(2, 9)),
        Augmentation(erase=0.5),
        Augmentation(
            2, "zero", True, None, ColorJitter(0.4, 0.4, 0.4, 0.1), RandAugment(2, 20), 0.5
        ),
    ],
    ids=["jitter", "randaugment", "erase", "all"],
)
def test_a_change_depends_on_seed_and_index_alone(change: Augmentation) -> None:
    images = make_images(40)
    index = torch.arange(100, 140)
    whole = change(images, index, seed=5)
    rows = torch.tensor([13, 2, 31, 7])
    assert torch.equal(change(images[rows], index[rows], seed=5), whole[rows])
    assert torch.equal(change(images, index, seed=5), whole)
    assert not torch.equal(change(images, index, seed=6), whole)
    assert whole.shape == images.shape
    assert ((whole >= 0) & (whole <= 1)).all()
