"""Settings that belong together, one TOML file each: `digits`, `paper/mnist`, …

Top-level keys are those of `TrainConfig`; `[defenses.NAME]` holds what this preset gives one defense;
`[evaluate]` says how checkpoints of this preset are evaluated.
"""

import tomllib
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from ..errors import UnknownName, did_you_mean


def _files(folder: Traversable, prefix: str = "") -> dict[str, Traversable]:
    found: dict[str, Traversable] = {}
    for item in folder.iterdir():
        if item.is_dir():
            found |= _files(item, f"{prefix}{item.name}/")
        elif item.name.endswith(".toml"):
            found[prefix + item.name.removesuffix(".toml")] = item
    return found


def names() -> list[str]:
    """Every preset, sorted."""
    return sorted(_files(resources.files(__name__)))


def load(name: str) -> dict[str, Any]:
    """The settings of a preset as plain values, `summary` and `defenses` among them."""
    files = _files(resources.files(__name__))
    if name not in files:
        raise UnknownName(f"no preset is called {name!r}", hint=did_you_mean(name, files))
    return tomllib.loads(files[name].read_text(encoding="utf-8"))


def for_dataset(dataset: str) -> str | None:
    """The preset that a data set takes when none is named: its own, or the paper's."""
    known = names()
    return next((name for name in (dataset, f"paper/{dataset}") if name in known), None)
