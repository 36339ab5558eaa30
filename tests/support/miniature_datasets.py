"""Miniature datasets in the formats of the real ones, with patched checksums and sizes."""

import gzip
import hashlib
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from PIL import Image

from wmr_cli.builtins.datasets import tiny_imagenet as tiny_module
from wmr_cli.builtins.datasets import torchvision_datasets
from wmr_cli.core.data.downloads import Remote
from wmr_cli.core.torchvision_compat import torchvision

SIZES = (40, 20)
"""Training and test images of the miniature versions."""


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def pixels(count: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def labels(count: int, classes: int = 10) -> np.ndarray:
    return np.arange(count) % classes


def _idx(path: Path, array: np.ndarray) -> None:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(
        size.to_bytes(4, "big") for size in array.shape
    )
    path.with_suffix(path.suffix + ".gz").write_bytes(
        gzip.compress(header + array.astype(np.uint8).tobytes(), mtime=0)
    )


def mnist_archives(
    folder: Path, monkeypatch: pytest.MonkeyPatch, dataset: str = "MNIST"
) -> list[Path]:
    """Write the four archives in `folder`, and patch the checksums of torchvision."""
    folder.mkdir(parents=True)
    for part, count in zip(("train", "t10k"), SIZES, strict=True):
        _idx(folder / f"{part}-images-idx3-ubyte", pixels(count, 28, 28))
        _idx(folder / f"{part}-labels-idx1-ubyte", labels(count))
    archives = sorted(folder.glob("*.gz"))
    monkeypatch.setattr(
        getattr(torchvision.datasets, dataset),
        "resources",
        [(file.name, md5(file)) for file in archives],
    )
    monkeypatch.setattr(torchvision_datasets, "MNIST_SIZES", SIZES)
    return archives


def mnist(root: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    mnist_archives(root / "MNIST" / "raw", monkeypatch)
    return "mnist"


def fashion_mnist(root: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    mnist_archives(root / "FashionMNIST" / "raw", monkeypatch, "FashionMNIST")
    return "fashion-mnist"


def cifar_archive(root: Path, monkeypatch: pytest.MonkeyPatch, classes: int = 10) -> Path:
    """Write the archive of CIFAR-10 or CIFAR-100 in `root`, and patch the checksums."""
    dataset = torchvision.datasets.CIFAR10 if classes == 10 else torchvision.datasets.CIFAR100
    folder = root / "packed" / dataset.base_folder
    folder.mkdir(parents=True)
    key = "labels" if classes == 10 else "fine_labels"
    shares = {
        "train_list": SIZES[0] // len(dataset.train_list),
        "test_list": SIZES[1] // len(dataset.test_list),
    }
    for name, count in shares.items():
        files = [folder / file for file, _ in getattr(dataset, name)]
        for number, file in enumerate(files):
            entry = {
                "data": pixels(count, 3072, seed=number),
                key: labels(SIZES[0])[number * count :][:count].tolist(),
            }
            file.write_bytes(pickle.dumps(entry))
        monkeypatch.setattr(dataset, name, [[file.name, md5(file)] for file in files])
    meta = folder / dataset.meta["filename"]
    meta.write_bytes(pickle.dumps({dataset.meta["key"]: [str(label) for label in range(classes)]}))
    monkeypatch.setattr(dataset, "meta", {**dataset.meta, "md5": md5(meta)})
    archive = root / dataset.filename
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, dataset.base_folder)
    monkeypatch.setattr(dataset, "tgz_md5", md5(archive))
    monkeypatch.setattr(torchvision_datasets, "CIFAR_SIZES", SIZES)
    result: Path = archive
    return result


def cifar10(root: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    cifar_archive(root, monkeypatch)
    return "cifar10"


def cifar100(root: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    cifar_archive(root, monkeypatch, classes=100)
    return "cifar100"


def svhn(root: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    dataset, known = torchvision.datasets.SVHN, {}
    for split, count in zip(("train", "test"), SIZES, strict=True):
        url, file, _ = dataset.split_list[split]
        ten_for_zero = (labels(count) + 9) % 10 + 1
        images = pixels(count, 32, 32, 3).transpose(1, 2, 3, 0)
        scipy.io.savemat(root / file, {"X": images, "y": ten_for_zero[:, None].astype(np.uint8)})
        known[split] = [url, file, md5(root / file)]
    monkeypatch.setattr(dataset, "split_list", known)
    monkeypatch.setattr(torchvision_datasets, "SVHN_SIZES", SIZES)
    return "svhn"


def tiny_imagenet_archive(root: Path, monkeypatch: pytest.MonkeyPatch, per_class: int = 3) -> Path:
    """Write the official zip with 200 classes of few images, every seventh of them grey."""
    folder = root / "packed" / "tiny-imagenet-200"
    wnids = [f"n{number:08d}" for number in range(200)]
    (folder / "val" / "images").mkdir(parents=True)
    (folder / "wnids.txt").write_text("\n".join(reversed(wnids)) + "\n")
    lines = []
    for label, wnid in enumerate(wnids):
        (folder / "train" / wnid / "images").mkdir(parents=True)
        for number in range(per_class):
            _picture(
                folder / "train" / wnid / "images" / f"{wnid}_{number}.JPEG",
                64,
                grey=number % 7 == 0,
                level=label,
            )
        _picture(
            folder / "val" / "images" / f"val_{label}.JPEG", 64, grey=label % 7 == 0, level=label
        )
        lines.append(f"val_{label}.JPEG\t{wnid}\t0\t0\t63\t63\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    archive = root / "tiny-imagenet-200.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for file in sorted(folder.rglob("*")):
            packed.write(file, file.relative_to(folder.parent))
    remote = Remote(archive.name, tiny_module.ARCHIVE.urls, md5(archive), archive.stat().st_size)
    monkeypatch.setattr(tiny_module, "ARCHIVE", remote)
    return archive


def tiny_imagenet(root: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    tiny_imagenet_archive(root, monkeypatch)
    return "tiny-imagenet"


def _picture(path: Path, side: int, *, grey: bool = False, level: int = 0) -> None:
    colours = np.full((side, side) if grey else (side, side, 3), level, dtype=np.uint8)
    Image.fromarray(colours).save(path, quality=100)


def make_image_folder(
    place: Path,
    classes: tuple[str, ...] = ("cat", "dog"),
    count: int = 10,
    side: int = 16,
    seed: int = 0,
) -> Path:
    """Write a folder of images per class. Each class is darker than the one before."""
    rng = np.random.default_rng(seed)
    for number, name in enumerate(classes):
        (place / name).mkdir(parents=True)
        for index in range(count):
            level = 200 - 150 * number // max(len(classes) - 1, 1)
            colours = np.clip(rng.normal(level, 20, (side, side, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(colours).save(place / name / f"{index:03d}.png")
    return place


def folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return f"folder:path={make_image_folder(root / 'images')}"


def arrays(root: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    np.savez(root / "arrays.npz", images=pixels(30, 8, 8), labels=labels(30, 3))
    return f"arrays:path={root / 'arrays.npz'}"


def digits(root: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return "digits"


MAKERS: dict[str, Callable[[Path, pytest.MonkeyPatch], str]] = {
    maker.__name__.replace("_", "-"): maker
    for maker in (
        digits,
        mnist,
        fashion_mnist,
        cifar10,
        cifar100,
        svhn,
        tiny_imagenet,
        folder,
        arrays,
    )
}
"""For every built-in dataset, a function that writes a small one and returns its spec."""
