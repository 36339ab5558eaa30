"""How every figure looks, and how it is written: the same records give the same bytes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib.style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ...storage.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 7.2
"""Inches: a page's text."""
INK, FAINT = "#222222", "#777777"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, told apart by colour-blind readers; without yellow, which is lost on white."""
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.6)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)), (0, (3, 1.2, 1.2, 1.2, 1.2, 1.2)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")
SPACING = 0.17
"""Between two marks of a line, as a share of the panel's diagonal."""
FEW = 4
"""More bands than these are drawn fainter."""
RIGHT, WRONG = "#9CCBE8", "#D55E00"
SHADES = ("#C6DDED", "#5C9DC9", "#123F63")
"""From light to dark: A_nat, A_rob, A_sa. Any printer keeps their order."""

SETTINGS: dict[str, Any] = {
    "font.family": ["STIXGeneral", "DejaVu Sans"],  # both come with matplotlib: every machine draws the same letters
    "mathtext.fontset": "stix",
    "font.size": 9.0,
    "axes.titlesize": 9.0,
    "axes.labelsize": 9.0,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "legend.fontsize": 8.5,
    "figure.titlesize": 9.0,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "xtick.major.size": 3.0,
    "ytick.major.size": 3.0,
    "xtick.minor.size": 1.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.grid.axis": "y",
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.3,
    "lines.markersize": 4.0,
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
    "legend.handlelength": 3.0,
    "figure.constrained_layout.h_pad": 0.05,
    "svg.hashsalt": "wmr",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
    "savefig.dpi": 200,
}
TIMELESS = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""Formats with the facts of the moment left out."""


@dataclass(frozen=True)
class Look:
    """By what the n-th model is known in every figure. The cycles differ in length: no two of 280 models look the same."""

    number: int

    @property
    def colour(self) -> str:
        return COLOURS[self.number % len(COLOURS)]

    @property
    def marker(self) -> str:
        return MARKERS[self.number % len(MARKERS)]

    @property
    def line(self) -> dict[str, Any]:
        return {"color": self.colour, "linestyle": DASHES[self.number % len(DASHES)]}

    @property
    def marked(self) -> dict[str, Any]:
        """A long line with few small marks, neighbours at other places: more models than dashes are told apart in grey."""
        sparse = (0.02 + SPACING * (self.number % len(DASHES)) / len(DASHES), SPACING)
        return {**self.line, "marker": self.marker, "markersize": 3.2, "markevery": sparse}

    @property
    def thin(self) -> dict[str, Any]:
        """One seed of several, behind their mean."""
        return {"color": self.colour, "linewidth": 0.5, "alpha": 0.6, "zorder": 1.5}

    @property
    def point(self) -> dict[str, Any]:
        """A rim of white keeps points apart that lie on each other."""
        rim = {"markersize": 5.5, "markeredgecolor": "white", "markeredgewidth": 0.6}
        return {"color": self.colour, "marker": self.marker, "linestyle": "", **rim}


@contextmanager
def styled() -> Iterator[None]:
    """Our look inside, whatever the user's matplotlibrc says; theirs again on the way out."""
    with matplotlib.style.context(["default", SETTINGS]):
        yield


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of this many inches, laid out by itself and without a screen."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """As PNG, SVG and PDF, laid out once for all three."""
    files = [folder / f"{name}.{kind}" for kind in TIMELESS]
    for file, (kind, metadata) in zip(files, TIMELESS.items(), strict=True):
        write_atomically(file, partial(figure.savefig, format=kind, metadata=metadata))
        figure.set_layout_engine("none")  # it has its place now
    return files


def opacity(count: int) -> float:
    """Of the bands of so many models: many lie on each other."""
    return 0.16 * min(1.0, FEW / count)


def blank(axes: "Axes") -> None:
    """A place in the grid that nothing fills."""
    axes.set_axis_off()
