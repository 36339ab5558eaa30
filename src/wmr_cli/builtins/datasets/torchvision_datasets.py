"""Datasets that torchvision reads, after their files are downloaded and verified.

MNIST (LeCun et al. 1998), Fashion-MNIST (Xiao et al. 2017, arXiv:1708.07747), CIFAR-10 and
CIFAR-100 (Krizhevsky 2009), and Street View House Numbers (Netzer et al. 2011).
"""

import gzip
import shutil
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ...core.data.downloads import Remote, fetch, unpack
from ...core.data.splits import LazySplits, MemorySplit, Source, add_missing_splits, check_fraction
from ...core.torchvision_compat import torchvision
from ...errors import BadFile, MissingData
from ...reading import check_regular, open_regular

MNIST_SIZES = (60_000, 10_000)
CIFAR_SIZES = (50_000, 10_000)
SVHN_SIZES = (73_257, 26_032)
"""Number of training and test images."""
MNIST_PLAIN_MD5 = {
    "f68b3c2dcbeaaa9fbdd348bbdeb94873": "6bbc9ace898e44ae57da46a324031adb",
    "d53e105ee54ea40749a09fcbcd1e9432": "a25bea736e30d166cdddb491f175f624",
    "9fb629c4189551a2d022fa330f9573f3": "2646ac647ad5339dbf082846283269ea",
    "ec29112dd5afa0611ce80d1b7f02629c": "27ae3e4e09519cfbb04c329615203637",
}
"""Checksums of MNIST's plain files by those of their archives: plain files may exist alone."""
# what torchvision's readers raise for damaged files
READ_ERRORS = (
    RuntimeError,
    ValueError,
    TypeError,
    AssertionError,
    LookupError,
    EOFError,
    MemoryError,
    OSError,
)

Read = Callable[[bool], tuple[Any, Any]]
"""Reads the training images (True) or the test images (False), and their labels (N,).

Images are uint8, (N, H, W), (N, H, W, C) or (N, C, H, W).
"""


def mnist(root: Path, split_seed: int = 0, holdout: float = 0.02) -> Source:
    """Handwritten digits: 70,000 grey images, 28x28, 10 classes."""
    facts = Facts("mnist", (1, 28, 28), MNIST_SIZES, num_classes=10)
    read = _prepare_idx_files(torchvision.datasets.MNIST, root)
    return _make_source(facts, read, holdout, split_seed)


def fashion_mnist(root: Path, split_seed: int = 0, holdout: float = 0.02) -> Source:
    """Articles of clothing: 70,000 grey images, 28x28, 10 classes."""
    facts = Facts("fashion-mnist", (1, 28, 28), MNIST_SIZES, num_classes=10)
    read = _prepare_idx_files(torchvision.datasets.FashionMNIST, root)
    return _make_source(facts, read, holdout, split_seed)


def cifar10(root: Path, split_seed: int = 0, holdout: float = 0.02) -> Source:
    """Animals and vehicles: 60,000 colour images, 32x32, 10 classes."""
    facts = Facts("cifar10", (3, 32, 32), CIFAR_SIZES, num_classes=10)
    read = _prepare_cifar(torchvision.datasets.CIFAR10, root)
    return _make_source(facts, read, holdout, split_seed)


def cifar100(root: Path, split_seed: int = 0, holdout: float = 0.02) -> Source:
    """Things of all kinds: 60,000 colour images, 32x32, 100 classes."""
    facts = Facts("cifar100", (3, 32, 32), CIFAR_SIZES, num_classes=100)
    read = _prepare_cifar(torchvision.datasets.CIFAR100, root)
    return _make_source(facts, read, holdout, split_seed)


def svhn(root: Path, split_seed: int = 0, holdout: float = 0.02) -> Source:
    """Cropped digits, without the extra training images: 99,289 colour images, 32x32."""
    dataset = torchvision.datasets.SVHN
    remotes = {
        split: Remote(file, (url,), md5)
        for split, (url, file, md5) in dataset.split_list.items()
        if split != "extra"
    }
    fetch([remote for remote in remotes.values() if not (root / remote.name).exists()], root)

    def read(is_training: bool) -> tuple[Any, Any]:
        split = "train" if is_training else "test"
        # verified here, because torchvision's error does not name the problem
        fetch([remotes[split]], root)
        data = dataset(root, split=split)
        return data.data, data.labels

    facts = Facts("svhn", (3, 32, 32), SVHN_SIZES, num_classes=10)
    return _make_source(facts, read, holdout, split_seed)


@dataclass(frozen=True)
class Facts:
    """What is known about a dataset before its files are read."""

    name: str
    shape: tuple[int, int, int]
    sizes: tuple[int, int]
    """training and test images"""
    num_classes: int


