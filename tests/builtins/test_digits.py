"""The embedded digits: every image once, every class evenly, the same on every machine."""

from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits

from wmr_cli.builtins.datasets.digits import digits
from wmr_cli.core.data.splits import MemorySource

SHA256 = {
    "train": "a5086e247e7494e35f3d306d93cec7833fac530832f43756e6dc179699b949d6",
    "val": "263be166b6946fdd59e7960842ec7d8a86add503bb6d08787f0342c50d305ff0",
    "test": "96a60c320f8d5c1f57f34f636b7e0b693799bb02639fea53c051da0652f5828a",
}


@pytest.fixture(scope="module")
def source() -> MemorySource:
    return digits(Path("unused"))


def test_splits_have_fixed_sizes(source: MemorySource) -> None:
    assert {name: len(split) for name, split in source.splits.items()} == {
        "train": 1147,
        "val": 100,
        "test": 550,
    }
    assert source.num_classes == 10
    assert source.input_shape == (1, 8, 8)


def test_classes_have_equal_test_and_validation_sizes(source: MemorySource) -> None:
    assert source.splits["test"].labels.bincount().tolist() == [55] * 10
    assert source.splits["val"].labels.bincount().tolist() == [10] * 10
    train = source.splits["train"].labels.bincount()
    assert train.max() <= 1.1 * train.min()


def test_every_image_is_in_one_split(source: MemorySource) -> None:
    indices = torch.cat([split.index for split in source.splits.values()])
    assert sorted(indices.tolist()) == list(range(1797))


@pytest.mark.parametrize("name", SHA256)
def test_index_is_the_position_in_the_original_data(source: MemorySource, name: str) -> None:
    split, original = source.splits[name], load_digits()
    everything = split.batch(torch.arange(len(split)))
    for image, label, index in zip(
        everything.images, everything.labels, everything.index, strict=True
    ):
        assert (image[0] * 16).tolist() == original.images[index].tolist()
        assert label == original.target[index]


@pytest.mark.parametrize("name", SHA256)
def test_pixels_cover_the_unit_range(source: MemorySource, name: str) -> None:
    images = source.splits[name].batch(torch.arange(len(source.splits[name]))).images
    assert images.dtype == torch.float32
    assert images.min() == 0
    assert images.max() == 1


@pytest.mark.parametrize("name", SHA256)
def test_splits_have_fixed_hashes(source: MemorySource, name: str) -> None:
    assert source.splits[name].sha256 == SHA256[name]
