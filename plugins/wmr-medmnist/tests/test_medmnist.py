"""Tests with small files in the official layout: neither MedMNIST nor network access is needed."""

import dataclasses
import hashlib
import importlib.util
import io
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Protocol

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from wmr_cli import BadFile, BadInput, MissingData, create
from wmr_cli.testing import check_dataset
from wmr_medmnist.catalog import DATASETS, DatasetInfo
from wmr_medmnist.dataset import medmnist

COUNTS = {"train": 60, "val": 12, "test": 24}


class WriteFile(Protocol):
    """Write a dataset file and return its path; keyword arguments replace arrays in it."""

    def __call__(self, name: str, size: int = 28, **changed: Any) -> Path: ...


def make_arrays(info: DatasetInfo, size: int) -> dict[str, NDArray[np.generic]]:
    """Make images whose first pixel is their number in the split, with labels in rotation."""
    arrays: dict[str, NDArray[np.generic]] = {}
    for seed, (split, count) in enumerate(info.images.items()):
        shape = (count, size, size, 3) if info.channels == 3 else (count, size, size)
        images = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
        images.reshape(count, -1)[:, 0] = np.arange(count)
        labels = (np.arange(count) % len(info.classes)).astype(np.uint8)
        arrays[f"{split}_images"] = images
        arrays[f"{split}_labels"] = labels[:, None]
    return arrays


def set_checksum(
    monkeypatch: pytest.MonkeyPatch, info: DatasetInfo, size: int, content: bytes
) -> None:
    """Make the checksum of this content the official one."""
    md5 = {**info.md5, str(size): hashlib.md5(content).hexdigest()}
    monkeypatch.setitem(DATASETS, info.name, dataclasses.replace(info, md5=md5))


@pytest.fixture
def write_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WriteFile:
    """Write small files where the official ones belong, and register their checksums."""

    def write(name: str, size: int = 28, **changed: Any) -> Path:
        info = dataclasses.replace(DATASETS[name], images=COUNTS)
        stream = io.BytesIO()
        arrays: dict[str, Any] = {**make_arrays(info, size), **changed}
        np.savez_compressed(stream, **arrays)
        path = tmp_path / info.relative_path(size)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(stream.getvalue())
        set_checksum(monkeypatch, info, size, stream.getvalue())
        return path

    return write


