"""Published datasets in miniature: reading, checksums, refusals. tests/data has the real ones."""

import pickle
import shutil
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from support.miniature_datasets import (
    MAKERS,
    SIZES,
    cifar_archive,
    labels,
    md5,
    mnist_archives,
    pixels,
    tiny_imagenet_archive,
)
from support.special_files import make_fifo, time_limit
from wmr_cli.builtins.datasets import torchvision_datasets
from wmr_cli.core.data.splits import Source
from wmr_cli.core.torchvision_compat import torchvision
from wmr_cli.errors import BadFile, BadInput, MissingData
from wmr_cli.registry import Registry

PUBLISHED = ("mnist", "fashion-mnist", "cifar10", "cifar100", "svhn", "tiny-imagenet")


@pytest.fixture(autouse=True)
def _without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every download fail, as without a network."""

    def fail_to_connect(*args: urllib.request.Request, **kwargs: Any) -> None:
        raise OSError("Network is unreachable")

    monkeypatch.setattr(urllib.request, "urlopen", fail_to_connect)


@pytest.fixture
def laid_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: Registry
) -> Callable[..., Any]:
    def make(name: str, **params: Any) -> Source:
        spec = MAKERS[name](tmp_path, monkeypatch)
        result: Source = registry.create("dataset", spec, root=tmp_path, **params)
        return result

    return make


@pytest.mark.parametrize("name", PUBLISHED)
def test_error_without_network_names_files_and_folder(
    name: str, registry: Registry, tmp_path: Path
) -> None:
    with pytest.raises(MissingData, match="Network is unreachable") as caught:
        list(registry.create("dataset", name, root=tmp_path / "data").splits.values())
    assert str(tmp_path / "data") in caught.value.hint
    expected = {
        "mnist": "train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, "
        "t10k-images-idx3-ubyte.gz, t10k-labels-idx1-ubyte.gz",
        "cifar10": "cifar-10-python.tar.gz",
        "cifar100": "cifar-100-python.tar.gz",
        "svhn": "train_32x32.mat, test_32x32.mat",
        "tiny-imagenet": "tiny-imagenet-200.zip",
    }
    assert expected.get(name, expected["mnist"]) in caught.value.hint


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name != "tiny-imagenet"])
def test_splits_are_as_published_with_a_validation_set(
    name: str, laid_out: Callable[..., Any]
) -> None:
    source = laid_out(name, holdout=0.25)
    sizes = {split: len(source.splits[split]) for split in source.splits}
    assert sizes == {"train": 30, "val": 10, "test": 20}
    assert source.splits["test"].index.tolist() == list(range(SIZES[0], sum(SIZES)))
    assert source.splits["val"].labels.bincount().tolist() == [1] * 10
    indices = torch.cat([source.splits[split].index for split in ("train", "val")])
    assert indices.sort().values.tolist() == list(range(SIZES[0]))


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name != "tiny-imagenet"])
def test_pixels_and_labels_are_those_of_the_files(name: str, laid_out: Callable[..., Any]) -> None:
    split = laid_out(name).splits["test"]
    shape = (1, 28, 28) if "mnist" in name else (3, 32, 32)
    stored = pixels(
        SIZES[1], *{"svhn": (32, 32, 3)}.get(name, (3072,) if "cifar" in name else (28, 28))
    )
    expected = stored.transpose(0, 3, 1, 2) if name == "svhn" else stored.reshape(SIZES[1], *shape)
    assert torch.equal(split.images, torch.from_numpy(expected.copy()))
    assert split.labels.tolist() == labels(SIZES[1]).tolist()


def test_seed_chooses_the_validation_set(
    laid_out: Callable[..., Any], registry: Registry, tmp_path: Path
) -> None:
    chosen = [laid_out("mnist", holdout=0.25)]
    chosen += [
        registry.create("dataset", "mnist:holdout=0.25", root=tmp_path, split_seed=seed)
        for seed in (0, 1)
    ]
    first, same, other = (source.splits["val"].index.tolist() for source in chosen)
    assert first == same != other


def test_holdout_of_all_images_is_refused(laid_out: Callable[..., Any]) -> None:
    with pytest.raises(BadInput, match="holdout=1"):
        laid_out("mnist", holdout=1.0)


def test_damaged_archive_is_refused_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: Registry
) -> None:
    archives = mnist_archives(tmp_path / "MNIST" / "raw", monkeypatch)
    archives[0].write_bytes(archives[0].read_bytes()[:-5])
    with pytest.raises(BadFile, match=rf"{archives[0].name} is .* not {archives[0].name} with MD5"):
        registry.create("dataset", "mnist", root=tmp_path)
    assert archives[0].exists()


def test_plain_file_must_match_its_archive(
    laid_out: Callable[..., Any], registry: Registry, tmp_path: Path
) -> None:
    laid_out("mnist")
    file = tmp_path / "MNIST" / "raw" / "t10k-labels-idx1-ubyte"
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")
    with pytest.raises(BadFile, match=r"t10k-labels-idx1-ubyte .* t10k-labels-idx1-ubyte\.gz"):
        registry.create("dataset", "mnist", root=tmp_path).splits["test"]


def test_plain_file_alone_is_verified_by_its_own_checksum(
    laid_out: Callable[..., Any],
    registry: Registry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    laid_out("mnist")
    raw = tmp_path / "MNIST" / "raw"
    (raw / "t10k-images-idx3-ubyte.gz").unlink()
    known = dict(torchvision.datasets.MNIST.resources)["t10k-images-idx3-ubyte.gz"]
    monkeypatch.setattr(
        torchvision_datasets, "MNIST_PLAIN_MD5", {known: md5(raw / "t10k-images-idx3-ubyte")}
    )
    registry.create("dataset", "mnist", root=tmp_path).splits["test"]
    monkeypatch.setattr(torchvision_datasets, "MNIST_PLAIN_MD5", {known: "0"})
    with pytest.raises(BadFile, match="not t10k-images-idx3-ubyte with MD5 0"):
        registry.create("dataset", "mnist", root=tmp_path).splits["test"]


def test_truncated_plain_file_is_refused(
    laid_out: Callable[..., Any], registry: Registry, tmp_path: Path
) -> None:
    laid_out("mnist")
    file = tmp_path / "MNIST" / "raw" / "t10k-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:-100])
    (tmp_path / "MNIST" / "raw" / "t10k-images-idx3-ubyte.gz").unlink()
    with pytest.raises(BadFile, match="the files of mnist cannot be read"):
        registry.create("dataset", "mnist", root=tmp_path).splits["test"]


@pytest.mark.parametrize("name", ["mnist", "tiny-imagenet"])
def test_without_holdout_there_is_no_val_split(name: str, laid_out: Callable[..., Any]) -> None:
    assert "val" not in laid_out(name, holdout=0.0).splits


def test_files_with_another_number_of_images_are_refused(
    laid_out: Callable[..., Any], registry: Registry, tmp_path: Path
) -> None:
    laid_out("mnist")
    raw = tmp_path / "MNIST" / "raw"
    for what in ("images-idx3", "labels-idx1"):
        (raw / f"train-{what}-ubyte.gz").unlink()
        shutil.copy(raw / f"t10k-{what}-ubyte", raw / f"train-{what}-ubyte")
    with pytest.raises(BadFile, match="hold 20 images and 20 labels instead of 40"):
        registry.create("dataset", "mnist", root=tmp_path).splits["train"]


def test_missing_batch_is_unpacked_again_and_others_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: Registry
) -> None:
    cifar_archive(tmp_path, monkeypatch)
    registry.create("dataset", "cifar10", root=tmp_path)
    folder = tmp_path / "cifar-10-batches-py"
    (folder / "data_batch_3").unlink()
    kept = (folder / "data_batch_2").stat().st_mtime_ns
    source = registry.create("dataset", "cifar10", root=tmp_path)
    assert len(source.splits["train"]) + len(source.splits["val"]) == SIZES[0]
    assert (folder / "data_batch_2").stat().st_mtime_ns == kept


class Evil:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Path]]:
        return Path.touch, (Path("was-run"),)


def test_pickle_with_another_checksum_is_never_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: Registry
) -> None:
    cifar_archive(tmp_path, monkeypatch)
    registry.create("dataset", "cifar10", root=tmp_path)
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(BadFile, match=r"data_batch_1 is .* not data_batch_1 with MD5"):
        registry.create("dataset", "cifar10", root=tmp_path).splits["train"]
    assert not Path("was-run").exists()


def test_svhn_digit_zero_has_label_zero(laid_out: Callable[..., Any]) -> None:
    assert laid_out("svhn").splits["test"].labels.tolist() == [
        number % 10 for number in range(SIZES[1])
    ]


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: Registry) -> Callable[..., Any]:
    tiny_imagenet_archive(tmp_path, monkeypatch)
    return lambda: registry.create("dataset", "tiny-imagenet:holdout=0.3", root=tmp_path)


def test_tiny_imagenet_has_official_indices(tiny: Callable[..., Any], tmp_path: Path) -> None:
    source = tiny()
    assert (source.num_classes, source.input_shape) == (200, (3, 64, 64))
    assert {split: len(source.splits[split]) for split in source.splits} == {
        "train": 400,
        "val": 200,
        "test": 200,
    }
    train, test = source.splits["train"], source.splits["test"]
    assert torch.equal(train.index // 500, train.labels)
    assert test.index.tolist() == list(range(100_000, 100_200))
    assert test.labels.tolist() == list(range(200)), (
        "classes are numbered in the order of their ids"
    )
    assert source.class_names[0] == "n00000000"
    assert train.note == "600 of the 100,000 training images of Tiny ImageNet exist"
    assert test.note == "200 of the 10,000 test images of Tiny ImageNet exist"


def test_grey_images_of_tiny_imagenet_have_three_equal_channels(
    tiny: Callable[..., Any],
) -> None:
    images = tiny().splits["test"].batch(torch.tensor([7, 70])).images * 255
    for image, level in zip(images, (7, 70), strict=True):
        assert np.allclose(image, level, atol=1)


def replaced(path: Path) -> None:
    """Put a FIFO in the place of a file."""
    path.unlink()
    make_fifo(path)


DAMAGE: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a fifo of classes": ("wnids.txt", lambda top: replaced(top / "wnids.txt")),
    "a fifo of annotations": (
        "val_annotations.txt",
        lambda top: replaced(top / "val" / "val_annotations.txt"),
    ),
    "classes that are not text": (
        "cannot be read",
        lambda top: (top / "wnids.txt").write_bytes(b"\xff"),
    ),
    "annotations that are not text": (
        "cannot be read",
        lambda top: (top / "val" / "val_annotations.txt").write_bytes(b"\xff"),
    ),
    "a number that is none": (
        "has no number",
        lambda top: Image.new("RGB", (64, 64)).save(
            top / "train" / "n00000005" / "images" / f"n00000005_{'9' * 30}.JPEG"
        ),
    ),
    "wnids.txt": ("wnids.txt", lambda top: (top / "wnids.txt").unlink()),
    "half the classes": (
        "names 100 classes",
        lambda top: (top / "wnids.txt").write_text("\n".join(map(str, range(100)))),
    ),
    "annotations": (
        "val_annotations.txt",
        lambda top: (top / "val" / "val_annotations.txt").unlink(),
    ),
    "a class": (
        "1 of 200 classes",
        lambda top: shutil.rmtree(top / "train" / "n00000005"),
    ),
    "test images": (
        "images",
        lambda top: shutil.rmtree(top / "val" / "images"),
    ),
    "an unknown class": (
        "without a known class",
        lambda top: (top / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn1\n"),
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_incomplete_tiny_imagenet_is_refused(
    tiny: Callable[..., Any], tmp_path: Path, case: str
) -> None:
    tiny()
    problem, damage = DAMAGE[case]
    damage(tmp_path / "tiny-imagenet-200")
    with pytest.raises(BadFile, match=problem):
        list(tiny().splits.values())


def test_reading_the_test_images_does_not_read_the_training_images(
    laid_out: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = laid_out("cifar10")
    seen: list[bool] = []
    dataset = torchvision.datasets.CIFAR10
    original = dataset.__init__

    def record_split(self: object, root: Path, train: bool) -> None:
        seen.append(train)
        original(self, root, train)

    monkeypatch.setattr(dataset, "__init__", record_split)
    assert len(source.splits["test"]) == SIZES[1]
    assert seen == [False]


def test_too_large_a_holdout_of_tiny_imagenet_is_refused(
    tiny: Callable[..., Any], registry: Registry, tmp_path: Path
) -> None:
    tiny()
    with pytest.raises(BadInput, match="class 0") as refused:
        list(
            registry.create(
                "dataset", "tiny-imagenet:holdout=0.9999", root=tmp_path
            ).splits.values()
        )
    assert refused.value.hint


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name != "tiny-imagenet"])
def test_fifo_instead_of_a_published_file_is_refused(
    name: str, laid_out: Callable[..., Any], registry: Registry, tmp_path: Path
) -> None:
    list(laid_out(name).splits.values())
    for file in [
        path
        for path in tmp_path.rglob("*")
        if path.is_file() and path.suffix not in (".gz", ".meta")
    ]:
        replaced(file)
    with time_limit(60), pytest.raises(BadFile, match="not a regular file") as refused:
        list(registry.create("dataset", name, root=tmp_path).splits.values())
    assert refused.value.hint
