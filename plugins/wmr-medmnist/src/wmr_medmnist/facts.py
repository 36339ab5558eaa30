"""What is known of each set before any of its files is there."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

ADDRESS = "https://zenodo.org/records/10519652/files/"
FOLDER = "medmnist"


@dataclass(frozen=True)
class Facts:
    """One set of MedMNIST, in all its sizes."""

    name: str
    about: str
    task: str
    channels: int
    images: Mapping[str, int]
    """how many there are of train, val and test"""
    licence: str
    classes: tuple[str, ...]
    md5: Mapping[str, str]
    """by the side of the images, as text"""

    @property
    def is_single_label(self) -> bool:
        """Whether every image is of one class."""
        return "multi-label" not in self.task

    @property
    def summary(self) -> str:
        """A few words for `wmr list`."""
        colours = "colour" if self.channels == 3 else "grey"
        if not self.is_single_label:
            return f"{self.about}, several of {len(self.classes)} findings each: refused, as this is no choice of one class"
        kind = "grades" if "ordinal" in self.task else "classes"
        return f"{sum(self.images.values()):,} {self.about} in {len(self.classes)} {kind}, {colours}, 28x28 or size=64, 128, 224"

    def archive(self, size: int) -> str:
        """The name of the file with images of this side."""
        return f"{self.name}.npz" if size == 28 else f"{self.name}_{size}.npz"

    def file(self, size: int) -> str:
        """Where it lies under --data-dir."""
        return f"{FOLDER}/{self.archive(size)}"

    def url(self, size: int) -> str:
        """Where its authors publish it."""
        return f"{ADDRESS}{self.archive(size)}?download=1"


def _read() -> dict[str, Facts]:
    table = tomllib.loads(resources.files(__package__).joinpath("sets.toml").read_text(encoding="utf-8"))
    return {name: Facts(name=name, **{**row, "classes": tuple(row["classes"])}) for name, row in table.items()}


SETS = _read()