@pytest.fixture
def requested_urls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Cut the network off, and collect the addresses that are requested."""
    urls: list[str] = []

    def refuse(request: urllib.request.Request, **_: object) -> None:
        urls.append(request.full_url)
        raise OSError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    return urls


SINGLE_LABEL = sorted(name for name, info in DATASETS.items() if info.is_single_label)


@pytest.mark.parametrize("name", SINGLE_LABEL)
def test_every_dataset_meets_the_contract(name: str, write_file: WriteFile, tmp_path: Path) -> None:
    write_file(name)
    source = create("dataset", name, root=tmp_path)
    check_dataset(source)
    assert source.input_shape == (DATASETS[name].channels, 28, 28)
    assert source.class_names == DATASETS[name].classes
    assert source.num_classes == len(set(DATASETS[name].classes))


@pytest.mark.parametrize("size", [64, 128, 224])
def test_each_image_size_has_its_own_file(size: int, write_file: WriteFile, tmp_path: Path) -> None:
    path = write_file("bloodmnist", size)
    assert path.name == f"bloodmnist_{size}.npz"
    source = create("dataset", f"bloodmnist:size={size}", root=tmp_path)
    check_dataset(source)
    assert source.input_shape == (3, size, size)


def test_splits_are_the_published_ones_and_an_index_belongs_to_one_image(
    write_file: WriteFile, tmp_path: Path
) -> None:
    path = write_file("pathmnist")
    splits = medmnist(tmp_path, "pathmnist").splits
    first = 0
    with np.load(path) as file:
        for split, count in COUNTS.items():
            batch = splits[split].batch(torch.arange(count))
            assert batch.index.tolist() == list(range(first, first + count))
            assert batch.labels.tolist() == file[f"{split}_labels"][:, 0].tolist()
            expected = torch.from_numpy(file[f"{split}_images"]).permute(0, 3, 1, 2) / 255
            assert torch.equal(batch.images, expected)
            first += count


def test_a_split_is_read_when_it_is_first_used(write_file: WriteFile, tmp_path: Path) -> None:
    write_file("octmnist", train_images=np.zeros((2, 2), dtype=np.uint8))
    splits = medmnist(tmp_path, "octmnist").splits
    assert len(splits["test"]) == COUNTS["test"]
    with pytest.raises(BadFile, match="'train'"):
        splits["train"]


def test_several_labels_per_image_are_refused(tmp_path: Path, requested_urls: list[str]) -> None:
    with pytest.raises(BadInput, match="several labels per image") as refusal:
        create("dataset", "chestmnist", root=tmp_path)
    assert "one class per image" in refusal.value.hint
    assert requested_urls == []


@pytest.mark.parametrize("size", ["32", "-1", "large"])
def test_other_sizes_are_refused(size: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="28, 64, 128, 224"):
        create("dataset", f"pathmnist:size={size}", root=tmp_path)


def test_a_file_with_another_hash_is_never_read(
    write_file: WriteFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_file("breastmnist")
    path.write_bytes(path.read_bytes() + b"x")
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("the file was read"))
    with pytest.raises(BadFile, match="MD5"):
        medmnist(tmp_path, "breastmnist")


def test_without_network_the_error_names_file_and_folder(
    tmp_path: Path, requested_urls: list[str]
) -> None:
    with pytest.raises(MissingData, match=r"dermamnist_64\.npz") as missing:
        medmnist(tmp_path, "dermamnist", size=64)
    assert requested_urls == [
        "https://zenodo.org/records/10519652/files/dermamnist_64.npz?download=1"
    ]
    assert str(tmp_path / "medmnist") in missing.value.hint


def test_the_checksum_of_a_download_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Response(io.BytesIO):
        status = 200
        headers: ClassVar[dict[str, str]] = {}

    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: Response(b"PK something else"))
    with pytest.raises(MissingData, match="MD5"):
        medmnist(tmp_path, "dermamnist")
    assert not (tmp_path / DATASETS["dermamnist"].relative_path(28)).exists()


def test_pickled_objects_are_not_run(write_file: WriteFile, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[object, ...]]:
            return (Path.write_text, (tmp_path / "ran", "boom"))

    labels = np.array([Bomb()] * COUNTS["test"], dtype=object)[:, None]
    write_file("bloodmnist", test_labels=labels)
    with pytest.raises(BadFile, match="cannot be read"):
        medmnist(tmp_path, "bloodmnist").splits["test"]
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"test_images": np.zeros((24, 28, 28, 3), dtype=np.float32)}, "float32 images"),
        ({"test_images": np.zeros((23, 28, 28, 3), dtype=np.uint8)}, r"\(23, 28, 28, 3\)"),
        ({"test_images": np.zeros((24, 28, 28), dtype=np.uint8)}, r"\(24, 28, 28\)"),
        ({"test_labels": np.zeros((24, 2), dtype=np.uint8)}, r"\(24, 2\)"),
        ({"test_labels": np.zeros(24, dtype=np.float32)}, "float32 labels"),
        ({"test_labels": np.full((24, 1), 8, dtype=np.uint8)}, "labels outside 0…7"),
    ],
)
def test_another_layout_is_refused(
    changed: dict[str, Any], problem: str, write_file: WriteFile, tmp_path: Path
) -> None:
    write_file("bloodmnist", **changed)
    with pytest.raises(BadFile, match=problem):
        medmnist(tmp_path, "bloodmnist").splits["test"]


def test_a_missing_array_is_refused(
    write_file: WriteFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_file("bloodmnist")
    with zipfile.ZipFile(path) as whole, zipfile.ZipFile(tmp_path / "part.npz", "w") as part:
        part.writestr("train_images.npy", whole.read("train_images.npy"))
    path.write_bytes((tmp_path / "part.npz").read_bytes())
    set_checksum(monkeypatch, DATASETS["bloodmnist"], 28, path.read_bytes())
    with pytest.raises(BadFile, match="test_images"):
        medmnist(tmp_path, "bloodmnist").splits["test"]


def test_the_list_shows_which_files_are_present(
    wmr: Callable[..., subprocess.CompletedProcess[str]], write_file: WriteFile, tmp_path: Path
) -> None:
    write_file("pneumoniamnist")
    listed = wmr("list", "datasets", "mnist", "--data-dir", str(tmp_path))
    assert listed.returncode == 0, listed.stderr
    rows = [line.split() for line in listed.stdout.splitlines()]
    files = {row[1]: row[-1] for row in rows if len(row) > 1}
    expected = dict.fromkeys(DATASETS, "missing") | {"pneumoniamnist": "present"}
    assert {name: files.get(name) for name in DATASETS} == expected
    assert wmr("plugins", "--check").returncode == 0


def test_listing_imports_neither_torch_nor_numpy() -> None:
    code = "import sys, wmr_medmnist; wmr_medmnist.wmr_datasets()"
    code += "; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def load_module(path: Path) -> ModuleType:
    """Import one file, without the package around it and its dependencies."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(
    importlib.util.find_spec("medmnist") is None, reason="the medmnist package is not installed"
)
def test_the_catalog_equals_that_of_the_medmnist_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # importing medmnist creates a folder there
    package = importlib.util.find_spec("medmnist")
    assert package is not None
    assert package.origin is not None
    module = load_module(Path(package.origin).with_name("info.py"))
    official = {name: row for name, row in module.INFO.items() if not name.endswith("3d")}
    assert set(DATASETS) == set(official)
    for name, row in official.items():
        info = DATASETS[name]
        assert info.task == row["task"]
        assert info.channels == row["n_channels"]
        assert info.images == row["n_samples"]
        assert info.licence == row["license"]
        assert list(info.classes) == [row["label"][str(n)] for n in range(len(row["label"]))]
        for size in (28, 64, 128, 224):
            suffix = "" if size == 28 else f"_{size}"
            assert info.url(size) == row[f"url{suffix}"]
            assert info.md5[str(size)] == row[f"MD5{suffix}"]
