"""Access to the installed robustbench package: model names, weight files, and loading."""

import contextlib
import importlib
import importlib.metadata
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import NotRequired, TypedDict

from torch import nn

from wmr_cli import PluginError
from wmr_cli.core import torchvision_compat

NUM_CLASSES = {"cifar10": 10, "cifar100": 100, "imagenet": 1000}
"""The datasets of the zoo."""
# robustbench pins a timm that is older than the one wmr needs, hence --no-deps
INSTALL_HINT = "pip install 'wmr-robustbench[zoo]' && pip install --no-deps robustbench==1.1.1"


class ZooRow(TypedDict):
    """A row of robustbench's own table."""

    model: Callable[[], nn.Module]
    gdrive_id: NotRequired[str | list[str] | None]


@dataclass(frozen=True, kw_only=True)
class ZooModel:
    """A model of the zoo. `drive_ids` locate its files on Google Drive: several for an ensemble."""

    name: str
    dataset: str
    threat: str
    make: Callable[[], nn.Module]
    drive_ids: tuple[str, ...] = ()
    is_ensemble: bool = False

    @property
    def has_files(self) -> bool:
        """False if building the model downloads weights of another library."""
        return bool(self.drive_ids)

    def files(self, folder: Path) -> list[Path]:
        """Return the paths of its weights in a folder with robustbench's layout."""
        file = folder / self.dataset / self.threat / f"{self.name}.pt"
        if not self.is_ensemble:
            return [file]
        return [Path(f"{file}_m{number}.pt") for number in range(len(self.drive_ids))]


def list_models(dataset: str, threat: str) -> dict[str, ZooModel]:
    """Return all models of a dataset and threat model, by name."""
    zoo = _import_module("model_zoo")
    enums = _import_module("model_zoo.enums")
    rows = zoo.model_dicts[enums.BenchmarkDataset(dataset)].get(enums.ThreatModel(threat), {})
    return {name: _read_row(name, dataset, threat, row) for name, row in rows.items()}


def _read_row(name: str, dataset: str, threat: str, row: ZooRow) -> ZooModel:
    timm = torchvision_compat.timm
    # robustbench takes the weights of some models from timm or torchvision, which download them
    timm_name = f"{name.lower().replace('-', '_')}_{dataset}_{threat.lower()}"
    is_from_timm = timm.is_model(timm_name)
    is_from_torchvision = dataset == "imagenet" and "Standard" in name
    ids = row.get("gdrive_id")
    drive_ids: tuple[str, ...] = ()
    if ids and not is_from_timm and not is_from_torchvision:
        drive_ids = (ids,) if isinstance(ids, str) else tuple(ids)
    return ZooModel(
        name=name,
        dataset=dataset,
        threat=threat,
        make=row["model"],
        drive_ids=drive_ids,
        is_ensemble=bool(drive_ids) and isinstance(ids, list),
    )


def load_model(model: ZooModel, folder: Path) -> nn.Module:
    """Load a model with robustbench, which knows the quirks of each file, without running code."""
    utils = _import_module("utils")
    # robustbench leaves `weights_only` to torch, whose default refuses pickled code since 2.6 only
    with (
        _set_environment("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "1"),
        contextlib.redirect_stdout(sys.stderr),
    ):
        loaded: nn.Module = utils.load_model(model.name, folder, model.dataset, model.threat)
    return loaded


def _import_module(name: str) -> ModuleType:
    """Import a module of robustbench without running the package's `__init__`.

    `__init__` imports an attack library that is not on the package index, and a part of setuptools
    that was removed. Neither is needed here.
    """
    found = importlib.util.find_spec("robustbench")
    # torchattacks ships an old copy under this name, which is not the package
    is_installed = bool(list(importlib.metadata.distributions(name="robustbench")))
    if found is None or not is_installed:
        raise PluginError("the package robustbench is not installed", hint=INSTALL_HINT)
    _ = torchvision_compat.torchvision  # makes the later `import torchvision` of the models work
    is_placeholder = "robustbench" not in sys.modules
    if is_placeholder:
        sys.modules["robustbench"] = importlib.util.module_from_spec(found)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecated names of timm, which still work
            return importlib.import_module(f"robustbench.{name}")
    except ImportError as error:
        raise PluginError(f"robustbench cannot be imported: {error}", hint=INSTALL_HINT) from error
    finally:
        if is_placeholder:
            del sys.modules["robustbench"]


@contextlib.contextmanager
def _set_environment(name: str, value: str) -> Iterator[None]:
    """Set an environment variable, and restore it on exit."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
