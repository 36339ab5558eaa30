"""The setting `augment` is parsed, and refused where it makes no sense."""

import pytest

from wmr_cli.core.data.augment import Augmentation
from wmr_cli.core.data.color import ColorJitter
from wmr_cli.core.data.mixing import Mixer
from wmr_cli.core.data.rand_augment import RandAugment
from wmr_cli.errors import BadInput
from wmr_cli.training.augmentation import build_augmentation


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none", Augmentation()),
        ("flip", Augmentation(flips=True)),
        ("crop:4", Augmentation(4)),
        ("crop:4,flip", Augmentation(4, flips=True)),
        ("flip, crop:2:reflect", Augmentation(2, "reflect", flips=True)),
        ("resized-crop", Augmentation(smallest_area=0.08)),
        ("flip,resized-crop:0.25", Augmentation(flips=True, smallest_area=0.25)),
        ("jitter", Augmentation(jitter=ColorJitter(0.4, 0.4, 0.4, 0.0))),
        ("jitter:0.2", Augmentation(jitter=ColorJitter(0.2, 0.2, 0.2, 0.0))),
        ("jitter:0.1:0.2:0.3:1/10", Augmentation(jitter=ColorJitter(0.1, 0.2, 0.3, 0.1))),
        ("randaugment", Augmentation(rand_augment=RandAugment(2, 9))),
        ("randaugment:1:15,flip", Augmentation(flips=True, rand_augment=RandAugment(1, 15))),
        ("erase", Augmentation(erase=0.5)),
        ("erase:0.25", Augmentation(erase=0.25)),
        ("mixup:0.2", Augmentation(mixer=Mixer(0.2, 0.0))),
        ("cutmix,mixup:2", Augmentation(mixer=Mixer(2.0, 1.0))),
    ],
)
def test_an_augmentation_is_parsed(text: str, expected: Augmentation) -> None:
    assert build_augmentation(text, (3, 8, 8)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "crop",
        "crop:x",
        "crop:4:wrap",
        "flip:2",
        "rotate",
        "none,flip",
        "crop:-1",
        "mixup:1:2",
        "flip,crop:2,flip",
    ],
)
def test_an_unknown_augmentation_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="augmentation"):
        build_augmentation(text, (3, 8, 8))


@pytest.mark.parametrize(("text", "form"), [("crop", "crop:4"), ("flip,none", "leave out none")])
def test_a_known_augmentation_in_the_wrong_form_is_not_unknown(text: str, form: str) -> None:
    with pytest.raises(BadInput) as refused:
        build_augmentation(text, (3, 8, 8))
    assert "unknown" not in str(refused.value)
    assert form in str(refused.value.hint)


@pytest.mark.parametrize(
    "text", ["resized-crop:0", "resized-crop:1.5", "resized-crop:1.2.3", "crop:1,resized-crop"]
)
def test_an_impossible_resized_crop_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        build_augmentation(text, (3, 8, 8))


@pytest.mark.parametrize(
    "text",
    [
        "jitter:-1",
        "jitter:0:0:0:0.6",
        "jitter:",
        "randaugment:0:9",
        "randaugment:2:31",
        "randaugment:1.5",
        "erase:0",
        "erase:2",
        "mixup:0",
        "cutmix:1e9",
        "cutmix:x",
    ],
)
def test_numbers_of_an_augmentation_out_of_range_are_refused(text: str) -> None:
    with pytest.raises(BadInput):
        build_augmentation(text, (3, 8, 8))


@pytest.mark.parametrize("text", ["jitter:0.4", "randaugment"])
def test_changes_of_colour_need_grey_or_colour_images(text: str) -> None:
    build_augmentation(text, (1, 8, 8))
    with pytest.raises(BadInput, match="channels"):
        build_augmentation(text, (4, 8, 8))


@pytest.mark.parametrize("text", ["crop:8", "crop:40:reflect"])
def test_a_crop_of_the_whole_image_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="side 8"):
        build_augmentation(text, (3, 8, 9))
