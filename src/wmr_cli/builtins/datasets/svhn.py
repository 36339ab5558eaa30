"""Street View House Numbers (Netzer et al. 2011): 73,257 + 26,032 colour images of digits, 32x32, 10 classes."""

from pathlib import Path
from typing import Any

from ...core.data.downloads import Remote, fetch
from ...core.data.splits import Source
from ...core.torchvision_compat import torchvision
from .torchvision_datasets import source

SIZES = (73_257, 26_032)
"""Training and test images."""


def svhn(root: Path, split_seed: int = 0, holdout: float = 0.02) -> Source:
    """Cropped digits; the extra training images are left out."""
    dataset = torchvision.datasets.SVHN
    remotes = {
        split: Remote(file, (url,), md5)
        for split, (url, file, md5) in dataset.split_list.items()
        if split != "extra"
    }
    fetch([remote for remote in remotes.values() if not (root / remote.name).exists()], root)

    def read(training: bool) -> tuple[Any, Any]:
        split = "train" if training else "test"
        fetch([remotes[split]], root)  # names what is wrong with a file; torchvision does not
        made = dataset(root, split=split)
        return made.data, made.labels

    return source(
        "svhn",
        read,
        holdout=holdout,
        split_seed=split_seed,
        shape=(3, 32, 32),
        sizes=SIZES,
        classes=10,
    )
