"""Widths and headings of figures, shared axes, and panels that would show a single point."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes

from support import synthetic
from support.cli_runner import wmr
from wmr_cli.config import EvaluateConfig
from wmr_cli.reporting.figures import alpha_curves, classes, distributions, dro, radii
from wmr_cli.reporting.figures.data import SkippedFigure, load_figure_data
from wmr_cli.reporting.figures.layout import FigureOrSkip, NamedFigure, split_single_points
from wmr_cli.reporting.figures.look import PAPER_WIDTHS, USUAL_LOOK, FigureLook
from wmr_cli.reporting.figures.paper import paper_figures
from wmr_cli.reporting.figures.style import figure_style
from wmr_cli.storage.records import Record

MAKERS = (
    alpha_curves.make_figures,
    radii.make_figures,
    radii.make_histograms,
    dro.make_figures,
    distributions.make_weight_figures,
    distributions.make_margin_figures,
    classes.make_figures,
)
LOOKS = [FigureLook(width, has_heading=width < 5) for width in PAPER_WIDTHS.values()]


@pytest.fixture
def found(tmp_path: Path) -> list[tuple[Path, Record]]:
    """Two models at two radii, at which their accuracies differ much."""
    return save_records(tmp_path, skills=(2.0, -1.0))


def save_records(tmp_path: Path, skills: tuple[float, float]) -> list[tuple[Path, Record]]:
    made = []
    for eps, skill in zip((0.1, 0.2), skills, strict=True):
        for number in range(2):
            rows = synthetic.make_rows(60, skill=skill + number, classes=4)
            record = synthetic.make_record(
                rows,
                f"run{number}",
                eps=eps,
                evaluation=synthetic.WITH_DRO,
                alpha_train=float(number),
            )
            made.append(synthetic.save_record(tmp_path / "evaluations", record, rows))
    return made


def draw(found: list[tuple[Path, Record]], look: FigureLook = USUAL_LOOK) -> list[FigureOrSkip]:
    with figure_style():
        data = load_figure_data(found, look=look)
        return [part for maker in MAKERS for part in maker(data)]


def visible_axes(figure: NamedFigure) -> list[Axes]:
    return [axes for axes in figure.figure.axes if axes.axison]


@pytest.mark.parametrize("look", LOOKS, ids=list(PAPER_WIDTHS))
def test_figures_have_the_chosen_width_and_heading(
    found: list[tuple[Path, Record]], look: FigureLook
) -> None:
    figures = [part for part in draw(found, look) if isinstance(part, NamedFigure)]
    with figure_style():
        figures += paper_figures(look)
    assert len(figures) >= len(MAKERS)
    for one in figures:
        assert one.figure.get_figwidth() == look.width
        assert bool(one.figure.get_suptitle()) == look.has_heading
        one.figure.canvas.draw()
        for text in one.figure.texts:
            lines = text.get_window_extent()
            assert (lines.x0 >= 0, lines.x1 <= one.figure.bbox.width) == (True, True), text
        for axes in visible_axes(one):
            # wide enough for tick labels, and inside the figure
            box = axes.get_position()
            assert box.width * look.width > 0.8
            assert (box.x0 > 0, box.x1 <= 1) == (True, True)


def test_panels_on_several_pages_keep_what_distinguishes_them(
    found: list[tuple[Path, Record]],
) -> None:
    narrow = FigureLook(PAPER_WIDTHS["single"], has_heading=False)
    pages = [part for part in draw(found, narrow) if "worst-case" in getattr(part, "name", "")]
    titles = [
        axes.get_title(loc="left")
        for page in pages
        if isinstance(page, NamedFigure)
        for axes in visible_axes(page)
        if axes.get_title(loc="left")
    ]
    assert len(pages) == len(set(titles)) == 2


@pytest.mark.parametrize("look", [USUAL_LOOK, *LOOKS], ids=["usual", *PAPER_WIDTHS])
def test_panels_of_one_quantity_share_their_y_axis(
    found: list[tuple[Path, Record]], look: FigureLook
) -> None:
    figures = {part.name: part for part in draw(found, look) if isinstance(part, NamedFigure)}
    curves = visible_axes(figures["curves-digits"])
    accuracies = [axes for axes in curves if axes.get_ylim() != (0, 105)]
    assert len(accuracies) == 2
    assert accuracies[0].get_ylim() == accuracies[1].get_ylim()
    # the limits hold the values of both panels
    lines = [line for axes in accuracies for line in axes.get_lines()]
    values = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in lines])
    low, high = accuracies[0].get_ylim()
    assert low <= values.min() < values.max() <= high


@pytest.mark.parametrize("skills", [(2.0, -1.0), (-1.0, 2.0)])
def test_lines_are_inside_their_axes(tmp_path: Path, skills: tuple[float, float]) -> None:
    figures = draw(save_records(tmp_path, skills))
    for figure in (part for part in figures if isinstance(part, NamedFigure)):
        for axes in visible_axes(figure):
            low, high = axes.get_ylim()
            for line in axes.get_lines():
                values = np.asarray(line.get_ydata(), dtype=float)
                assert np.nanmin(values) >= low - 1e-9, figure.name
                assert np.nanmax(values) <= high + 1e-9, figure.name


def test_panel_with_a_single_point_is_left_out(tmp_path: Path) -> None:
    rows = synthetic.make_rows(60)
    many = synthetic.make_record(rows, "many", evaluation=synthetic.WITH_DRO, attack="pgd")
    config = EvaluateConfig(metrics=synthetic.WITH_DRO.metrics, rho=(0.1,))
    one = synthetic.make_record(rows, "one", evaluation=config, attack="fgsm")
    saved = [synthetic.save_record(tmp_path, record, rows) for record in (many, one)]
    with figure_style():
        skipped, figure = dro.make_figures(load_figure_data(saved))
        (alone,) = dro.make_figures(load_figure_data(saved[1:]))
    assert isinstance(skipped, SkippedFigure)
    assert "a single rho" in skipped.text
    assert isinstance(figure, NamedFigure)
    assert isinstance(alone, NamedFigure)
    assert (len(figure.figure.axes), len(alone.figure.axes)) == (3, 3)


def test_single_points_are_drawn_if_there_is_nothing_else() -> None:
    assert split_single_points(["a", "bc", "def"], len) == (["bc", "def"], ["a"])
    assert split_single_points(["a", "b"], len) == (["a", "b"], [])


def test_flags_choose_width_and_heading(found: list[tuple[Path, Record]], tmp_path: Path) -> None:
    folder = found[0][0].parent
    flags = ("--figure-width", "single", "--no-figure-titles")
    wmr("report", folder, "--figures", tmp_path / "figures", *flags, "--format", "csv")
    svg = (tmp_path / "figures" / "margins-digits.svg").read_text(encoding="utf-8")
    assert 'width="234pt"' in svg  # 3.25 inches
    for flag in (flags[:2], flags[2:]):
        assert "--figures" in wmr("report", folder, *flag, status=2).stderr
