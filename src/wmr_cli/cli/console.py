"""Results go to stdout, everything else to stderr. User text is made one plain line before rich sees it."""

import json
import os
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..reporting.tables.escaping import printable
from .flag_names import spell_flags

WIDE = 10_000
"""Off a terminal nothing is cut or wrapped."""


LONGEST = 2_000
"""Characters of an error or hint. A longer one, from a huge argument or file, loses its middle."""


class Terminated(SystemExit):
    """The program was asked to end (SIGTERM); on the way out everything is put back."""


def results() -> Console:
    """Where results are drawn."""
    console = Console(highlight=False, emoji=False)
    return console if console.is_terminal else Console(highlight=False, emoji=False, width=WIDE)


def messages(quiet: bool = False) -> Console:
    """Where progress and messages are drawn. Of several processes at one command only the first speaks."""
    quiet = quiet or not is_first()
    console = Console(stderr=True, highlight=False, emoji=False, quiet=quiet)
    return (
        console
        if console.is_terminal
        else Console(stderr=True, highlight=False, emoji=False, quiet=quiet, width=WIDE)
    )


def is_first() -> bool:
    """Whether this is the first of all processes that run the command, whoever started them."""
    # errors are printed through here, so a malformed number must not raise another one
    is_task = (
        os.environ.get("SLURM_NTASKS", "1") not in ("", "0", "1") and "SLURM_STEP_ID" in os.environ
    )
    names = (
        "LOCAL_RANK",
        "RANK",
        "NODE_RANK",
        "GROUP_RANK",
        *(["SLURM_PROCID"] if is_task else []),
    )
    return all(os.environ.get(name, "0") == "0" for name in names)


def say(text: str, *, quiet: bool = False, warns: bool = False) -> None:
    """One line for the user."""
    mark = "[yellow]warning:[/] " if warns else ""
    messages(quiet).print(mark + as_line(spell_flags(text)), soft_wrap=True)


def say_error(text: str, hint: str = "") -> None:
    """One red line, and a hint."""
    console = messages()
    console.print(f"[bold red]error:[/] {as_line(shortened(spell_flags(text)))}", soft_wrap=True)
    if hint:
        console.print(f"[dim]hint:[/] {as_line(shortened(spell_flags(hint)))}", soft_wrap=True)


def shortened(text: str) -> str:
    """Return text without its middle where it is longer than an error should be."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 400]} … {text[-400:]}"


def as_line(text: str) -> str:
    """Text for rich that is nothing but text: one line, no markup, and no character that steers a terminal."""
    return escape(printable(text))


def width() -> int | None:
    """How wide a table may be; None where nothing limits it."""
    console = Console()
    return console.width if console.is_terminal else None


def show(table: Table) -> None:
    """A table on stdout."""
    results().print(table)


def write(text: str) -> None:
    """Text as it is: no markup, no wrapping, no colour."""
    print(text, end="" if text.endswith("\n") else "\n")


def write_json(value: Any) -> None:
    """Nothing but JSON."""
    write(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False))
