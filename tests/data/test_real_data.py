"""MNIST, CIFAR-10 and Tiny ImageNet as they are published: counts, shapes, class histograms, hashes.

Reads the folder in WMR_DATA_DIR, laid out as `wmr` itself lays it out.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from PIL import Image

from wmr_cli.core.data.augment import Augmentation
from wmr_cli.core.torchvision_compat import torchvision
from wmr_cli.registry import Registry
from wmr_cli.testing import check_dataset

ROOT = os.environ.get("WMR_DATA_DIR")
pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(ROOT is None, reason="WMR_DATA_DIR names no folder with real data"),
]

MNIST_TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST_TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


@pytest.fixture(scope="module")
def make(registry: Registry):
    sources = {}

    def made(name: str):
        if name not in sources:
            sources[name] = registry.create("dataset", name, root=Path(ROOT))
        return sources[name]

    return made


def histogram(*splits) -> list[int]:
    return torch.cat([split.labels for split in splits]).bincount().tolist()


@pytest.mark.parametrize(
    ("name", "shape", "train", "test"),
    [
        ("mnist", (1, 28, 28), MNIST_TRAIN, MNIST_TEST),
        ("cifar10", (3, 32, 32), [5000] * 10, [1000] * 10),
        ("tiny-imagenet", (3, 64, 64), None, [50] * 200),
    ],
)
def test_counts_shapes_and_classes_are_the_published_ones(
    make, name: str, shape: tuple[int, int, int], train: list[int] | None, test: list[int]
) -> None:
    source = make(name)
    assert (source.input_shape, source.num_classes) == (shape, len(test))
    assert histogram(source.splits["test"]) == test
    if train is not None:
        assert histogram(source.splits["train"], source.splits["val"]) == train
    check_dataset(source)


def test_the_training_pictures_of_tiny_imagenet_that_are_there_are_counted_and_used(make) -> None:
    source = make("tiny-imagenet")
    counts = histogram(source.splits["train"], source.splits["val"])
    there = len(list((Path(ROOT) / "tiny-imagenet-200" / "train").rglob("*.JPEG")))
    assert len(counts) == 200
    assert sum(counts) == there
    expected = (
        None
        if there == 100_000
        else f"{there:,} of the 100,000 training images of Tiny ImageNet exist"
    )
    assert source.splits["train"].note == expected


def mode(path: Path) -> str:
    with Image.open(path) as picture:
        return picture.mode


def test_grey_pictures_of_tiny_imagenet_become_colour_ones(make) -> None:
    split = make("tiny-imagenet").splits["test"]
    grey = [position for position, path in enumerate(split.paths[:1000]) if mode(path) == "L"]
    assert 5 < len(grey) < 50, "about two in a hundred are grey"
    images = split.batch(torch.tensor(grey)).images
    assert torch.equal(images[:, 0], images[:, 1])
    assert torch.equal(images[:, 0], images[:, 2])


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_images_are_those_torchvision_hands_out(make, name: str) -> None:
    dataset = torchvision.datasets.MNIST if name == "mnist" else torchvision.datasets.CIFAR10
    plain = dataset(ROOT, train=False, transform=torchvision.transforms.ToTensor())
    batch = make(name).splits["test"].batch(torch.tensor([0, 17, 9999]))
    for image, label, position in zip(batch.images, batch.labels, (0, 17, 9999), strict=True):
        assert torch.equal(image, plain[position][0])
        assert label == plain[position][1]


def test_batched_augmentation_of_cifar10_is_at_least_five_times_as_fast_as_picture_by_picture(
    make,
) -> None:
    """Both ways in turns over the same images; the median ratio counts."""
    transforms = torchvision.transforms
    pipeline = transforms.Compose(
        [transforms.RandomCrop(32, 4), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    )
    pictures = torchvision.datasets.CIFAR10(ROOT, train=False, transform=pipeline)
    split, augment, ratios = make("cifar10").splits["test"], Augmentation(4, flips=True), []
    for turn in range(5):
        positions = torch.arange(2000 * turn, 2000 * (turn + 1))
        started = time.perf_counter()
        for part in positions.split(128):
            torch.stack([pictures[position][0] for position in part.tolist()])
        one_by_one = time.perf_counter() - started
        started = time.perf_counter()
        for part in positions.split(128):
            batch = split.batch(part)
            augment(batch.images, batch.index, seed=turn)
        ratios.append(one_by_one / (time.perf_counter() - started))
    sys.stderr.write(f"batched augmentation is {sorted(ratios)[2]:.1f} times as fast\n")
    assert sorted(ratios)[2] >= 5, ratios


def test_the_list_says_what_is_present() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "wmr_cli", "list", "datasets"],
        capture_output=True,
        text=True,
        check=True,
    )
    state = {
        line.split()[1]: line.split()[-1]
        for line in done.stdout.splitlines()
        if line.startswith(" dataset")
    }
    assert {state[name] for name in ("mnist", "cifar10", "tiny-imagenet")} == {"present"}
    assert state["digits"] == "-"
