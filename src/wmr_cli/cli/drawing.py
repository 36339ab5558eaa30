"""Draw the figures of a report and print what was drawn or skipped."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from ..reporting.figures import FigureFiles, draw_figures, draw_paper_figures
from ..storage.records import Record
from .console import say, say_error


def draw(
    found: Sequence[tuple[Path, Record]], folder: Path, *, with_paper: bool, quiet: bool
) -> bool:
    """Draw all figures that the records allow; return whether all their files could be read."""
    is_complete = True
    paper_figures = draw_paper_figures(folder) if with_paper else ()
    for part in chain(draw_figures(found, folder), paper_figures):
        if isinstance(part, FigureFiles):
            say(f"drew {part}", quiet=quiet)
        elif part.is_bad_file:
            say_error(f"not drawn: {part.text}", part.hint)
            is_complete = False
        else:
            say(part.text, quiet=quiet, warns=True)
    return is_complete
