"""What the installed robustbench package has: names, the files of their weights, and how they are loaded."""

import contextlib
import importlib
import importlib.metadata
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from wmr_cli.core import vision
from wmr_cli.errors import PluginError

CLASSES = {"cifar10": 10, "cifar100": 100, "imagenet": 1000}
"""The data sets of the zoo and how many classes they have."""
INSTALL = "pip install 'wmr-robustbench[zoo]' && pip install --no-deps robustbench==1.1.1"
"""Without its dependencies: it pins a timm that is older than the one wmr needs."""
FETCHES_ITSELF = "it has no file of its own: building it downloads the weights of another library"


@dataclass(frozen=True)
class Listed:
    """A network as the zoo lists it."""

    name: str
    dataset: str
    threat: str
    make: Callable[[], nn.Module]
    drive_ids: tuple[str, ...]
    """where Google Drive has the files: one, or several for an ensemble; none where another library has the weights"""
    is_ensemble: bool = False

    def files(self, folder: Path) -> list[Path]:
        """The files of its weights in a folder of robustbench's layout."""
        file = folder / self.dataset / self.threat / f"{self.name}.pt"
        return [Path(f"{file}_m{number}.pt") for number in range(len(self.drive_ids))] if self.is_ensemble else [file]


def listed(dataset: str, threat: str) -> dict[str, Listed]:
    """Every network of a data set and threat model, by name."""
    timm, (zoo, enums) = vision.timm, _modules("model_zoo", "model_zoo.enums")
    networks = zoo.model_dicts[enums.BenchmarkDataset(dataset)].get(enums.ThreatModel(threat), {})
    return {name: _listed(name, dataset, threat, entry, timm) for name, entry in networks.items()}


def _listed(name: str, dataset: str, threat: str, entry: Mapping[str, Any], timm: Any) -> Listed:
    ids = entry.get("gdrive_id")
    # the two ways in which robustbench leaves the weights to others
    is_of_timm = timm.is_model(f"{name.lower().replace('-', '_')}_{dataset}_{threat.lower()}")
    is_of_torchvision = dataset == "imagenet" and "Standard" in name
    if is_of_timm or is_of_torchvision or not ids:
        return Listed(name, dataset, threat, entry["model"], ())
    return Listed(name, dataset, threat, entry["model"], (ids,) if isinstance(ids, str) else tuple(ids), isinstance(ids, list))


def loaded(network: Listed, folder: Path) -> nn.Module:
    """The network with its weights from a folder of robustbench's layout, where the files are; no code in them is run.

    robustbench knows what is odd about the files of each network. It says nothing to torch about pickled code, which
    torch refuses by itself since 2.6; the variable has every version refuse it.
    """
    (utils,) = _modules("utils")
    with _environment("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "1"), contextlib.redirect_stdout(sys.stderr):
        model: nn.Module = utils.load_model(network.name, folder, network.dataset, network.threat)
    return model


def _modules(*names: str) -> list[Any]:
    """Modules of robustbench, imported without the package's own first lines.

    Those import an attack library that the package index does not have under that name, and a part of setuptools that
    is gone; nothing here needs either.
    """
    found = importlib.util.find_spec("robustbench")
    # torchattacks ships an old copy under this name, which is not the package
    if found is None or not list(importlib.metadata.distributions(name="robustbench")):
        raise PluginError("the package robustbench is not installed", hint=INSTALL)
    _ = vision.torchvision  # the architectures import it by themselves
    is_bare = "robustbench" not in sys.modules
    if is_bare:
        sys.modules["robustbench"] = importlib.util.module_from_spec(found)
    try:
        with warnings.catch_warnings():  # old names of timm, which still work
            warnings.simplefilter("ignore")
            return [importlib.import_module(f"robustbench.{name}") for name in names]
    except ImportError as error:
        raise PluginError(f"robustbench cannot be imported: {error}", hint=INSTALL) from error
    finally:
        if is_bare:
            del sys.modules["robustbench"]


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Inside, an environment variable has this value."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
