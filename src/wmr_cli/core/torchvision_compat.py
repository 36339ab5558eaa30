"""The one door to torchvision and timm. Import them as `from wmr_cli.core.torchvision_compat import torchvision, timm`.

torchvision's compiled operators load only beside the torch build they were compiled for. Beside another one (a CPU
torch with the registry's CUDA torchvision, say) `import torchvision` fails with "operator torchvision::nms does not
exist", although data sets, transforms and timm's models use none of them. Declaring the two schemas that the import
looks up is enough. Where the operators do load, nothing is declared.
"""

import importlib
import importlib.machinery
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

_NMS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_library: torch.library.Library | None = None  # the declarations live as long as this object


def compiled_operators_load() -> bool:
    """Whether torchvision's compiled operators fit the installed torch."""
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return False
    folder = Path(found.origin).parent
    compiled = [
        folder / f"_C{suffix}" for suffix in (".so", *importlib.machinery.EXTENSION_SUFFIXES)
    ]
    try:
        for path in filter(Path.exists, compiled):
            torch.ops.load_library(str(path))
            return True
    except OSError:  # a symbol or a CUDA library that this torch does not have
        return False
    return False


def _open() -> ModuleType:
    global _library
    if _library is None and not compiled_operators_load():
        _library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            _library.define(name + _NMS)
    return importlib.import_module("torchvision")


def __getattr__(name: str) -> Any:
    if name == "torchvision":
        return _open()
    if name == "timm":
        _open()
        return importlib.import_module("timm")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
