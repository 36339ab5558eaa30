"""wmr plugins, wmr plugins new"""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from ..errors import BadInput
from .console import say, say_error, show, write
from .options import Command, Quiet, choice, read

app = typer.Typer(invoke_without_command=True)
KINDS = ("attack", "model", "dataset", "loss", "kernel")


@app.callback()
def plugins(
    context: typer.Context,
    check: Annotated[
        bool,
        typer.Option("--check", help="Import everything the plugins offer; exit 1 on any problem."),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Show plugins, what each offers, and why any was set aside; or begin a new one."""
    if context.invoked_subcommand is not None:
        if check:
            raise BadInput(
                "--check goes with `wmr plugins` alone", hint="leave it out, or leave out the rest"
            )
        return
    from ..plugins import check_targets, installed

    found = installed()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("plugin", "version", "offers"):
        table.add_column(heading, overflow="fold")
    for plugin in found.plugins:
        offers = "\n".join(f"{kind}s {', '.join(names)}" for kind, names in plugin.offers.items())
        said = f"[red]set aside:[/] {escape(plugin.problem)}" if plugin.problem else escape(offers)
        table.add_row(escape(plugin.name), escape(plugin.version), said)
    show(table)
    if check:
        problems = [f"{plugin.name}: {plugin.problem}" for plugin in found.broken] + check_targets(
            found.registry
        )
        if problems:
            for problem in problems if len(problems) > 1 else ():
                say(problem, quiet=quiet, warns=True)
            text = (
                problems[0]
                if len(problems) == 1
                else f"{len(problems)} plugins or names cannot be loaded"
            )
            say_error(text, "reinstall or uninstall the plugin, or ask its author")
            raise typer.Exit(1)
        say("every plugin and every name it offers can be loaded", quiet=quiet)


@app.command(
    cls=Command,
    epilog="Example: wmr plugins new mine --kind attack, then pip install -e './wmr-mine[test]'",
)
def new(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="What users will type. The package is called wmr-NAME."
        ),
    ],
    kinds: Annotated[
        list[str],
        typer.Option(
            "--kind",
            metavar="|".join(KINDS),
            help="What it is. Give it several times for a plugin that has several.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Where to write the package.",
            show_default="wmr-NAME in this folder",
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write a new plugin. The package works and passes its tests as it is; the places to change are marked."""
    from ..plugins import installed
    from ..scaffold import scaffold

    folder = scaffold(name, [_kind(text) for text in kinds], out, installed().registry)
    write(str(folder))
    package = shlex.quote(f"{folder}[test]")
    say(
        f"next: pip install -e {package}, then follow {folder / 'README.md'}; CHANGE marks what to change",
        quiet=quiet,
    )


def _kind(text: str) -> str:
    if text == "defense":
        raise BadInput("--kind: a defense is of the kind 'loss'", hint="write --kind loss")
    kind = read("--kind", text, choice(*KINDS))
    assert kind is not None  # it was given
    return kind
