"""Train image classifiers that withstand adversarial attacks, and measure honestly how well they do.

Public names, imported when they are first used: `Entry`, `hookimpl` and `Spec` for plugins; `create` to build a component
by name, `load` to restore a checkpoint's network, `read_saved` to read a file of torch's without running code, `evaluate` to
measure any network, and `Result`, what it gives, for notebooks. Public modules: `wmr_cli.core`, `wmr_cli.errors`,
`wmr_cli.measures`, `wmr_cli.testing`.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "Entry", "Result", "Spec", "__version__", "core", "create", "errors", "evaluate", "hookimpl", "load", "measures",
    "read_saved", "testing",
]  # fmt: skip

if TYPE_CHECKING:
    from . import core, errors, measures, testing
    from .hookspecs import hookimpl
    from .registry import Entry
    from .spec import Spec
    from .workflows.public import Result, create, evaluate, load, read_saved

_HOMES = {
    "Entry": ".registry",
    "Spec": ".spec",
    "hookimpl": ".hookspecs",
    **dict.fromkeys(("Result", "create", "evaluate", "load", "read_saved"), ".workflows.public"),
}
_MODULES = ("core", "errors", "measures", "testing")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
