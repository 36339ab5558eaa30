"""Draw the figures of the pages from a small study on the embedded digits.

Usage: `python docs/draw.py`. It takes some minutes. With `--stored` it draws only the figures of
results in `studies`, in seconds. `page.png` is a screenshot of a browser, taken
by hand. `badges.py` draws the badges.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from PIL import Image

import published
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
from wmr_cli.spec import Spec
from wmr_cli.storage import records
from wmr_cli.storage.records import Record, Rows

PICTURES = Path(__file__).parent / "images"
ALPHA_STUDY = Path(__file__).parents[1] / "studies" / "digits_alpha.json"
RUNS = tuple(f"runs/digits-{run}-s0" for run in ("pgd-a0", "trades-a0", "trades-a2"))
SHOWN_RUN = RUNS[-1]
EPS = 0.15
STUDY = (
    ("train", "--defense", "pgd", "--alpha", "0"),
    ("train", "--alpha", "0"),
    ("train",),  # the first command of the README
    ("evaluate", *RUNS, "--eps", "0.1", "--eps", str(EPS)),
    ("report", "--figures", "figures"),
    ("attack", SHOWN_RUN, "--limit", "2", "--grid", "figures/attack-digits.png"),
)
REPORT_FIGURES = ("curves-digits", "weights-digits-pgd-0.15", "training-digits", "attack-digits")
PALETTE_SIZE = 64  # enough for a drawing, with a third of the bytes
WIDTH = 5.6  # inches
MIN_POINTS = 8
"""Attacks of a network that has a panel in the figure of completeness."""
BOUNDS_COLOUR = "#EDEDED"
ALPHAS = np.linspace(0, 5, 101)
ACCURACY_NAMES = {
    "a_nat": A_NAT,
    "a_rob": A_ROB,
    "a_rob_worst": f"{A_ROB} under two attacks",
    "a_sa": f"{A_SA}(2)",
    "a_sa_calibrated": f"{A_SA}(2), calibrated",
}
"""Labels of the accuracies in `studies/digits_alpha.json`."""


def draw_weights_by_margin() -> Figure:
    """Draw the weight of the exponential kernel over the margin."""
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


def draw_weighted_margins(rows: Rows) -> Figure:
    """Draw the margins of a run under attack, unweighted and weighted."""
    margins = rows["uniform/margin"]
    correct = rows["uniform/prediction"] == rows["label"]
    kinds: tuple[tuple[str, np.ndarray, dict[str, Any]], ...] = (
        ("correct images", correct, {"facecolor": CORRECT_COLOUR}),
        ("misclassified images", ~correct, {"facecolor": WRONG_COLOUR, "hatch": "//////"}),
    )
    figure = make_figure(
        WIDTH,
        2.3,
        [{}],
        [(Patch(edgecolor="white", linewidth=0, **look), name) for name, _, look in kinds],
    )
    panels = figure.subplots(1, 2, sharey=True)
    sampling = ("all images attacked equally often", r"vulnerable images more often ($\alpha$ = 2)")
    for axes, alpha, name, how in zip(panels, (0.0, 2.0), (A_ROB, A_SA), sampling, strict=True):
        percent = 100 * normalized_weights(exponential_log_weights(margins, alpha))
        for _, chosen, look in kinds:
            axes.hist(
                margins[chosen],
                np.linspace(-1, 1, 21),
                weights=percent[chosen],
                **look,
                edgecolor="white",
                linewidth=0,
            )
        axes.set_title(f"{how}\n{name} = {percent[correct].sum():.0f} %")
        axes.axvline(0, color=FAINT, linewidth=0.6)
        _margin_axis(axes)
    panels[0].set_ylabel("attacks (%)")
    return figure


def draw_accuracy_by_alpha(record: Record, rows: Rows) -> Figure:
    """Draw A_rob, A_sa and A_tr over alpha, and the bounds that A_rob implies for A_sa."""
    found = [sampled_accuracy(rows, "exp", float(alpha)) for alpha in ALPHAS]
    value, low, high = (
        100 * np.array([getattr(one, part) for one in found]) for part in ("value", "low", "high")
    )
    # a weight is at most e^(2 alpha) times another one, which bounds the odds of A_sa
    odds = value[0] / (100 - value[0]) * np.exp(-2 * ALPHAS)
    sa = LineStyle(0)
    tr = LineStyle(1)
    points = [row for row in record.by_alpha if row.a_tr]
    entries = [
        legend_entry(sa, f"{A_SA} with its 95 % interval"),
        (Line2D([], [], **tr.point), A_TR),
        (Patch(facecolor=BOUNDS_COLOUR), f"bounds of {A_SA}"),
    ]
    figure = make_figure(WIDTH, 2.6, [{}], entries)
    axes = figure.subplots()
    axes.fill_between(ALPHAS, 100 * odds / (1 + odds), value[0], color=BOUNDS_COLOUR, linewidth=0)
    axes.axhline(value[0], color=FAINT, linewidth=0.8)
    axes.annotate(
        A_ROB, (ALPHAS[-1], value[0]), xytext=(0, 3), textcoords="offset points", ha="right"
    )
    axes.plot(ALPHAS, value, **sa.sparse_markers)
    axes.fill_between(ALPHAS, low, high, color=sa.colour, alpha=0.16, linewidth=0)
    axes.plot(
        [row.alpha_test for row in points if row.alpha_test is not None],
        [100 * row.a_tr.value for row in points if row.a_tr is not None],
        **tr.point,
    )
    _accuracy_axes(axes)
    return figure


def draw_temperature(rows: Rows) -> Figure:
    """Draw A_sa of one model with its logits divided by several temperatures."""
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


def draw_alpha_of_training() -> Figure:
    """Draw the results of `studies/digits_alpha.py`: accuracies and the ESS of the weights."""
    study = json.loads(ALPHA_STUDY.read_text(encoding="utf-8"))
    looks = {name: LineStyle(number) for number, name in enumerate(ACCURACY_NAMES)}
    entries = [legend_entry(look, ACCURACY_NAMES[name]) for name, look in looks.items()]
    note = (
        "points: mean over seeds; bars: standard deviation;"
        " ESS: effective sample size of the weights in training"
    )
    figure = make_figure(7.2, 3.6, [{}], entries, note)
    grid = figure.subplots(
        2, len(study), sharex="col", sharey="row", squeeze=False, height_ratios=[3, 1]
    )
    for column, (defense, by_alpha) in enumerate(study.items()):
        above = grid[0, column]
        below = grid[1, column]
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


def draw_completeness() -> Figure:
    """Draw the fraction of the vulnerable images that each attack finds, over its cost."""
    results = published.load_completeness()
    shown = {name: one for name, one in results.items() if len(one["attacks"]) > MIN_POINTS}
    families = list(
        dict.fromkeys(
            name_family(attack) for result in shown.values() for attack in result["attacks"]
        )
    )
    looks = {family: LineStyle(number) for number, family in enumerate(families)}
    entries = [legend_entry(look, family) for family, look in looks.items()]
    figure = make_figure(7.2, 3.0, [{}], entries)
    panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for axes, (name, result) in zip(panels, shown.items(), strict=True):
        for family, look in looks.items():
            points = sorted(
                (one["cost"], 100 * one["found"] / result["vulnerable"])
                for attack, one in result["attacks"].items()
                if name_family(attack) == family
            )
            if points:
                axes.semilogx(*zip(*points, strict=True), **look.line, marker=look.marker)
        axes.set_title(rf"{name}, $\varepsilon$ = {result['eps']:g}")
        axes.set_xlabel("time, relative to pgd:steps=40")
    panels[0].set_ylabel("vulnerable images found (%)")
    return figure


def name_family(attack: str) -> str:
    """Return the name of an attack, with its restarts where it has several."""
    spec = Spec.parse(attack)
    restarts = int(str(spec.params.get("restarts", 1)))
    return spec.name if restarts == 1 else f"{spec.name}, {restarts} restarts"


def _margin_axis(axes: Axes) -> None:
    axes.set_xlim(-1, 1)
    axes.set_xticks([-1, -0.5, 0, 0.5, 1], ["−1", "−0.5", "0", "0.5", "1"])
    axes.set_xlabel("margin")


def _accuracy_axes(axes: Axes) -> None:
    axes.set_xlim(0, ALPHAS[-1])
    axes.set_ylim(0, 100)
    axes.set_xlabel(ALPHA_TEST)
    axes.set_ylabel("accuracy (%)")


def run_wmr(folder: Path, *words: str) -> None:
    """Run a `wmr` command in a folder."""
    subprocess.run(
        [sys.executable, "-m", "wmr_cli", *words, "--quiet"],
        cwd=folder,
        check=True,
        stdout=subprocess.DEVNULL,
    )


def draw_all(folder: Path) -> Iterator[Path]:
    """Run the study in a folder, draw all figures there and yield their files."""
    for step in STUDY:
        run_wmr(folder, *step)
    yield from (folder / "figures" / f"{name}.png" for name in REPORT_FIGURES)
    ((file, record),) = [
        one for one in gather_records([folder / SHOWN_RUN]).found if one[1].threat.eps == EPS
    ]
    rows = records.load_record_rows(file, record)
    with figure_style():
        made = {
            "weights-by-margin": draw_weights_by_margin(),
            "weighted-margins": draw_weighted_margins(rows),
            "accuracy-by-alpha": draw_accuracy_by_alpha(record, rows),
            "temperature": draw_temperature(rows),
        }
        for name, figure in made.items():
            yield save_figure(figure, folder / "explained", name)[0]
    yield from draw_stored(folder)


def draw_stored(folder: Path) -> Iterator[Path]:
    """Draw the figures of stored results and yield their files."""
    with figure_style():
        made = {
            "alpha-of-training": draw_alpha_of_training(),
            "attack-completeness": draw_completeness(),
        }
        for name, figure in made.items():
            yield save_figure(figure, folder / "stored", name)[0]


def main() -> None:
    """Train, evaluate and draw in a temporary folder, and save the figures of the pages."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        draw = draw_stored if "--stored" in sys.argv[1:] else draw_all
        for file in draw(Path(folder)):
            figure = Image.open(file).convert("RGB")
            figure.quantize(PALETTE_SIZE, dither=Image.Dither.NONE).save(
                PICTURES / file.name, optimize=True
            )


if __name__ == "__main__":
    main()
