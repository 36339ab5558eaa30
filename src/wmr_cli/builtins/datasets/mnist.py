"""MNIST (LeCun et al. 1998) and Fashion-MNIST (Xiao et al. 2017, arXiv:1708.07747): 70,000 grey images, 28x28, 10 classes."""

import gzip
import shutil
import tempfile
import zlib
from pathlib import Path
from typing import Any

from ...core.data.downloads import Remote, fetch
from ...core.data.splits import Source
from ...core.torchvision_compat import torchvision
from ...errors import BadFile, MissingData
from ...reading import check_regular, open_regular
from .torchvision_datasets import source

PLAIN = {
    "f68b3c2dcbeaaa9fbdd348bbdeb94873": "6bbc9ace898e44ae57da46a324031adb",
    "d53e105ee54ea40749a09fcbcd1e9432": "a25bea736e30d166cdddb491f175f624",
    "9fb629c4189551a2d022fa330f9573f3": "2646ac647ad5339dbf082846283269ea",
    "ec29112dd5afa0611ce80d1b7f02629c": "27ae3e4e09519cfbb04c329615203637",
}
"""The hashes of MNIST's plain files, by those of their archives: plain files may be there alone."""
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
    missing = [
        resource
        for resource in dataset.resources
        if not (folder / resource[0].removesuffix(".gz")).exists()
    ]
    remotes = [
        Remote(file, tuple(mirror + file for mirror in dataset.mirrors), md5)
        for file, md5 in missing
    ]
    for archive in fetch(remotes, folder):
        _expand(archive)

    def read(training: bool) -> tuple[Any, Any]:
        for file, md5 in dataset.resources:
            if file.startswith("train" if training else "t10k"):
                _prove(folder, Remote(file, (), md5))
        made = dataset(root, train=training)
        return made.data, made.targets

    return source(
        name,
        read,
        holdout=holdout,
        split_seed=split_seed,
        shape=(1, 28, 28),
        sizes=SIZES,
        classes=10,
    )


def _expand(archive: Path) -> None:
    """The plain file beside its archive, by way of a temporary one of this process alone."""
    try:
        with tempfile.TemporaryDirectory(dir=archive.parent) as temporary:
            part = Path(temporary) / archive.stem
            with gzip.open(archive) as packed, part.open("wb") as stream:
                shutil.copyfileobj(packed, stream)
            part.replace(archive.with_suffix(""))
    except (OSError, EOFError, zlib.error) as error:
        raise MissingData(
            f"{archive} cannot be unpacked: {error}", hint="make room, or choose another --data-dir"
        ) from None


def _prove(folder: Path, archive: Remote) -> None:
    """The plain file is the official one: by the checksum that its archive ends with, or by a hash of its own."""
    plain = folder / archive.name.removesuffix(".gz")
    check_regular(plain)
    if (folder / archive.name).exists():
        (proved,) = fetch([archive], folder)
        with open_regular(plain) as expanded, open_regular(proved) as packed:
            is_same = zlib.crc32(expanded.read()) == int.from_bytes(packed.read()[-8:-4], "little")
        if not is_same:
            raise BadFile(
                f"{plain} is not what {proved.name} holds",
                hint=f"move {plain.name} away and repeat the command",
            )
    elif archive.md5 in PLAIN:
        fetch([Remote(plain.name, (), PLAIN[archive.md5])], folder)
