"""Style and labels of all figures, and writing them so that equal records give equal bytes."""

import functools
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.style
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ...measures import MARGIN_KERNEL
from ...spec import Spec, format_number
from ...storage.atomic import write_atomically
from ...storage.records import Record
from ..rows import ReportRow, row_name

A_NAT = r"$A_\mathrm{nat}$"
A_ROB = r"$A_\mathrm{rob}$"
A_SA = r"$A_\mathrm{sa}$"
A_TR = r"$A_\mathrm{tr}$"
ALPHA_TEST = r"$\alpha_\mathrm{test}$"
ALPHA_TRAIN = r"$\alpha_\mathrm{train}$"
EPS = r"$\varepsilon$"
RHO = r"$\rho$"
NORM_SYMBOLS = {"linf": r"$L_\infty$", "l2": "$L_2$"}
# characters of a label on one line
LABEL_WIDTH = 52


INK = "#222222"
FAINT = "#777777"

# the palette of Okabe and Ito for colour-blind readers, without yellow: it is invisible on white
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.6)),
    (0, (1.2, 1.2)),
    (0, (6, 1.5, 1.2, 1.5)),
    (0, (3, 1.2, 1.2, 1.2, 1.2, 1.2)),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")
# distance between two markers of a line, as a fraction of the panel's diagonal
MARKER_SPACING = 0.17

BAND_OPACITY = 0.16
# with more bands than this in a panel, each is drawn fainter
MAX_OPAQUE_BANDS = 4

CORRECT_COLOUR = "#9CCBE8"
WRONG_COLOUR = "#D55E00"
# for A_nat, A_rob, A_sa: light to dark, so that the order survives printing in grey
ACCURACY_SHADES = ("#C6DDED", "#5C9DC9", "#123F63")

RC_PARAMS: dict[str, Any] = {
    # both fonts come with matplotlib, so that every machine draws the same letters
    "font.family": ["STIXGeneral", "DejaVu Sans"],
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

# without dates and versions, so that the same figure gives the same bytes
FORMATS = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}


@dataclass(frozen=True)
class LineStyle:
    """Colour, dashes and marker of the n-th model in every figure.

    The three cycles have lengths without a common factor: the first 280 models all differ.
    """

    number: int

    @property
    def colour(self) -> str:
        return COLOURS[self.number % len(COLOURS)]

    @property
    def marker(self) -> str:
        return MARKERS[self.number % len(MARKERS)]

    @property
    def line(self) -> dict[str, Any]:
        """A line without markers, as arguments of `plot`."""
        return {"color": self.colour, "linestyle": DASHES[self.number % len(DASHES)]}

    @property
    def sparse_markers(self) -> dict[str, Any]:
        """A long line with a few small markers, as arguments of `plot`."""
        # markers of neighbouring lines start at different places, so that they do not overlap
        offset = 0.02 + MARKER_SPACING * (self.number % len(DASHES)) / len(DASHES)
        return {
            **self.line,
            "marker": self.marker,
            "markersize": 3.2,
            "markevery": (offset, MARKER_SPACING),
        }

    @property
    def seed_line(self) -> dict[str, Any]:
        """A thin line for one seed, behind the mean over seeds."""
        return {"color": self.colour, "linewidth": 0.5, "alpha": 0.6, "zorder": 1.5}

    @property
    def point(self) -> dict[str, Any]:
        """A single point with a white rim, which separates overlapping points."""
        return {
            "color": self.colour,
            "marker": self.marker,
            "linestyle": "",
            "markersize": 5.5,
            "markeredgecolor": "white",
            "markeredgewidth": 0.6,
        }


@contextmanager
def figure_style() -> Iterator[None]:
    """Apply our style, whatever the user's matplotlibrc says; restore theirs afterwards."""
    with matplotlib.style.context(["default", RC_PARAMS]):
        yield


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches. It needs no display."""
    # not pyplot, which keeps figures alive and may open windows
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write PNG, SVG and PDF; return the files."""
    files = []
    for suffix, metadata in FORMATS.items():
        file = folder / f"{name}.{suffix}"
        write_atomically(file, functools.partial(figure.savefig, format=suffix, metadata=metadata))
        figure.set_layout_engine("none")  # the first format fixes the layout for all three
        files.append(file)
    return files


