"""wmr list"""

import fnmatch
from typing import Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from ..errors import UnknownName, did_you_mean
from .console import say, show
from .options import Quiet

KINDS = ("model", "dataset", "defense", "attack", "kernel", "preset")
PLURALS = {f"{kind}s": kind for kind in KINDS}


def list_names(
    what: Annotated[str | None, typer.Argument(metavar="|".join(PLURALS), help="One kind of name.", show_default="all")] = None,
    pattern: Annotated[str | None, typer.Argument(metavar="PATTERN", help="Part of a name, or a pattern such as 'pgd*'.")] = None,
    quiet: Quiet = False,
) -> None:
    """List what can be named: models, data sets, defenses, attacks, kernels, presets."""
    from .. import presets
    from ..plugins import installed

    if what is not None and what not in PLURALS:
        raise UnknownName(f"there is nothing called {what!r} to list", hint=did_you_mean(what, PLURALS))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("kind", "name", "what it is", "from"):
        table.add_column(heading, overflow="fold")
    rows = [(kind, owned.entry.name, owned.entry.summary, owned.owner) for kind, owned in installed().registry]
    rows += [("preset", name, str(presets.load(name).get("summary", "")), "wmr-cli") for name in presets.names()]
    for kind, *row in rows:
        if (what is None or kind == PLURALS[what]) and _matches(row[0], pattern):
            table.add_row(kind, *map(escape, row))
    if table.row_count:
        show(table)
    else:
        say(f"no name matches {pattern!r}", quiet=quiet)
        raise typer.Exit(1)


def _matches(name: str, pattern: str | None) -> bool:
    return pattern is None or pattern in name or fnmatch.fnmatch(name, pattern)