def _make_source(facts: Facts, read: Read, holdout: float, split_seed: int) -> Source:
    """Make the published splits, with a random part of the training images as `val`."""
    check_fraction("holdout", holdout)

    # cached: `train` and `val` come from one reading of the training images
    @cache
    def read_training_splits() -> dict[str, MemorySplit]:
        training = _read_split(facts, read, is_training=True)
        return add_missing_splits({"train": training}, holdout, 0, split_seed)

    makers = {
        "train": lambda: read_training_splits()["train"],
        "val": lambda: read_training_splits()["val"],
        "test": lambda: _read_split(facts, read, is_training=False),
    }
    if not holdout:
        del makers["val"]
    return Source(facts.num_classes, facts.shape, LazySplits(makers))


def _read_split(facts: Facts, read: Read, *, is_training: bool) -> MemorySplit:
    """Read training or test images, and check their number."""
    hint = "move the files away and repeat the command"
    try:
        images, labels = read(is_training)
    except READ_ERRORS as error:
        raise BadFile(f"the files of {facts.name} cannot be read: {error}", hint=hint) from None
    pixels = torch.as_tensor(images)
    if pixels.ndim == 3:
        pixels = pixels.unsqueeze(1)
    # channels last, as in CIFAR's files
    if pixels.shape[1:] != facts.shape:
        pixels = pixels.permute(0, 3, 1, 2).contiguous()
    training_size, test_size = facts.sizes
    count = training_size if is_training else test_size
    if len(pixels) != count or len(labels) != count:
        raise BadFile(
            f"the files of {facts.name} hold {len(pixels):,} images and {len(labels):,} labels "
            f"instead of {count:,}",
            hint=hint,
        )
    # test images are numbered after the training images: an index belongs to one image
    first = 0 if is_training else training_size
    return MemorySplit(pixels, torch.as_tensor(labels).long(), first + torch.arange(count))


def _prepare_cifar(dataset: type[Any], root: Path) -> Read:
    """Download and unpack CIFAR if files are missing; return its reader."""
    folder = root / dataset.base_folder
    checksums = {
        **dict(dataset.train_list),
        **dict(dataset.test_list),
        dataset.meta["filename"]: dataset.meta["md5"],
    }
    if not all((folder / file).exists() for file in checksums):
        (archive,) = fetch([Remote(dataset.filename, (dataset.url,), dataset.tgz_md5)], root)
        unpack(archive, root, dataset.base_folder)

    def read(is_training: bool) -> tuple[Any, Any]:
        for file in checksums:
            check_regular(folder / file)
        try:
            # these files are pickles: torchvision verifies each checksum before it opens one
            data = dataset(root, train=is_training)
        except RuntimeError:
            # verify again, because this error names the file
            fetch([Remote(file, (), md5) for file, md5 in checksums.items()], folder)
            raise
        return data.data, data.targets

    return read


def _prepare_idx_files(dataset: type[Any], root: Path) -> Read:
    """Download and unpack the files of MNIST or Fashion-MNIST; return their reader."""
    folder = root / dataset.__name__ / "raw"
    missing = [
        Remote(file, tuple(mirror + file for mirror in dataset.mirrors), md5)
        for file, md5 in dataset.resources
        if not (folder / file.removesuffix(".gz")).exists()
    ]
    for archive in fetch(missing, folder):
        _unpack_gzip(archive)

    def read(is_training: bool) -> tuple[Any, Any]:
        for file, md5 in dataset.resources:
            if file.startswith("train" if is_training else "t10k"):
                _verify_plain_file(folder, Remote(file, (), md5))
        data = dataset(root, train=is_training)
        return data.data, data.targets

    return read


def _unpack_gzip(archive: Path) -> None:
    """Write the plain file beside its archive, atomically."""
    try:
        with tempfile.TemporaryDirectory(dir=archive.parent) as temporary:
            part = Path(temporary) / archive.stem
            with gzip.open(archive) as packed, part.open("wb") as stream:
                shutil.copyfileobj(packed, stream)
            part.replace(archive.with_suffix(""))
    except (OSError, EOFError, zlib.error) as error:
        raise MissingData(
            f"{archive} cannot be unpacked: {error}",
            hint="free space there, or choose another `data_dir`",
        ) from None


def _verify_plain_file(folder: Path, archive: Remote) -> None:
    """Verify a plain file by its archive, or by its own checksum if the archive is missing."""
    plain = folder / archive.name.removesuffix(".gz")
    check_regular(plain)
    if (folder / archive.name).exists():
        (verified,) = fetch([archive], folder)
        with open_regular(plain) as expanded, open_regular(verified) as packed:
            # a gzip file ends with the CRC-32 and the size of its content, 4 bytes each
            expected = int.from_bytes(packed.read()[-8:-4], "little")
            is_same = zlib.crc32(expanded.read()) == expected
        if not is_same:
            raise BadFile(
                f"{plain} is not the content of {verified.name}",
                hint=f"move {plain.name} away and repeat the command",
            )
    elif archive.md5 in MNIST_PLAIN_MD5:
        fetch([Remote(plain.name, (), MNIST_PLAIN_MD5[archive.md5])], folder)
