"""MNIST, CIFAR-10 and Tiny ImageNet have the published counts, shapes, classes and pixels."""

import functools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest
import torch
from PIL import Image

from support.real_data import DATA_DIR, needs_data, run_wmr
from support.typed import instance_of
from wmr_cli.core.data.augment import Augmentation
from wmr_cli.core.data.image_files import ImageFileSplit
from wmr_cli.core.protocols import DataSource, Split
from wmr_cli.core.torchvision_compat import torchvision
from wmr_cli.registry import Registry
from wmr_cli.testing import check_dataset

pytestmark = [pytest.mark.data, needs_data]

MNIST_TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST_TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
TINY_IMAGENET_TRAIN_SIZE = 100_000
LoadDataset = Callable[[str], DataSource]


@pytest.fixture(scope="module")
def load_dataset(registry: Registry) -> LoadDataset:
    """Return a function that loads a dataset once."""

    @functools.cache
    def load(name: str) -> DataSource:
        source: DataSource = registry.create("dataset", name, root=DATA_DIR)
        return source

    return load


def count_classes(*splits: Split) -> list[int]:
    counts: list[int] = torch.cat([split.labels for split in splits]).bincount().tolist()
    return counts


@pytest.mark.parametrize(
    ("name", "shape", "train", "test"),
    [
        ("mnist", (1, 28, 28), MNIST_TRAIN, MNIST_TEST),
        ("cifar10", (3, 32, 32), [5000] * 10, [1000] * 10),
        ("tiny-imagenet", (3, 64, 64), None, [50] * 200),
    ],
)
def test_counts_shapes_and_classes_are_the_published_ones(
    load_dataset: LoadDataset,
    name: str,
    shape: tuple[int, int, int],
    train: list[int] | None,
    test: list[int],
) -> None:
    source = load_dataset(name)
    assert (source.input_shape, source.num_classes) == (shape, len(test))
    assert count_classes(source.splits["test"]) == test
    if train is not None:
        assert count_classes(source.splits["train"], source.splits["val"]) == train
    check_dataset(source)


def test_an_incomplete_copy_of_tiny_imagenet_is_used_with_a_note(
    load_dataset: LoadDataset,
) -> None:
    source = load_dataset("tiny-imagenet")
    counts = count_classes(source.splits["train"], source.splits["val"])
    present = len(list((DATA_DIR / "tiny-imagenet-200" / "train").rglob("*.JPEG")))
    assert len(counts) == 200
    assert sum(counts) == present
    note = instance_of(ImageFileSplit, source.splits["train"]).note
    assert (note is None) == (present == TINY_IMAGENET_TRAIN_SIZE)
    assert note is None or f"{present:,}" in note


def test_grey_images_of_tiny_imagenet_have_three_equal_channels(
    load_dataset: LoadDataset,
) -> None:
    split = instance_of(ImageFileSplit, load_dataset("tiny-imagenet").splits["test"])
    grey = [position for position, path in enumerate(split.paths[:1000]) if is_grey(path)]
    assert 5 < len(grey) < 50, "about 2 % are grey"
    images = split.batch(torch.tensor(grey)).images
    assert torch.equal(images[:, 0], images[:, 1])
    assert torch.equal(images[:, 0], images[:, 2])


def is_grey(path: Path) -> bool:
    with Image.open(path) as image:
        return image.mode == "L"


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_images_are_those_of_torchvision(load_dataset: LoadDataset, name: str) -> None:
    datasets = {"mnist": torchvision.datasets.MNIST, "cifar10": torchvision.datasets.CIFAR10}
    to_tensor = torchvision.transforms.ToTensor()
    expected = datasets[name](DATA_DIR, train=False, transform=to_tensor)
    positions = (0, 17, 9999)
    batch = load_dataset(name).splits["test"].batch(torch.tensor(positions))
    for image, label, position in zip(batch.images, batch.labels, positions, strict=True):
        assert torch.equal(image, expected[position][0])
        assert label == expected[position][1]


def test_batched_augmentation_is_at_least_five_times_as_fast_as_torchvision(
    load_dataset: LoadDataset,
) -> None:
    transforms = torchvision.transforms
    pipeline = transforms.Compose(
        [transforms.RandomCrop(32, 4), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    )
    images = torchvision.datasets.CIFAR10(DATA_DIR, train=False, transform=pipeline)
    split = load_dataset("cifar10").splits["test"]
    augment = Augmentation(4, flips=True)
    ratios = []
    for number in range(5):
        batches = torch.arange(2000 * number, 2000 * (number + 1)).split(128)
        started = time.perf_counter()
        for positions in batches:
            torch.stack([images[position][0] for position in positions.tolist()])
        one_by_one = time.perf_counter() - started
        started = time.perf_counter()
        for positions in batches:
            batch = split.batch(positions)
            augment(batch.images, batch.index, seed=number)
        ratios.append(one_by_one / (time.perf_counter() - started))
    sys.stderr.write(f"batched augmentation is {median(ratios):.1f} times as fast\n")
    assert median(ratios) >= 5, ratios


def test_the_list_of_datasets_shows_which_are_present(tmp_path: Path) -> None:
    lines = run_wmr(tmp_path, "list", "datasets").splitlines()
    state = {line.split()[1]: line.split()[-1] for line in lines if line.startswith(" dataset")}
    assert {state[name] for name in ("mnist", "cifar10", "tiny-imagenet")} == {"present"}
    assert state["digits"] == "-"
