"""The table of MedMNIST datasets: classes, sizes, licences, download addresses and checksums."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

BASE_URL = "https://zenodo.org/records/10519652/files/"
FOLDER = "medmnist"
DEFAULT_SIZE = 28


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """One dataset of MedMNIST, in all its image sizes."""

    name: str
    about: str
    task: str
    channels: int
    images: Mapping[str, int]
    """number of images by split, in the order train, val, test"""
    licence: str
    classes: tuple[str, ...]
    md5: Mapping[str, str]
    """checksum by image size, the size as text"""

    @property
    def is_single_label(self) -> bool:
        """True if every image belongs to exactly one class."""
        return "multi-label" not in self.task

    @property
    def summary(self) -> str:
        """A short description for `wmr list`."""
        count = len(self.classes)
        if not self.is_single_label:
            return f"{self.about} with {count} findings, several per image: not supported"
        total = f"{sum(self.images.values()):,}"
        colours = "colour" if self.channels == 3 else "grey"
        kind = "grades" if "ordinal" in self.task else "classes"
        sizes = "28x28 or size=64, 128, 224"
        return f"{total} {self.about} in {count} {kind}, {colours}, {sizes}"

    def file_name(self, size: int) -> str:
        """Return the name of the published file with images of this size."""
        suffix = "" if size == DEFAULT_SIZE else f"_{size}"
        return f"{self.name}{suffix}.npz"

    def relative_path(self, size: int) -> str:
        """Return the path of the file under --data-dir."""
        return f"{FOLDER}/{self.file_name(size)}"

    def url(self, size: int) -> str:
        """Return the official download address."""
        return f"{BASE_URL}{self.file_name(size)}?download=1"


def _read_catalog() -> dict[str, DatasetInfo]:
    text = resources.files(__package__).joinpath("catalog.toml").read_text(encoding="utf-8")
    catalog = {}
    for name, row in tomllib.loads(text).items():
        row["classes"] = tuple(row["classes"])
        catalog[name] = DatasetInfo(name=name, **row)
    return catalog


DATASETS = _read_catalog()
