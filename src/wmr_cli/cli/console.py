"""The terminal: results on stdout, everything else on stderr.

Text of users is reduced to one plain line before rich prints it.
"""

import json
import os
import sys
from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..reporting.tables.escaping import printable
from .flags import spell_flags

UNLIMITED_WIDTH = 10_000
"""Columns of output that is not a terminal: tables are neither cut nor wrapped."""
MAX_MESSAGE_LENGTH = 2_000
"""Characters of an error or hint. A longer one, from a huge argument or file, loses its middle."""
MESSAGE_TAIL_LENGTH = 400
"""Characters that remain of the end of a message that is too long."""
SHOW_CURSOR = "\x1b[?25h"
RANK_VARIABLES = ("LOCAL_RANK", "RANK", "NODE_RANK", "GROUP_RANK")


class Terminated(SystemExit):
    """The process received SIGTERM, SIGUSR1 or SIGUSR2; the state is saved on the way out."""


def results() -> Console:
    """Return the console for results."""
    # highlighting would colour numbers, and emoji codes such as ":x:" occur in specs
    console = Console(highlight=False, emoji=False)
    if console.is_terminal:
        return console
    return Console(highlight=False, emoji=False, width=UNLIMITED_WIDTH)


def messages(quiet: bool = False, *, on_any_rank: bool = False) -> Console:
    """Return the console for progress and messages, which only rank 0 prints by default."""
    quiet = quiet or not (on_any_rank or is_first())
    console = Console(stderr=True, highlight=False, emoji=False, quiet=quiet)
    if console.is_terminal:
        return console
    return Console(stderr=True, highlight=False, emoji=False, quiet=quiet, width=UNLIMITED_WIDTH)


def is_first() -> bool:
    """Return whether this is rank 0, by the variables that torchrun, Slurm and Fabric set."""
    # errors are printed through here, so a malformed number must not raise another one
    names = list(RANK_VARIABLES)
    has_tasks = os.environ.get("SLURM_NTASKS", "1") not in ("", "0", "1")
    # SLURM_PROCID is also set inside `salloc`, where there is only one process
    if has_tasks and "SLURM_STEP_ID" in os.environ:
        names.append("SLURM_PROCID")
    return all(os.environ.get(name, "0") == "0" for name in names)


def say(text: str, *, quiet: bool = False, is_warning: bool = False) -> None:
    """Print one line for the user on stderr."""
    mark = "[yellow]warning:[/] " if is_warning else ""
    messages(quiet).print(mark + as_line(spell_flags(text)), soft_wrap=True)


def leave_progress_bar() -> None:
    """Begin a new line of the terminal with a cursor, which a progress bar hides."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\n{SHOW_CURSOR}")


def say_error(text: str, hint: str = "", *, on_any_rank: bool = False) -> None:
    """Print an error in red, and a hint."""
    console = messages(on_any_rank=on_any_rank)
    console.print(f"[bold red]error:[/] {as_line(shorten(spell_flags(text)))}", soft_wrap=True)
    if hint:
        console.print(f"[dim]hint:[/] {as_line(shorten(spell_flags(hint)))}", soft_wrap=True)


def shorten(text: str) -> str:
    """Return text without its middle if it is too long for a message."""
    if len(text) <= MAX_MESSAGE_LENGTH:
        return text
    head = text[: MAX_MESSAGE_LENGTH - MESSAGE_TAIL_LENGTH]
    return f"{head} … {text[-MESSAGE_TAIL_LENGTH:]}"


def as_line(text: str) -> str:
    """Return text for rich as one line without markup and control characters."""
    return escape(printable(text))


def width() -> int | None:
    """Return the columns of the terminal, or None if stdout is not a terminal."""
    console = Console()
    return console.width if console.is_terminal else None


def show(table: Table) -> None:
    """Print a table on stdout."""
    results().print(table)


def make_fact_table(facts: Mapping[str, str]) -> Table:
    """Return a table without borders, with one name and fact per line."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, fact in facts.items():
        table.add_row(f"[bold]{as_line(name)}[/]", as_line(fact))
    return table


def write(text: str) -> None:
    """Print plain text on stdout, without markup, wrapping and colour."""
    # not rich: it wraps lines and interprets brackets
    print(text, end="" if text.endswith("\n") else "\n")


def write_json(value: object) -> None:
    """Print a value as JSON on stdout."""
    # NaN is not JSON: other programs could not read it
    write(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False))


def format_duration(seconds: float) -> str:
    """Return `42 s`, `3.5 min` or `12.3 h`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"
