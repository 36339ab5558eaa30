"""Figures of records, drawn by matplotlib without a display.

Importing this package does not import matplotlib.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...storage.atomic import write_atomically
from ...storage.records import Record
from .look import PAPER_WIDTHS, USUAL_LOOK, FigureLook

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .data import FigureData, SkippedFigure
    from .layout import FigureOrSkip, NamedFigure

__all__ = [
    "PAPER_WIDTHS",
    "USUAL_LOOK",
    "FigureFiles",
    "FigureLook",
    "attack_grid",
    "draw_figures",
    "draw_paper_figures",
    "write_figures",
]

Array = NDArray[Any]

MAX_NAME_LENGTH = 80
# characters on a line above an image of a grid
GRID_TITLE_WIDTH = 24


@dataclass(frozen=True)
class FigureFiles:
    """The files that a figure was written to."""

    files: list[Path]

    def __str__(self) -> str:
        """Return `figures/curves-digits.png, .svg, .pdf`."""
        return ", ".join([str(self.files[0]), *(file.suffix for file in self.files[1:])])


def write_figures(found: Sequence[tuple[Path, Record]], folder: Path) -> list[Path]:
    """Write every figure that these records allow; return the files.

    `found` holds each record with its file, which has its rows beside it.
    """
    drawn = draw_figures(found, folder)
    return [file for part in drawn if isinstance(part, FigureFiles) for file in part.files]


def draw_figures(
    found: Sequence[tuple[Path, Record]],
    folder: Path,
    kinds: Sequence[str] = (),
    *,
    known: Sequence[Record] = (),
    look: FigureLook = USUAL_LOOK,
) -> "Iterator[FigureFiles | SkippedFigure]":
    """Write the figures one by one, and yield also what had to be skipped.

    `kinds` limits them to some of `curves`, `radii`, `critical-eps`, `worst-case`, `weights`,
    `margins`, `classes` and `training`. `known` are further records, which identify the attacks
    behind a worst case.
    """
    from .data import SkippedFigure, load_figure_data

    data = load_figure_data(found, known, look)
    yield from data.skipped
    taken: set[str] = set()
    makers = _figure_makers()
    for kind in kinds or makers:
        for part in _with_style(makers[kind](data)):
            if isinstance(part, SkippedFigure):
                yield part
            else:
                yield _write(part, folder, unique_file_name(part.name, taken))


def render_svgs(found: Sequence[tuple[Path, Record]], kinds: Sequence[str]) -> list[bytes]:
    """Return figures of these kinds as SVG, without writing files."""
    from .data import SkippedFigure, load_figure_data
    from .style import figure_style, to_svg

    data = load_figure_data(found)
    makers = _figure_makers()
    svgs = []
    for kind in kinds:
        for part in _with_style(makers[kind](data)):
            if not isinstance(part, SkippedFigure):
                with figure_style():
                    svgs.append(to_svg(part.figure))
    return svgs


def draw_paper_figures(
    folder: Path,
    look: FigureLook = USUAL_LOOK,
) -> Iterator[FigureFiles]:
    """Write the paper's own figures."""
    from .layout import NamedFigure
    from .paper import paper_figures

    for figure in _with_style(paper_figures(look)):
        assert isinstance(figure, NamedFigure)
        yield _write(figure, folder, figure.name)


def unique_file_name(name: str, taken: set[str]) -> str:
    """Return a name that is safe in any file system and not in `taken`; add it there."""
    plain = re.sub(r"[^\w.+-]+", "_", name)[:MAX_NAME_LENGTH]
    # different attacks may give the same short name
    unique = plain
    number = 1
    while unique in taken:
        number += 1
        unique = f"{plain}-{number}"
    taken.add(unique)
    return unique


def _figure_makers() -> "dict[str, Callable[[FigureData], Iterator[FigureOrSkip]]]":
    from . import alpha_curves, classes, distributions, dro, radii, training

    return {
        "curves": alpha_curves.make_figures,
        "radii": radii.make_figures,
        "critical-eps": radii.make_histograms,
        "worst-case": dro.make_figures,
        "weights": distributions.make_weight_figures,
        "margins": distributions.make_margin_figures,
        "classes": classes.make_figures,
        "training": training.make_figures,
    }


def _with_style(figures: "Iterator[FigureOrSkip]") -> "Iterator[FigureOrSkip]":
    """Advance the iterator inside our style.

    The style is left before each `yield`: the caller's own settings hold between figures.
    """
    from .style import figure_style

    while True:
        with figure_style():
            figure = next(figures, None)
        if figure is None:
            return
        yield figure


def _write(figure: "NamedFigure", folder: Path, name: str) -> FigureFiles:
    from .style import figure_style, save_figure

    with figure_style():
        return FigureFiles(save_figure(figure.figure, folder, name))


def attack_grid(
    path: Path,
    clean: Array,
    images: Array,
    label: Array,
    predicted_clean: Array,
    predicted: Array,
    *,
    class_names: Sequence[str] | None = None,
) -> None:
    """Write one row per image: clean, magnified perturbation, adversarial, with predictions.

    Images are (N, C, H, W) in [0, 1]. Classes without names are numbers.
    """
    # imported here: only the command that draws a grid needs matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    def name(number: int) -> str:
        return str(number) if class_names is None else class_names[number]

    # two names do not fit side by side
    separator = ", " if class_names is None else ",\n"
    count = len(label)
    figure = Figure(figsize=(6, 1.9 * count + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(count, 3, squeeze=False)
    # one scale for all rows, so that perturbations can be compared; 1 if nothing changed
    largest_change = float(np.abs(images - clean).max()) or 1.0
    for row, (left, middle, right) in enumerate(grid):
        # grey means unchanged; the largest change of the batch reaches black or white
        change = 0.5 + (images[row] - clean[row]) / (2 * largest_change)
        title = f"label {name(label[row])}{separator}predicted {name(predicted_clean[row])}"
        _show_image(left, clean[row], title)
        _show_image(middle, change, f"change x {0.5 / largest_change:.3g}")
        is_wrong = bool(predicted[row] != label[row])
        _show_image(right, images[row], f"predicted {name(predicted[row])}", is_bold=is_wrong)
    suffix = path.suffix.lstrip(".") or "png"
    write_atomically(path, lambda temporary: figure.savefig(temporary, format=suffix, dpi=120))


def _show_image(axes: "Axes", image: Array, title: str, *, is_bold: bool = False) -> None:
    """Show (C, H, W) in grey or colour."""
    from .style import wrap_text

    if len(image) == 3:
        axes.imshow(np.moveaxis(image, 0, -1).clip(0, 1), interpolation="nearest")
    else:
        axes.imshow(image[0], cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.set_axis_off()
    lines = [wrap_text(line, GRID_TITLE_WIDTH) for line in title.split("\n")]
    axes.set_title("\n".join(lines), fontsize=9, fontweight="bold" if is_bold else "normal")
