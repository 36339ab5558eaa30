"""Import torchvision and timm: `from wmr_cli.core.torchvision_compat import torchvision, timm`.

torchvision's compiled operators load only with the torch build that they were compiled for. With
another one, such as a CPU torch and the CUDA torchvision of the registry, `import torchvision`
fails: "operator torchvision::nms does not exist". Datasets, transforms and timm's models do not
use these operators. This module then declares the two schemas that the import looks up.
"""

import importlib
import importlib.machinery
import importlib.util
from pathlib import Path
from types import ModuleType

import torch

_NMS_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
# a module variable: the declarations exist as long as this object
_library: torch.library.Library | None = None


def compiled_operators_load() -> bool:
    """Return whether torchvision's compiled operators fit the installed torch."""
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return False
    folder = Path(found.origin).parent
    suffixes = (".so", *importlib.machinery.EXTENSION_SUFFIXES)
    compiled = [path for suffix in suffixes if (path := folder / f"_C{suffix}").exists()]
    if not compiled:
        return False
    try:
        torch.ops.load_library(str(compiled[0]))
    except OSError:
        # it needs a symbol or a CUDA library that this torch does not have
        return False
    return True


def _import_torchvision() -> ModuleType:
    global _library
    if _library is None and not compiled_operators_load():
        _library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            _library.define(name + _NMS_SCHEMA)
    return importlib.import_module("torchvision")


def __getattr__(name: str) -> ModuleType:
    if name == "torchvision":
        return _import_torchvision()
    if name == "timm":
        # timm imports torchvision
        _import_torchvision()
        return importlib.import_module("timm")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
