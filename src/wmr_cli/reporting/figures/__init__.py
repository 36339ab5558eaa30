"""Figures of records, drawn by matplotlib without a screen. Importing this imports none of it."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...storage.records import Record
from .grid import attack_grid

if TYPE_CHECKING:
    from .material import Undrawn

__all__ = ["Drawn", "attack_grid", "draw", "walk", "walk_paper"]


@dataclass(frozen=True)
class Drawn:
    """A figure and the files it was written to."""

    files: list[Path]

    def __str__(self) -> str:
        """`figures/curves-digits.png, .svg, .pdf`."""
        return ", ".join([str(self.files[0]), *(file.suffix for file in self.files[1:])])


def draw(found: Sequence[tuple[Path, Record]], folder: Path) -> list[Path]:
    """Every figure that these records, each with its file, allow; the files written."""
    return [file for part in walk(found, folder) if isinstance(part, Drawn) for file in part.files]


def walk(found: Sequence[tuple[Path, Record]], folder: Path, kinds: Sequence[str] = ()) -> "Iterator[Drawn | Undrawn]":
    """The same one by one, with what could not be drawn and why; of some kinds only where they are named."""
    from . import balls, classes, curves, margins, style, training, weights
    from .layout import Drawing
    from .material import gathered

    material = gathered(found)
    yield from material.left_out
    taken: set[str] = set()
    makers = {
        "curves": curves, "worst-case": balls, "weights": weights, "margins": margins, "classes": classes, "training": training,
    }  # fmt: skip
    for kind in kinds or makers:
        made = makers[kind].figures(material)
        while True:
            with style.styled():  # entered anew for each figure: whoever follows this walk has their own style
                part = next(made, None)
                if part is None:
                    break
                told = Drawn(style.save(part.figure, folder, untaken(part.name, taken))) if isinstance(part, Drawing) else part
            yield told


def walk_paper(folder: Path) -> Iterator[Drawn]:
    """The paper's own figures."""
    from .paper import pictures
    from .printed import redraw

    for name, picture in pictures():
        yield Drawn(redraw(picture, folder, name))


def untaken(name: str, taken: set[str]) -> str:
    """A name for files, safe in any file system and used once."""
    plain = re.sub(r"[^\w.+-]+", "_", name)[:80]
    number = 1
    while (unique := plain if number == 1 else f"{plain}-{number}") in taken:
        number += 1
    taken.add(unique)
    return unique
