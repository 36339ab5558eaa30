"""Draw the pictures of the pages anew, from a small study on the embedded data: `python docs/draw.py`. Some minutes.

`page.png` is taken by hand, from a browser; `screenshot.py` makes `terminal.svg`, `badges.py` the badges.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from PIL import Image

from wmr_cli.measures import (
    calibrated_accuracy,
    exponential_log_weights,
    normalized_weights,
    sampled_accuracy,
    tempered_accuracy,
)
from wmr_cli.reporting.figures.layout import legend_entry, make_figure
from wmr_cli.reporting.figures.style import (
    A_NAT,
    A_ROB,
    A_SA,
    A_TR,
    ALPHA_TEST,
    ALPHA_TRAIN,
    CORRECT_COLOUR,
    FAINT,
    WRONG_COLOUR,
    LineStyle,
    figure_style,
    save_figure,
)
from wmr_cli.reporting.report import gather_records
from wmr_cli.storage import records
from wmr_cli.storage.records import Record, Rows

PICTURES = Path(__file__).parent / "pictures"
ALPHA_STUDY = Path(__file__).parents[1] / "studies" / "digits_alpha.json"
RUNS = tuple(f"runs/digits-{run}-s0" for run in ("pgd-a0", "trades-a0", "trades-a2"))
FIRST_RUN, EPS = RUNS[-1], 0.15
STUDY = (
    ("train", "--defense", "pgd", "--alpha", "0", "--validate-every", "5"),
    *(("train", "--alpha", alpha, "--validate-every", "5") for alpha in ("0", "2")),
    ("evaluate", *RUNS, "--eps", "0.1", "--eps", str(EPS)),
    ("report", "--figures", "figures"),
    ("attack", FIRST_RUN, "--limit", "2", "--grid", "figures/attack-digits.png"),
)
SHOWN = ("curves-digits", "weights-digits-pgd-0.15", "training-digits", "attack-digits")
COLOURS = 64
"""Enough for a drawing, and a third of the bytes."""
WIDTH = 5.6
BETWEEN = "#EDEDED"
ALPHAS = np.linspace(0, 5, 101)
SHARES = {
    "a_nat": A_NAT,
    "a_rob": A_ROB,
    "a_rob_worst": f"{A_ROB} under two attacks",
    "a_sa": f"{A_SA}(2)",
    "a_sa_calibrated": f"{A_SA}(2), calibrated",
}
"""What the study of alpha measured, and how it is called."""


def weights_by_margin() -> Figure:
    """The kernel itself."""
    margins = np.linspace(-1, 1, 201)
    looks = {alpha: LineStyle(number) for number, alpha in enumerate((0, 0.5, 1, 2))}
    entries = [legend_entry(look, rf"$\alpha$ = {alpha:g}") for alpha, look in looks.items()]
    figure = make_figure(WIDTH, 2.4, [{}], entries)
    axes = figure.subplots()
    for alpha, look in looks.items():
        axes.semilogy(margins, np.exp(-alpha * margins), **look.sparse_markers)
    axes.set_yticks([0.2, 0.5, 1, 2, 5], ["0.2", "0.5", "1", "2", "5"])
    axes.minorticks_off()
    axes.set_ylabel(r"weight $\exp(-\alpha\cdot\mathrm{margin})$")
    _margin_axis(axes)
    return figure


def who_is_drawn(rows: Rows) -> Figure:
    """The margins of the first run under attack, as often as two attackers come upon them."""
    margins, right = rows["uniform/margin"], rows["uniform/prediction"] == rows["label"]
    kinds = (
        ("right images", right, {"facecolor": CORRECT_COLOUR}),
        ("wrong images", ~right, {"facecolor": WRONG_COLOUR, "hatch": "//////"}),
    )
    figure = make_figure(
        WIDTH,
        2.3,
        [{}],
        [(Patch(**look, edgecolor="white", linewidth=0), name) for name, _, look in kinds],
    )
    panels = figure.subplots(1, 2, sharey=True)
    for axes, alpha, name in zip(panels, (0.0, 2.0), (A_ROB, A_SA), strict=True):
        shares = 100 * normalized_weights(exponential_log_weights(margins, alpha))
        for _, chosen, look in kinds:
            axes.hist(
                margins[chosen],
                np.linspace(-1, 1, 21),
                weights=shares[chosen],
                **look,
                edgecolor="white",
                linewidth=0,
            )
        axes.set_title(rf"$\alpha$ = {alpha:g}: {name} = {shares[right].sum():.0f} %")
        axes.axvline(0, color=FAINT, linewidth=0.6)
        _margin_axis(axes)
    panels[0].set_ylabel("draws (%)")
    return figure


def accuracy_by_alpha(record: Record, rows: Rows) -> Figure:
    """A_rob, A_sa from it on downwards, A_tr where its attack was run, and where A_sa must lie."""
    found = [sampled_accuracy(rows, "exp", float(alpha)) for alpha in ALPHAS]
    value, low, high = (
        100 * np.array([getattr(one, part) for one in found]) for part in ("value", "low", "high")
    )
    odds = value[0] / (100 - value[0]) * np.exp(-2 * ALPHAS)
    sa, tr = LineStyle(0), LineStyle(1)
    points = [row for row in record.by_alpha if row.a_tr]
    entries = [
        legend_entry(sa, f"{A_SA} with its 95 % interval"),
        (Line2D([], [], **tr.point), A_TR),
        (Patch(facecolor=BETWEEN), f"where {A_SA} must lie"),
    ]
    figure = make_figure(WIDTH, 2.6, [{}], entries)
    axes = figure.subplots()
    axes.fill_between(ALPHAS, 100 * odds / (1 + odds), value[0], color=BETWEEN, linewidth=0)
    axes.axhline(value[0], color=FAINT, linewidth=0.8)
    axes.annotate(
        A_ROB, (ALPHAS[-1], value[0]), xytext=(0, 3), textcoords="offset points", ha="right"
    )
    axes.plot(ALPHAS, value, **sa.sparse_markers)
    axes.fill_between(ALPHAS, low, high, color=sa.colour, alpha=0.16, linewidth=0)
    axes.plot(
        [row.alpha_test for row in points],
        [100 * row.a_tr.value for row in points if row.a_tr],
        **tr.point,
    )
    _accuracy_axes(axes)
    return figure


def temperature(rows: Rows) -> Figure:
    """One network, and the same decisions, with its logits divided by T."""
    alphas = ALPHAS.tolist()
    lines = {
        f"logits divided by {scale:g}": [tempered_accuracy(rows, alpha, scale) for alpha in alphas]
        for scale in (0.5, 1, 2)
    }
    lines["calibrated, for any scale"] = [calibrated_accuracy(rows, alpha) for alpha in alphas]
    looks = {name: LineStyle(number) for number, name in enumerate(lines)}
    figure = make_figure(
        WIDTH, 2.4, [{}], [legend_entry(look, name) for name, look in looks.items()]
    )
    axes = figure.subplots()
    for name, found in lines.items():
        axes.plot(ALPHAS, [100 * one.value for one in found], **looks[name].sparse_markers)
    _accuracy_axes(axes)
    return figure


def alpha_of_training() -> Figure:
    """What `studies/digits_alpha.py` found: accuracies above, the health of the weights below."""
    study = json.loads(ALPHA_STUDY.read_text(encoding="utf-8"))
    looks = {name: LineStyle(number) for number, name in enumerate(SHARES)}
    entries = [legend_entry(look, SHARES[name]) for name, look in looks.items()]
    note = "points: mean over seeds; bars: standard deviation; ESS: effective sample size of the weights in training"
    figure = make_figure(7.2, 3.6, [{}], entries, note)
    grid = figure.subplots(
        2, len(study), sharex="col", sharey="row", squeeze=False, height_ratios=[3, 1]
    )
    for column, (defense, by_alpha) in enumerate(study.items()):
        above, below = grid[0, column], grid[1, column]
        places = range(len(by_alpha))
        for name, look in looks.items():
            means, spreads = (
                [100 * of(found[name]) for found in by_alpha.values()] for of in (fmean, stdev)
            )
            above.errorbar(places, means, spreads, **look.line, marker=look.marker, elinewidth=0.8)
        below.bar(
            places,
            [100 * fmean(found["weight_ess"]) for found in by_alpha.values()],
            0.5,
            color=CORRECT_COLOUR,
        )
        above.set_title(defense)
        below.set_xticks(places, by_alpha)
        below.set_xlabel(ALPHA_TRAIN)
        below.set_ylim(0, 100)
    grid[0, 0].set_ylabel("accuracy (%)")
    grid[1, 0].set_ylabel("ESS (%)")
    return figure


def _margin_axis(axes: Axes) -> None:
    axes.set_xlim(-1, 1)
    axes.set_xticks([-1, -0.5, 0, 0.5, 1], ["−1", "−0.5", "0", "0.5", "1"])
    axes.set_xlabel("margin")


def _accuracy_axes(axes: Axes) -> None:
    axes.set_xlim(0, ALPHAS[-1])
    axes.set_ylim(0, 100)
    axes.set_xlabel(ALPHA_TEST)
    axes.set_ylabel("accuracy (%)")


def wmr(folder: Path, *words: str) -> None:
    """A command in a folder of its own."""
    subprocess.run(
        [sys.executable, "-m", "wmr_cli", *words, "--quiet"],
        cwd=folder,
        check=True,
        stdout=subprocess.DEVNULL,
    )


def drawn(folder: Path) -> Iterator[Path]:
    """Every picture in full colour."""
    for step in STUDY:
        wmr(folder, *step)
    yield from (folder / "figures" / f"{name}.png" for name in SHOWN)
    ((file, record),) = [
        one for one in gather_records([folder / FIRST_RUN]).found if one[1].threat.eps == EPS
    ]
    rows = records.load_record_rows(file, record)
    with figure_style():
        made = {
            "weights-by-margin": weights_by_margin(),
            "who-is-drawn": who_is_drawn(rows),
            "accuracy-by-alpha": accuracy_by_alpha(record, rows),
            "temperature": temperature(rows),
            "alpha-of-training": alpha_of_training(),
        }
        for name, figure in made.items():
            yield save_figure(figure, folder / "explained", name)[0]


def main() -> None:
    """Train, evaluate and draw in a folder that is thrown away; keep the pictures that pages show."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for file in drawn(Path(folder)):
            picture = Image.open(file).convert("RGB")
            picture.quantize(COLOURS, dither=Image.Dither.NONE).save(
                PICTURES / file.name, optimize=True
            )


if __name__ == "__main__":
    main()
