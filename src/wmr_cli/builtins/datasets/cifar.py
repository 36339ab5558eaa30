"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 50,000 + 10,000 colour images, 32x32, 10 or 100 classes."""

from pathlib import Path
from typing import Any

from ...core.data.downloads import Remote, fetch, unpack
from ...core.data.splits import Source
from ...core.torchvision_compat import torchvision
from ...reading import check_regular
from .torchvision_datasets import source

SIZES = (50_000, 10_000)
"""Training and test images."""


def cifar10(root: Path, split_seed: int = 0, holdout: float = 0.02) -> Source:
    """Ten kinds of animals and vehicles."""
    return _batches("cifar10", torchvision.datasets.CIFAR10, root, split_seed, holdout, classes=10)


def cifar100(root: Path, split_seed: int = 0, holdout: float = 0.02) -> Source:
    """A hundred kinds of things."""
    return _batches(
        "cifar100", torchvision.datasets.CIFAR100, root, split_seed, holdout, classes=100
    )


def _batches(
    name: str, dataset: Any, root: Path, split_seed: int, holdout: float, classes: int
) -> Source:
    folder = root / dataset.base_folder
    hashes = {
        **dict(dataset.train_list),
        **dict(dataset.test_list),
        dataset.meta["filename"]: dataset.meta["md5"],
    }
    if not all((folder / file).exists() for file in hashes):
        (archive,) = fetch([Remote(dataset.filename, (dataset.url,), dataset.tgz_md5)], root)
        unpack(archive, root, dataset.base_folder)

    def read(training: bool) -> tuple[Any, Any]:
        for file in hashes:
            check_regular(folder / file)
        try:
            # these files are pickles: torchvision proves each by its hash before it opens it
            made = dataset(root, train=training)
        except RuntimeError:
            fetch(
                [Remote(file, (), md5) for file, md5 in hashes.items()], folder
            )  # names the one that is wrong
            raise
        return made.data, made.targets

    return source(
        name,
        read,
        holdout=holdout,
        split_seed=split_seed,
        shape=(3, 32, 32),
        sizes=SIZES,
        classes=classes,
    )
