"""wmr plugins"""

from typing import Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from .console import say, say_error, show
from .options import Quiet


def plugins(
    check: Annotated[bool, typer.Option("--check", help="Import everything the plugins offer; exit 1 on any problem.")] = False,
    quiet: Quiet = False,
) -> None:
    """Show the installed plugins, what each offers, and why any was set aside."""
    from ..plugins import check_targets, installed

    found = installed()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("plugin", "version", "offers", "set aside because"):
        table.add_column(heading, overflow="fold")
    for plugin in found.plugins:
        offers = "; ".join(f"{kind}s {', '.join(names)}" for kind, names in plugin.offers.items())
        table.add_row(*map(escape, (plugin.name, plugin.version, offers or "-", plugin.problem or "-")))
    show(table)
    if check:
        problems = [f"{plugin.name}: {plugin.problem}" for plugin in found.set_aside] + check_targets(found.registry)
        for problem in problems:
            say_error(problem)
        if problems:
            raise typer.Exit(1)
        say("every plugin and every name it offers can be loaded", quiet=quiet)
