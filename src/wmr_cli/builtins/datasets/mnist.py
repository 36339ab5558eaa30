"""MNIST (LeCun et al. 1998) and Fashion-MNIST (Xiao et al. 2017, arXiv:1708.07747): 70,000 grey images, 28x28, 10 classes."""

import gzip
import shutil
from pathlib import Path
from typing import Any

from ...core.downloads import Remote, fetch
from ...core.splits import Source
from ...core.vision import torchvision
from ...errors import BadFile
from .standard import source

SIZES = (60_000, 10_000)
"""Training and test images."""


def mnist(root: Path, split_seed: int = 0, holdout: float = 0.02) -> Source:
    """Handwritten digits."""
    return _idx("mnist", torchvision.datasets.MNIST, root, split_seed, holdout)


def fashion_mnist(root: Path, split_seed: int = 0, holdout: float = 0.02) -> Source:
    """Articles of clothing."""
    return _idx("fashion-mnist", torchvision.datasets.FashionMNIST, root, split_seed, holdout)


def _idx(name: str, dataset: Any, root: Path, split_seed: int, holdout: float) -> Source:
    folder = root / dataset.__name__ / "raw"
    missing = [resource for resource in dataset.resources if not (folder / resource[0].removesuffix(".gz")).exists()]
    remotes = [Remote(file, tuple(mirror + file for mirror in dataset.mirrors), md5) for file, md5 in missing]
    for archive in fetch(remotes, folder):
        _expand(archive)

    def read(training: bool) -> tuple[Any, Any]:
        made = dataset(root, train=training)
        return made.data, made.targets

    return source(name, read, holdout=holdout, split_seed=split_seed, shape=(1, 28, 28), sizes=SIZES, classes=10)


def _expand(archive: Path) -> None:
    """The plain file beside its archive, by way of a temporary one."""
    plain, part = archive.with_suffix(""), archive.with_suffix(".part")
    try:
        with gzip.open(archive) as packed, part.open("wb") as stream:
            shutil.copyfileobj(packed, stream)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise BadFile(f"{archive} cannot be unpacked: {error}", hint="make room, or choose another --data-dir") from None
    part.rename(plain)
