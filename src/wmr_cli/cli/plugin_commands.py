"""Commands that plugins add to `wmr`, imported when they are run."""

from importlib.metadata import entry_points
from typing import Any

import typer
from rich.markup import escape
from typer.core import TyperCommand

from ..registry import ENTRY_POINT_GROUP, OWN_DISTRIBUTION
from .flags import ClickContext, Command


def has_plugins() -> bool:
    """Return whether other packages than this one register anything, without importing them."""
    points = entry_points(group=ENTRY_POINT_GROUP)
    return any(point.dist is None or point.dist.name != OWN_DISTRIBUTION for point in points)


def list_plugin_commands() -> list[str]:
    """Return the names of the commands of all plugins."""
    # without plugins `wmr --help` need not import what loads them
    if not has_plugins():
        return []
    from ..plugins import load_plugins

    return load_plugins().registry.names("command")


def find_plugin_command(name: str) -> TyperCommand | None:
    """Return a command of a plugin with the summary of its entry, or None."""
    if name not in list_plugin_commands():
        return None
    from ..plugins import load_plugins

    registry = load_plugins().registry
    # plugins write summaries: brackets in them are not markup
    return PluginCommand(name, help=escape(registry.find("command", name).entry.summary))


class PluginCommand(TyperCommand):
    """A name and a summary for the help; the function of the plugin is imported to run it."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: ClickContext = None, **extra: Any
    ) -> ClickContext:
        """Parse the arguments with the parameters of the function."""
        from ..plugins import load_plugins

        assert self.name is not None
        app = typer.Typer(add_completion=False, rich_markup_mode="rich")
        function = load_plugins().registry.target("command", self.name)
        app.command(self.name, cls=Command)(function)
        command: Any = typer.main.get_command(app)
        return command.make_context(info_name, args, parent, **extra)
