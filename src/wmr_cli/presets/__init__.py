"""Presets: tested combinations of settings, one TOML file each (`digits`, `paper/mnist`, …).

Top-level keys are those of `TrainConfig`. `[defenses.NAME]` overrides them for one defense.
`[evaluate]` contains the default settings of evaluations.
"""

import tomllib
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from ..errors import UnknownName, did_you_mean


def _find_files(folder: Traversable, prefix: str = "") -> dict[str, Traversable]:
    found: dict[str, Traversable] = {}
    for item in folder.iterdir():
        if item.is_dir():
            found |= _find_files(item, f"{prefix}{item.name}/")
        elif item.name.endswith(".toml"):
            found[prefix + item.name.removesuffix(".toml")] = item
    return found


def names() -> list[str]:
    """Return the names of all presets, sorted."""
    return sorted(_find_files(resources.files(__name__)))


def load(name: str) -> dict[str, Any]:
    """Return the settings of a preset as plain values, including `summary` and `defenses`."""
    files = _find_files(resources.files(__name__))
    if name not in files:
        raise UnknownName(f"no preset is called {name!r}", hint=did_you_mean(name, files))
    return tomllib.loads(files[name].read_text(encoding="utf-8"))


def for_dataset(dataset: str) -> str | None:
    """Return the default preset of a dataset: its own, or that of the paper."""
    known = names()
    return next((name for name in (dataset, f"paper/{dataset}") if name in known), None)
