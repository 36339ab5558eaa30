"""Find installed plugins and collect their entries in a registry.

Every plugin is loaded by itself. A plugin that fails is skipped as a whole, with its problem in the
list of plugins, so that one broken package does not disable the program.
"""

import contextlib
import functools
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points

import pluggy

from . import hookspecs
from .errors import PluginError, did_you_mean
from .hookspecs import KIND_OF_HOOK
from .registry import ALL_KINDS, ENTRY_POINT_GROUP, OWN_DISTRIBUTION, Entry, Registry

GROUP = ENTRY_POINT_GROUP


@dataclass(frozen=True)
class Plugin:
    """An installed plugin: the names it registers by kind, or why it was skipped."""

    name: str
    version: str
    offers: dict[str, list[str]] = field(default_factory=dict)
    problem: str | None = None


@dataclass(frozen=True)
class InstalledPlugins:
    """The registry of all working plugins, and the list of all plugins."""

    registry: Registry
    plugins: list[Plugin]

    @property
    def broken(self) -> list[Plugin]:
        return [plugin for plugin in self.plugins if plugin.problem]


# once per process: importing all plugins is slow
@functools.cache
def load_plugins() -> InstalledPlugins:
    """Return the plugins of this environment, including the built-in one."""
    return collect(entry_points(group=GROUP))


def collect(found: Iterable[EntryPoint]) -> InstalledPlugins:
    """Load plugins and register their entries."""
    registry = Registry()
    plugins = []
    for point in sorted(found, key=_load_order):
        owner = _owner(point)
        version = _version(point)
        try:
            entries = _load_entries(point)
            if not entries:
                raise PluginError(
                    "it registers nothing: a hook returns a list of Entry and needs @hookimpl"
                )
            registry.add(entries, owner, version)
        # SystemExit as well: code of a plugin may raise anything, and the other plugins must work
        except (Exception, SystemExit) as error:  # noqa: BLE001
            # as a whole: half of a plugin would behave unlike what its documentation describes
            plugins.append(Plugin(owner, version, problem=_reason(error)))
            continue
        offers: dict[str, list[str]] = {}
        for kind in ALL_KINDS:
            names = [entry.name for entry_kind, entry in entries if entry_kind == kind]
            if names:
                offers[kind] = names
        plugins.append(Plugin(owner, version, offers))
    return InstalledPlugins(registry, plugins)


def check_targets(registry: Registry) -> list[str]:
    """Import the target of every registered name; return the problems found."""
    problems = []
    for kind, owned in registry:
        try:
            registry.target(kind, owned.entry.name)
        except PluginError as error:
            problems.append(_reason(error))
        # as in `collect`
        except (Exception, SystemExit) as error:  # noqa: BLE001
            problems.append(f"{owned.owner}: {_reason(error)}")
    return problems


def _load_order(point: EntryPoint) -> tuple[bool, str, str]:
    """Return a sort key: the built-in plugin first, then by name.

    A name can be registered once, so that a plugin cannot replace a built-in component.
    """
    owner = _owner(point)
    return owner != OWN_DISTRIBUTION, owner, point.name


def _load_entries(point: EntryPoint) -> list[tuple[str, Entry]]:
    """Return the entries of one plugin with their kinds."""
    # a manager for each plugin, so that an error of one hook cannot affect other plugins
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(hookspecs)
    found = []
    # stdout is reserved for results; a plugin may print while it is imported
    with contextlib.redirect_stdout(sys.stderr):
        plugin = point.load()
        manager.register(plugin, point.name)
        _check_hooks(manager, plugin)
        for hook, kind in KIND_OF_HOOK.items():
            for entries in getattr(manager.hook, hook)():
                found += [(kind, _check_entry(entry)) for entry in entries]
    return found


def _check_hooks(manager: pluggy.PluginManager, plugin: object) -> None:
    """Refuse unknown hooks, except optional ones, which may exist in another version."""
    for hook in manager.get_hookcallers(plugin) or ():
        is_optional = all(found.optionalhook for found in hook.get_hookimpls())
        if not hook.has_spec() and not is_optional:
            raise PluginError(
                f"no hook is called {hook.name!r}: {did_you_mean(hook.name, KIND_OF_HOOK)}"
            )


def _check_entry(entry: object) -> Entry:
    if not isinstance(entry, Entry):
        raise PluginError(f"a hook must return a list of Entry, not of {type(entry).__name__}")
    if problem := entry.problem():
        raise PluginError(problem)
    return entry


def _owner(point: EntryPoint) -> str:
    return point.dist.name if point.dist else point.name


def _version(point: EntryPoint) -> str:
    return point.dist.version if point.dist else "unknown"


def _reason(error: BaseException) -> str:
    """Return an error as one line."""
    text = " ".join(str(error).split())
    return text if isinstance(error, PluginError) else f"{type(error).__name__}: {text}"
