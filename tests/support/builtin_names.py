"""Names of the built-in components, for tests that include every new one automatically."""

from wmr_cli.plugins import load_plugins
from wmr_cli.registry import OWN_DISTRIBUTION


def list_builtins(kind: str) -> list[str]:
    """Return the sorted names of this kind that `wmr` itself registers."""
    return [
        owned.entry.name
        for of, owned in load_plugins().registry
        if of == kind and owned.owner == OWN_DISTRIBUTION
    ]