def to_svg(figure: Figure) -> bytes:
    """Return the figure as SVG."""
    stream = io.BytesIO()
    figure.savefig(stream, format="svg", metadata=FORMATS["svg"])
    return stream.getvalue()


def band_opacity(count: int) -> float:
    """Return the opacity of each of `count` overlapping bands."""
    return BAND_OPACITY * min(1.0, MAX_OPAQUE_BANDS / count)


def hide_axes(axes: Axes) -> None:
    """Leave a place of the grid empty."""
    axes.set_axis_off()


def escape_text(text: str) -> str:
    """Escape user text: a dollar does not start a formula, unprintable characters become codes."""
    return _escape_dollars(_printable(text))


def wrap_text(text: str, width: int = LABEL_WIDTH) -> str:
    """Escape user text and break it into lines, after punctuation where possible."""
    rest = _printable(text)
    lines = []
    while len(rest) > width:
        separators = [place for place in range(width // 2, width) if rest[place] in " ,;"]
        # not at a dot, which may be that of a number
        others = [
            place
            for place in range(2 * width // 3, width)
            if not rest[place].isalnum() and rest[place] != "."
        ]
        cut = (separators or others or [width - 1])[-1] + 1
        lines.append(rest[:cut])
        rest = rest[cut:]
    lines.append(rest)
    return "\n".join(_escape_dollars(line) for line in lines)


def _escape_dollars(text: str) -> str:
    return text.replace("$", r"\$")


def _printable(text: str) -> str:
    """Replace characters that are invisible or missing in our fonts by their codes."""
    return "".join(
        char
        if char.isprintable() and ord(char) in _available_glyphs()
        else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


@functools.cache
def _available_glyphs() -> frozenset[int]:
    # a missing glyph would be drawn as an empty box
    fonts = [
        font_manager.get_font(font_manager.findfont(name)) for name in RC_PARAMS["font.family"]
    ]
    return frozenset(code for font in fonts for code in font.get_charmap())


def threat_label(norm: str, eps: float) -> str:
    """Return the ε-ball as a formula: norm and radius."""
    symbol = NORM_SYMBOLS.get(norm) or escape_text(norm)
    return f"{symbol} {EPS} = {format_number(eps)}"


def label_models(trainings: Sequence[Sequence[Record]]) -> list[str]:
    """Label every training by the shortest description that distinguishes all of them.

    `trainings` holds the records of each, one per seed. The order of preference is defense and
    alpha, full defense and alpha, run name, checkpoint path.
    """
    for describe in (_by_short_defense, _by_full_defense, _by_run, _by_path):
        labels = [describe(records) for records in trainings]
        if len(set(labels)) == len(labels):
            return labels
    first_checkpoints = [records[0].checkpoint for records in trainings]
    return [
        wrap_text(f"{checkpoint.path} {checkpoint.sha256[:8]}") for checkpoint in first_checkpoints
    ]


def _by_short_defense(records: Sequence[Record]) -> str:
    return _describe_training(Spec.parse(records[0].checkpoint.defense).short, records[0])


def _by_full_defense(records: Sequence[Record]) -> str:
    return _describe_training(records[0].checkpoint.defense, records[0])


def _by_run(records: Sequence[Record]) -> str:
    return wrap_text(row_name(ReportRow(tuple(records), None)))


def _by_path(records: Sequence[Record]) -> str:
    return wrap_text(records[0].checkpoint.path)


def _describe_training(defense: str, record: Record) -> str:
    checkpoint = record.checkpoint
    kernel = "" if checkpoint.kernel == MARGIN_KERNEL else f" {checkpoint.kernel}"
    name = wrap_text(defense + kernel)
    if checkpoint.alpha_train is None:
        return name
    return f"{name}, {ALPHA_TRAIN} = {format_number(checkpoint.alpha_train)}"
