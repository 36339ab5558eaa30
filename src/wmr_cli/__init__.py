"""Train image classifiers that withstand adversarial attacks, and measure honestly how well they do.

Public names, imported when they are first used: `Entry` and `hookimpl` for plugins, `create` to build a component by
name, `load` to restore a checkpoint's network. Public modules: `wmr_cli.core`, `wmr_cli.measures`, `wmr_cli.testing`.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Entry", "__version__", "create", "hookimpl", "load"]

if TYPE_CHECKING:
    from .hookspecs import hookimpl
    from .registry import Entry
    from .workflows.public import create, load

_HOMES = {"Entry": ".registry", "hookimpl": ".hookspecs", "create": ".workflows.public", "load": ".workflows.public"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name], __name__), name)
