"""Packages that loggers need, which are installed as extras."""

import importlib.util

from ...errors import BadInput


def require_package(extra: str, *packages: str) -> None:
    """Raise unless one of these packages of an extra is installed. Import none of them."""
    if not any(map(importlib.util.find_spec, packages)):
        raise BadInput(
            f"{packages[0]} is not installed",
            hint=f"pip install 'wmr-cli[{extra}]', or leave out `logger={extra}`",
        )
