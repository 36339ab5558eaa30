"""Figures of a report: what was drawn, and what could not be."""

from collections.abc import Sequence
from pathlib import Path

from ..reporting.figures import Drawn, walk
from ..storage.records import Record
from .console import say, say_error


def draw(found: Sequence[tuple[Path, Record]], folder: Path, *, quiet: bool) -> bool:
    """Draw everything these records allow; whether all their files could be read."""
    is_whole = True
    for part in walk(found, folder):
        if isinstance(part, Drawn):
            say(f"drew {part}", quiet=quiet)
        elif part.skipped:
            say_error(f"not drawn: {part.text}", part.hint)
            is_whole = False
        else:
            say(part.text, quiet=quiet, warns=True)
    return is_whole
