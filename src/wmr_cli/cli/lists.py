"""wmr list and wmr schema: names of components, and JSON Schemas of files."""

import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from ..config import ListConfig
from ..errors import UnknownName, did_you_mean
from .console import say_error, show, write
from .flags import with_flags
from .installation import list_extras
from .setup import find_data_dir, load_components

if TYPE_CHECKING:
    from ..registry import Entry

KINDS = ("model", "dataset", "defense", "attack", "kernel", "verifier", "logger", "preset", "extra")
KIND_BY_PLURAL = {f"{kind}s": kind for kind in KINDS}
SCHEMAS = ("train", "study", "record")


@with_flags
def list_names(
    what: Annotated[
        str | None,
        typer.Argument(metavar="|".join(KIND_BY_PLURAL), help="Kind of names.", show_default="all"),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Argument(metavar="PATTERN", help="Part of a name, or a pattern such as 'pgd*'."),
    ] = None,
    *,
    config: ListConfig,
) -> None:
    """List models, datasets, defenses, attacks, kernels, verifiers, loggers, presets and extras."""
    if what is not None and what not in KIND_BY_PLURAL:
        raise UnknownName(f"{what!r} is an unknown kind", did_you_mean(what, KIND_BY_PLURAL))
    data_dir = find_data_dir(config.data_dir)
    shows_files = what == "datasets"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption_justify="left")
    for heading in ("kind", "name", "what it is", "from"):
        table.add_column(heading, overflow="fold")
    if shows_files:
        table.add_column("files", overflow="fold")
        table.caption = escape(f"files are in {data_dir}; missing ones are downloaded on first use")
    for kind, entry, owner in _list_entries(config.quiet):
        if what is not None and kind != KIND_BY_PLURAL[what]:
            continue
        if not _matches(entry.name, pattern):
            continue
        cells = [kind, entry.name, entry.summary, owner]
        if shows_files:
            cells.append(_describe_files(entry, data_dir))
        # plugins write names and summaries: brackets in them are not markup
        table.add_row(*map(escape, cells))
    if not table.row_count:
        command = f"wmr list {what}" if what else "wmr list"
        say_error(f"no name matches {pattern!r}", f"`{command}` without a pattern lists all names")
        raise typer.Exit(1)
    show(table)


def _list_entries(quiet: bool) -> "list[tuple[str, Entry, str]]":
    """Return kind, entry and owner of everything that has a name."""
    from .. import presets
    from ..registry import OWN_DISTRIBUTION, Entry

    # presets and extras belong to the package and are not in the registry
    found = [(kind, owned.entry, owned.owner) for kind, owned in load_components(quiet)]
    for name in presets.names():
        summary = str(presets.load(name).get("summary", ""))
        found.append(("preset", Entry(name, "", summary), OWN_DISTRIBUTION))
    for extra in list_extras():
        summary = f"{extra.purpose} (installed)"
        if extra.missing:
            summary = f"{extra.purpose} (missing: {extra.install_command})"
        found.append(("extra", Entry(extra.name, "", summary), OWN_DISTRIBUTION))
    return found


def schema(
    what: Annotated[
        str, typer.Argument(metavar="|".join(SCHEMAS), help="Kind of file.", show_default=False)
    ],
) -> None:
    """Print the JSON Schema of config files, study files or records, for editors and checks."""
    import msgspec

    if what not in SCHEMAS:
        raise UnknownName(f"{what!r} has no schema", hint=did_you_mean(what, SCHEMAS))
    content = msgspec.json.encode(_make_schema(what))
    write(msgspec.json.format(content, indent=2).decode())


def _make_schema(what: str) -> dict[str, Any]:
    from .. import config
    from ..storage import records
    from ..sweeps import study

    if what == "train":
        return config.make_schema()
    if what == "study":
        return study.make_schema()
    return records.make_schema()


def _describe_files(entry: "Entry", data_dir: Path) -> str:
    """Describe how many files of a dataset are on the disk; `-` if it needs none."""
    if not entry.files:
        return "-"
    present = sum((data_dir / file).exists() for file in entry.files)
    if present == len(entry.files):
        return "present"
    return f"{present} of {len(entry.files)}" if present else "missing"


def _matches(name: str, pattern: str | None) -> bool:
    # a part of a name is enough, so that `wmr list models resnet` needs no stars
    return pattern is None or pattern in name or fnmatch.fnmatch(name, pattern)
