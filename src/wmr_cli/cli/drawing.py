"""Figures of a report: what was drawn, and what could not be."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from ..reporting.figures import Drawn, walk, walk_paper
from ..storage.records import Record
from .console import say, say_error


def draw(found: Sequence[tuple[Path, Record]], folder: Path, *, with_paper: bool, quiet: bool) -> bool:
    """Draw everything these records allow, and the paper's figures if asked; whether all files could be read."""
    is_whole = True
    for part in chain(walk(found, folder), walk_paper(folder) if with_paper else ()):
        if isinstance(part, Drawn):
            say(f"drew {part}", quiet=quiet)
        elif part.skipped:
            say_error(f"not drawn: {part.text}", part.hint)
            is_whole = False
        else:
            say(part.text, quiet=quiet, warns=True)
    return is_whole
