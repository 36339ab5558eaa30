"""wmr list and wmr schema: names, and the settings of files."""

import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from ..errors import UnknownName, did_you_mean
from .console import say_error, show, write
from .options import DataDir, Quiet, components, default_data_dir

if TYPE_CHECKING:
    from ..registry import Entry

KINDS = ("model", "dataset", "defense", "attack", "kernel", "preset")
SCHEMAS = ("train", "study", "record")
PLURALS = {f"{kind}s": kind for kind in KINDS}


def list_names(
    what: Annotated[
        str | None,
        typer.Argument(metavar="|".join(PLURALS), help="One kind of name.", show_default="all"),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Argument(metavar="PATTERN", help="Part of a name, or a pattern such as 'pgd*'."),
    ] = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """List what can be named: models, data sets, defenses, attacks, kernels, presets."""
    from .. import presets
    from ..registry import Entry

    if what is not None and what not in PLURALS:
        raise UnknownName(
            f"there is nothing called {what!r} to list", hint=did_you_mean(what, PLURALS)
        )
    folder, shows_files = data_dir or default_data_dir(), what == "datasets"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption_justify="left")
    for heading in ("kind", "name", "what it is", "from", *(["files"] if shows_files else [])):
        table.add_column(heading, overflow="fold")
    rows = [(kind, owned.entry, owned.owner) for kind, owned in components(quiet)]
    rows += [
        ("preset", Entry(name, "", str(presets.load(name).get("summary", ""))), "wmr-cli")
        for name in presets.names()
    ]
    for kind, entry, owner in rows:
        if (what is None or kind == PLURALS[what]) and _matches(entry.name, pattern):
            cells = (
                kind,
                entry.name,
                entry.summary,
                owner,
                *([_present(entry, folder)] if shows_files else []),
            )
            table.add_row(*map(escape, cells))
    if shows_files:
        table.caption = escape(
            f"files are looked for in {folder}; what is missing is downloaded when it is first used"
        )
    if table.row_count:
        show(table)
    else:
        named = f"wmr list {what}" if what else "wmr list"
        say_error(f"no name matches {pattern!r}", f"`{named}` without a pattern lists all names")
        raise typer.Exit(1)


def schema(
    what: Annotated[
        str, typer.Argument(metavar="|".join(SCHEMAS), help="The kind of file.", show_default=False)
    ],
) -> None:
    """Print the JSON Schema of config files, study files or records, for editors and checks."""
    import msgspec

    if what not in SCHEMAS:
        raise UnknownName(f"{what!r} has no schema", hint=did_you_mean(what, SCHEMAS))
    content = msgspec.json.encode(_make_schema(what))
    write(msgspec.json.format(content, indent=2).decode())


def _make_schema(what: str) -> dict[str, Any]:
    import msgspec

    from .. import config
    from ..storage.records import Record
    from ..sweeps import study

    if what == "train":
        return config.make_schema()
    if what == "study":
        return study.make_schema()
    # the program writes records, so their numbers are always numbers
    return {config.SCHEMA_KEY: config.SCHEMA_DIALECT, **msgspec.json.schema(Record)}


def _present(entry: "Entry", folder: Path) -> str:
    """Whether the files of a data set are there; one that needs none says nothing."""
    there = sum((folder / file).exists() for file in entry.files)
    if there in (0, len(entry.files)):
        return "-" if not entry.files else "present" if there else "missing"
    return f"{there} of {len(entry.files)}"


def _matches(name: str, pattern: str | None) -> bool:
    return pattern is None or pattern in name or fnmatch.fnmatch(name, pattern)
