"""Find the installed plugins, ask each by itself, set the broken ones aside whole and say why."""

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
from .registry import KINDS, OWN_DISTRIBUTION, Entry, Registry

GROUP = "wmr"


@dataclass(frozen=True)
class Plugin:
    """An installed plugin: what it offers, or why it was set aside."""

    name: str
    version: str
    offers: dict[str, list[str]] = field(default_factory=dict)
    problem: str | None = None


@dataclass(frozen=True)
class Installed:
    """The registry that all sound plugins fill together, and the list of all plugins."""

    registry: Registry
    plugins: list[Plugin]

    @property
    def broken(self) -> list[Plugin]:
        return [plugin for plugin in self.plugins if plugin.problem]


@functools.cache
def installed() -> Installed:
    """The plugins of this environment, our own among them."""
    return collect(entry_points(group=GROUP))


def collect(found: Iterable[EntryPoint]) -> Installed:
    """Ask every plugin, our own first: a newcomer that takes one of our names is the one set aside."""
    registry = Registry()
    plugins = []
    for point in sorted(
        found, key=lambda point: (_owner(point) != OWN_DISTRIBUTION, _owner(point), point.name)
    ):
        try:
            offered = _ask(point)
            if not offered:
                raise PluginError(
                    "it offers nothing: a hook returns a list of Entry and is marked with @hookimpl"
                )
            registry.add(offered, _owner(point), _version(point))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a stranger's code: whatever it raises, the rest goes on
            plugins.append(Plugin(_owner(point), _version(point), problem=_reason(error)))
            continue
        offers = {kind: [entry.name for of, entry in offered if of == kind] for kind in KINDS}
        plugins.append(
            Plugin(
                _owner(point),
                _version(point),
                {kind: names for kind, names in offers.items() if names},
            )
        )
    return Installed(registry, plugins)


def check_targets(registry: Registry) -> list[str]:
    """Import what stands behind every registered name; the problems found."""
    problems = []
    for kind, owned in registry:
        try:
            registry.target(kind, owned.entry.name)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - as above
            problems.append(
                _reason(error)
                if isinstance(error, PluginError)
                else f"{owned.owner}: {_reason(error)}"
            )
    return problems


def _ask(point: EntryPoint) -> list[tuple[str, Entry]]:
    """Everything one plugin offers, from a manager of its own so that its mistakes stay its own."""
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(hookspecs)
    with contextlib.redirect_stdout(sys.stderr):  # stdout belongs to results
        plugin = point.load()
        manager.register(plugin, point.name)
        _check_hooks(manager, plugin)
        answers = {kind: getattr(manager.hook, hook)() for hook, kind in KIND_OF_HOOK.items()}
        return [
            (kind, _checked(entry))
            for kind, lists in answers.items()
            for entries in lists
            for entry in entries
        ]


def _check_hooks(manager: pluggy.PluginManager, plugin: object) -> None:
    """Every hook of a plugin is ours; one marked as optional may be that of another version."""
    for hook in manager.get_hookcallers(plugin) or ():
        if not hook.has_spec() and not all(
            implementation.optionalhook for implementation in hook.get_hookimpls()
        ):
            raise PluginError(
                f"no hook is called {hook.name!r}: {did_you_mean(hook.name, KIND_OF_HOOK)}"
            )


def _checked(entry: object) -> Entry:
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
    """One line that names the mistake."""
    text = " ".join(str(error).split())
    return text if isinstance(error, PluginError) else f"{type(error).__name__}: {text}"
