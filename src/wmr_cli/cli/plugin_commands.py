"""Commands that plugins add to `wmr`, imported when they are run."""

from typing import Any

import typer
from rich.markup import escape
from typer.core import TyperCommand

from .flags import ClickContext, Command


def list_plugin_commands() -> list[str]:
    """Return the names of the commands of all plugins."""
    from ..plugins import load_plugins

    return load_plugins().registry.names("command")


def find_plugin_command(name: str) -> TyperCommand | None:
    """Return a command of a plugin with the summary of its entry, or None."""
    from ..plugins import load_plugins

    registry = load_plugins().registry
    if name not in registry.names("command"):
        return None
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
