"""Train image classifiers that withstand adversarial attacks, and measure how well they do.

Public names, imported on first use, so that `import wmr_cli` does not import torch:

* for plugins: `Entry`, `Spec`, `hookimpl`, and the errors that a plugin raises
* for notebooks: `create` builds a component by name, `load` restores the model of a checkpoint,
  `evaluate` measures a model and returns a `Result`, `read_rows` reads the rows of records into
  a data frame, `read_saved` reads a torch file safely, `make_card` describes the robustness of a
  run in Markdown

Public modules: `wmr_cli.core` (the toolbox for plugins), `wmr_cli.measures`, `wmr_cli.testing`,
and `wmr_cli.torchmetrics`, which needs the extra `torchmetrics`.
"""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = [
    "BadFile",
    "BadInput",
    "BrokenContract",
    "Entry",
    "MissingData",
    "PluginError",
    "Result",
    "Spec",
    "UnknownName",
    "WmrError",
    "__version__",
    "core",
    "create",
    "did_you_mean",
    "errors",
    "evaluate",
    "hookimpl",
    "load",
    "make_card",
    "measures",
    "read_rows",
    "read_saved",
    "testing",
]

if TYPE_CHECKING:
    from . import core, errors, measures, testing
    from .api import Result, create, evaluate, load, read_saved
    from .errors import (
        BadFile,
        BadInput,
        BrokenContract,
        MissingData,
        PluginError,
        UnknownName,
        WmrError,
        did_you_mean,
    )
    from .hookspecs import hookimpl
    from .registry import Entry
    from .reporting.card import make_card
    from .reporting.frames import read_rows
    from .spec import Spec

_PUBLIC_MODULES = ("core", "errors", "measures", "testing")
_NAMES_BY_MODULE = {
    "api": ("Result", "create", "evaluate", "load", "read_saved"),
    "errors": (
        "BadFile",
        "BadInput",
        "BrokenContract",
        "MissingData",
        "PluginError",
        "UnknownName",
        "WmrError",
        "did_you_mean",
    ),
    "hookspecs": ("hookimpl",),
    "registry": ("Entry",),
    "reporting.card": ("make_card",),
    "reporting.frames": ("read_rows",),
    "spec": ("Spec",),
}
_MODULE_OF_NAME = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}


def __getattr__(name: str) -> object:
    if name in _PUBLIC_MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f".{_MODULE_OF_NAME[name]}", __name__), name)
    # Python calls this function only for names that the module does not hold yet
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
