"""What is drawn is what was measured: the artists of every figure against the measures."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib
import msgspec
import numpy as np
import pytest
from matplotlib.artist import Artist
from matplotlib.axes._axes import Axes
from matplotlib.collections import Collection
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from support import synthetic
from support.synthetic import ALPHAS
from support.typed import instance_of, not_none
from wmr_cli import measures
from wmr_cli.config import EvaluateConfig, TrainConfig
from wmr_cli.measures import Estimate
from wmr_cli.paper import results
from wmr_cli.reporting.figures import alpha_curves, classes, distributions, dro, training
from wmr_cli.reporting.figures.data import FigureData, SkippedFigure, load_figure_data
from wmr_cli.reporting.figures.layout import FigureOrSkip, NamedFigure
from wmr_cli.reporting.figures.paper import make_paper_figure
from wmr_cli.reporting.figures.style import figure_style
from wmr_cli.storage.records import AttackFacts, DroRow, Record, Rows
from wmr_cli.storage.runs import RunFolder


@pytest.fixture
def found(tmp_path: Path) -> list[tuple[Path, Record, dict[str, Any]]]:
    """Two models under attacks of two radii."""
    pairs = []
    for number, eps in ((0, 0.1), (1, 0.1), (0, 0.2), (1, 0.2)):
        clean, rows = (
            synthetic.make_rows(120, seed=number, skill=0.2 * number - loss) for loss in (0, eps)
        )
        rows |= {
            name: values for name, values in clean.items() if name.startswith("clean/")
        }  # no attack changes those
        pairs.append(evaluation(tmp_path, rows, f"run{number}", eps=eps))
    return pairs


def evaluation(
    folder: Path,
    rows: dict[str, NDArray[np.float32] | NDArray[np.float64] | NDArray[np.int64]],
    run: str = "x",
    config: EvaluateConfig = synthetic.WITH_DRO,
    changes: dict[str, list[DroRow] | AttackFacts] | None = None,
    **facts: Any,
) -> tuple[Path, Record, dict[str, NDArray[np.float32] | NDArray[np.float64] | NDArray[np.int64]]]:
    """Save the record of these rows with `changes`; return its file, the record and the rows."""
    record = msgspec.structs.replace(
        synthetic.make_record(rows, run, evaluation=config, **facts), **(changes or {})
    )
    return (*synthetic.save_record(folder, record, rows), rows)


FigureMaker = Callable[[FigureData], Iterator[FigureOrSkip]]
FIGURE_MAKERS = (
    alpha_curves.make_figures,
    dro.make_figures,
    distributions.make_weight_figures,
    distributions.make_margin_figures,
    classes.make_figures,
)


def drawn(
    maker: FigureMaker, found: list[tuple[Path, Record, dict[str, Any]]]
) -> list[SkippedFigure | NamedFigure]:
    with figure_style():
        return list(maker(load_figure_data([(file, record) for file, record, *_ in found])))


def figure_of(maker: FigureMaker, found: list[tuple[Path, Record, dict[str, Any]]]) -> Figure:
    (drawing,) = (part for part in drawn(maker, found) if isinstance(part, NamedFigure))
    return drawing.figure


def line(axes: Axes, label: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the x and y of the line that has this label."""
    (one,) = (one for one in axes.get_lines() if one.get_label() == label)
    return line_points(one)


def line_points(one: Line2D) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the x and y of a line."""
    return np.asarray(one.get_xdata(), dtype=float), np.asarray(one.get_ydata(), dtype=float)


def label_of(artist: Artist) -> str:
    return str(artist.get_label())


def corners_of(band: Collection) -> NDArray[np.float64]:
    """Return the corners (N, 2) of a shaded band."""
    return np.asarray(band.get_paths()[0].vertices)


def at(x: NDArray[np.float64], y: NDArray[np.float64], place: float) -> float:
    (value,) = y[x == place]
    return float(value)


def test_curve_at_a_recorded_alpha_is_the_recorded_a_sa(
    found: list[tuple[Path, Record, dict[str, Any]]],
) -> None:
    figure = figure_of(alpha_curves.make_figures, found)
    above, below = figure.axes[:2], figure.axes[2:]
    for axes, (first, second) in zip(above, (found[:2], found[2:]), strict=True):
        for label, (_, record, _) in (("run0", first), ("run1", second)):
            x, y = line(axes, label)
            assert at(x, y, 0.0) == pytest.approx(100 * not_none(record.a_rob).value)
            for row in record.by_alpha:
                assert at(x, y, not_none(row.alpha_test)) == pytest.approx(
                    100 * not_none(row.a_sa).value
                )
            assert (np.diff(y) <= 1e-9).all()  # A_sa never rises with alpha
            assert (x.min(), x.max()) == (0.0, max(ALPHAS))
    x, y = line(below[0], "run0")
    assert at(x, y, 2.0) == pytest.approx(
        100 * not_none(not_none(found[0][1].by_alpha[-1].a_sa).ess) / 120
    )
    assert at(x, y, 0.0) == pytest.approx(100)


def test_bands_contain_their_line(found: list[tuple[Path, Record, dict[str, Any]]]) -> None:
    (axes, *_) = figure_of(alpha_curves.make_figures, found).axes
    lines = [one for one in axes.get_lines() if len(line_points(one)[0]) > 10]
    bands = [
        band for band in axes.collections if isinstance(band, matplotlib.collections.PolyCollection)
    ]
    assert len(lines) == len(bands) == 2
    for one, band in zip(lines, bands, strict=True):
        corners = corners_of(band)
        for x, y in zip(*line_points(one), strict=True):
            heights = corners[np.isclose(corners[:, 0], x), 1]
            assert heights.min() <= y <= heights.max()
    _, record, rows = found[0]
    ends = corners_of(bands[0])
    estimate = measures.sampled_accuracy(rows, "exp", 2.0)
    assert {
        round(end, 9) for end in (100 * not_none(estimate).low, 100 * not_none(estimate).high)
    } <= {round(float(y), 9) for y in ends[np.isclose(ends[:, 0], 2.0), 1]}
    assert record.by_alpha[-1].a_sa == estimate


def a_tr_containers(
    found: list[tuple[Path, Record, dict[str, Any]]],
) -> tuple[dict[str, ErrorbarContainer], str]:
    """Return the points of A_tr that are drawn, by label, and the heading."""
    figure = figure_of(alpha_curves.make_figures, found)
    return {
        str(part.get_label()): instance_of(ErrorbarContainer, part)
        for part in figure.axes[0].containers
    }, figure.get_suptitle()


def with_a_tr(
    found: list[tuple[Path, Record, dict[str, Any]]], values: tuple[float, float]
) -> Iterator[
    tuple[Path, Record, dict[str, NDArray[np.float32] | NDArray[np.float64] | NDArray[np.int64]]]
]:
    """Return records of the same rows with these A_tr at each alpha, and narrow intervals."""
    for (file, record, rows), value in zip(found, values, strict=True):
        estimate = Estimate(value, value - 0.01, value + 0.01)
        yield (
            file,
            msgspec.structs.replace(
                record,
                by_alpha=[msgspec.structs.replace(row, a_tr=estimate) for row in record.by_alpha],
            ),
            rows,
        )


def test_a_tr_points_are_at_their_alphas_with_intervals(
    found: list[tuple[Path, Record, dict[str, Any]]],
) -> None:
    far, heading = a_tr_containers(list(with_a_tr(found[:2], (0.2, 0.6))))
    for points, _, _ in far.values():
        assert list(points.get_xdata()) == list(ALPHAS)
    assert "would overlap" not in heading
    shown, _ = a_tr_containers(found)
    for label, (_, record, _) in zip(("run0", "run1"), found[:2], strict=True):
        points, _, (bars,) = shown[label]
        assert points.get_ydata() == pytest.approx(
            [100 * not_none(row.a_tr).value for row in record.by_alpha]
        )
        ends = [segment[:, 1] for segment in bars.get_segments()]
        assert np.allclose(
            ends,
            [
                (100 * not_none(row.a_tr).low, 100 * not_none(row.a_tr).high)
                for row in record.by_alpha
            ],
        )


def test_overlapping_a_tr_points_are_shifted(
    found: list[tuple[Path, Record, dict[str, Any]]],
) -> None:
    near, heading = a_tr_containers(list(with_a_tr(found[:2], (0.4, 0.405))))
    first, second = (np.asarray(near[label][0].get_xdata()) for label in ("run0", "run1"))
    assert (first < second).all()
    for places in (first, second):
        assert places == pytest.approx(ALPHAS, abs=0.1)  # nearer to their own than to the next
        assert places.max() <= max(ALPHAS)
    assert "would overlap" in heading


def test_kernel_with_stored_weights_is_drawn_at_its_alphas(tmp_path: Path) -> None:
    rows = synthetic.make_rows(50)
    rows |= {
        f"uniform/log_weight@{alpha!r}": alpha * rows["uniform/loss"].astype(float)
        for alpha in ALPHAS
    }
    found = evaluation(tmp_path, rows, config=EvaluateConfig(kernel="tilt"))
    (axes, *_) = figure_of(alpha_curves.make_figures, [found]).axes
    x, y = line(axes, label_of(axes.get_lines()[0]))
    assert list(x) == list(ALPHAS)
    assert y == pytest.approx([100 * not_none(row.a_sa).value for row in found[1].by_alpha])


def test_kernel_without_alpha_has_no_curve(tmp_path: Path) -> None:
    rows = synthetic.make_rows(50)
    rows["uniform/log_weight"] = np.zeros(50)
    found = [evaluation(tmp_path, rows, config=EvaluateConfig(kernel="cvar"), alphas=(None,))]
    (skipped,) = drawn(alpha_curves.make_figures, found)
    assert "cvar" in instance_of(SkippedFigure, skipped).text
    assert drawn(distributions.make_weight_figures, found) == []
    assert len(drawn(classes.make_figures, found)) == 1


def test_worst_case_is_the_recorded_one(
    found: list[tuple[Path, Record, dict[str, Any]]],
) -> None:
    figure = figure_of(dro.make_figures, found)
    assert len(figure.axes) == 6
    for start, records in ((0, found[:2]), (3, found[2:])):
        for label, (_, record, _) in zip(("run0", "run1"), records, strict=True):
            for axes, field, unit in zip(
                figure.axes[start : start + 3],
                ("loss", "accuracy", "worst_accuracy"),
                (1, 100, 100),
                strict=True,
            ):
                x, y = line(axes, label)
                assert [at(x, y, row.rho) for row in record.dro] == pytest.approx(
                    [unit * getattr(row, field) for row in record.dro]
                )
                assert axes.get_xscale() == "log"
    x, y = line(figure.axes[0], "run0")
    assert len(x) > len(found[0][1].dro)
    assert (np.diff(y) >= -1e-9).all()


def test_radii_are_those_of_the_record(
    found: list[tuple[Path, Record, dict[str, Any]]], tmp_path: Path
) -> None:
    rows = synthetic.make_rows(50)
    losses = [
        row
        for row in synthetic.make_record(rows, evaluation=synthetic.WITH_DRO).dro
        if row.rho in (0.02, 0.64)
    ]
    one = evaluation(
        tmp_path, rows, changes={"dro": [msgspec.structs.replace(losses[0], rho=0.0), *losses]}
    )
    (axes, *_) = figure_of(dro.make_figures, [one]).axes
    x, _ = line(axes, label_of(axes.get_lines()[0]))
    assert (x.min(), x.max()) == (0.02, 0.64)  # zero has no place on a log axis
    by_margin = msgspec.structs.replace(synthetic.WITH_DRO, dro_loss="margin")
    (drawing,) = drawn(
        dro.make_figures, [one, evaluation(tmp_path, rows, "other", by_margin, {"dro": []})]
    )
    assert len(instance_of(NamedFigure, drawing).figure.axes) == 6, (
        "different losses have separate panels"
    )


def test_worst_case_over_attacks_has_no_dro_figure(tmp_path: Path) -> None:
    rows = synthetic.make_rows(50)
    worst = AttackFacts(spec="worst", seed=0, restarts=1, of=["a", "b"])
    (skipped,) = drawn(
        dro.make_figures, [evaluation(tmp_path, rows, changes={"attack": worst, "dro": []})]
    )
    assert "largest loss" in instance_of(SkippedFigure, skipped).text
    rows["uniform/loss"][0] = np.inf
    (skipped,) = drawn(
        dro.make_figures,
        [evaluation(tmp_path, rows, config=EvaluateConfig(metrics=("nat", "rob")))],
    )
    assert "not finite" in instance_of(SkippedFigure, skipped).text


def test_weights_are_those_behind_a_sa(found: list[tuple[Path, Record, dict[str, Any]]]) -> None:
    drawing, _ = drawn(distributions.make_weight_figures, found)
    rows = instance_of(NamedFigure, drawing).figure.subfigs
    assert [part.get_suptitle() for part in rows] == ["run0", "run1"]
    for part, (_, record, own) in zip(rows, found[:2], strict=True):
        for axes, row in zip(part.axes, record.by_alpha, strict=True):
            bars = [
                np.array([bar.get_height() for bar in container]) for container in axes.containers
            ]
            assert bars[0].sum() == pytest.approx(
                100 * not_none(record.a_rob).value
            )  # correct images
            assert np.sum(bars) == pytest.approx(100)  # no weight is off the axis
            assert f"{100 * not_none(not_none(row.a_sa).ess) / 120:.0f} %" in axes.get_title()
            exact = measures.normalized_weights(
                measures.exponential_log_weights(own["uniform/margin"], not_none(row.alpha_test))
            )
            assert axes.get_xlim()[0] <= 120 * exact.min()
            assert axes.get_xlim()[1] >= 120 * exact.max()
            (weight,) = (
                patch for patch in axes.patches if isinstance(patch, matplotlib.patches.StepPatch)
            )
            heights, edges, _ = weight.get_data()
            assert heights.sum() == pytest.approx(100)
            misclassified = sum(exact[own["uniform/prediction"] != own["label"]])
            above = edges[:-1] >= 120 * exact[own["uniform/prediction"] == own["label"]].max()
            assert heights[above].sum() <= 100 * misclassified + 1e-9


def test_close_weights_fill_several_bins(tmp_path: Path) -> None:
    rows = synthetic.make_rows(200, alphas=(10.0,))
    (drawing,) = drawn(
        distributions.make_weight_figures, [evaluation(tmp_path, rows, alphas=(10.0,))]
    )
    figure = instance_of(NamedFigure, drawing).figure
    (axes,) = figure.subfigs[0].axes
    correct, misclassified = (
        [bar.get_height() for bar in container] for container in axes.containers
    )
    assert sum(height > 0 for height in misclassified) > 3
    assert sum(height > 0 for height in correct) > 3
    assert sum(map(sum, (correct, misclassified))) == pytest.approx(
        100
    )  # those below the first bin are in it
    assert "in the first bin" in figure.get_suptitle()


def test_all_pages_of_weights_share_their_axes(tmp_path: Path) -> None:
    found = []
    for number in range(distributions.MODELS_PER_PAGE + 1):
        rows = synthetic.make_rows(
            40, seed=number, skill=-0.5 if number == distributions.MODELS_PER_PAGE else 0.5
        )
        found.append(evaluation(tmp_path, rows, f"run{number}"))
    first, second = (
        instance_of(NamedFigure, drawing).figure.subfigs[0].axes
        for drawing in drawn(distributions.make_weight_figures, found)
    )
    for one, two in zip(first, second, strict=True):
        assert (one.get_xlim(), one.get_ylim()) == (two.get_xlim(), two.get_ylim())
        assert [bar.get_width() for bar in one.containers[0]] == [
            bar.get_width() for bar in two.containers[0]
        ]


def test_some_of_many_alphas_are_drawn() -> None:
    assert distributions.choose_alphas([1.0, 2.0]) == [1.0, 2.0]
    many = [float(number) for number in range(20)]
    picked = distributions.choose_alphas(many)
    assert (len(picked), picked[0], picked[-1]) == (distributions.MAX_ALPHAS, 0.0, 19.0)


def test_fraction_at_margin_zero_is_the_error_rate(
    found: list[tuple[Path, Record, dict[str, Any]]],
) -> None:
    figure = figure_of(distributions.make_margin_figures, found)
    clean, weak, strong = figure.axes
    for axes, records, name in (
        (clean, found[:2], "a_nat"),
        (weak, found[:2], "a_rob"),
        (strong, found[2:], "a_rob"),
    ):
        for label, (_, record, _) in zip(("run0", "run1"), records, strict=True):
            x, y = line(axes, label)
            assert y[x <= 0].max() == pytest.approx(100 * (1 - getattr(record, name).value))
            assert (y.min(), y.max()) == (0, 100)


def test_classes_have_their_accuracies_and_intervals(tmp_path: Path) -> None:
    found = evaluation(
        tmp_path, synthetic.make_rows(80, classes=4), config=EvaluateConfig(per_class=True)
    )
    record = found[1]
    (axes,) = figure_of(classes.make_figures, [found]).axes
    bars = [part for part in axes.containers if isinstance(part, matplotlib.container.BarContainer)]
    spans = [
        part for part in axes.containers if isinstance(part, matplotlib.container.ErrorbarContainer)
    ]
    expected: dict[int, list[Estimate | None]] = {
        0: [row.a_nat for row in record.per_class],
        1: [row.a_rob for row in record.per_class],
        2: [row.by_alpha[-1].a_sa for row in record.per_class],
    }
    for place, estimates in expected.items():
        assert [bar.get_height() for bar in bars[place]] == pytest.approx(
            [100 * not_none(estimate).value for estimate in estimates]
        )
        ends = [segment[:, 1] for segment in spans[place].lines[2][0].get_segments()]
        assert np.allclose(
            ends,
            [
                (100 * not_none(estimate).low, 100 * not_none(estimate).high)
                for estimate in estimates
            ],
        )
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0", "1", "2", "3"]


def test_class_names_are_shown_unchanged(tmp_path: Path) -> None:
    rows, names = synthetic.make_rows(80, classes=4), {0: "$a$", 1: "b_c", 2: "d"}
    figure = figure_of(
        classes.make_figures,
        [evaluation(tmp_path, rows, config=EvaluateConfig(per_class=True), class_names=names)],
    )
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == [
        r"\$a\$",
        "b_c",
        "d",
        "3",
    ]


def test_worst_of_many_classes_are_shown(tmp_path: Path) -> None:
    rows = synthetic.make_rows(500, classes=50)
    rows["uniform/prediction"] = np.where(
        rows["label"] % 5 == 0, 99, rows["label"]
    )  # ten classes are always misclassified
    figure = figure_of(classes.make_figures, [evaluation(tmp_path, rows)])
    shown = [int(text.get_text()) for text in figure.axes[0].get_xticklabels()]
    assert len(shown) == classes.MAX_CLASSES
    assert set(range(0, 50, 5)) <= set(shown)
    assert "the 20 worst of 50 classes" in figure.get_suptitle()


def entry(epoch: int, **more: Any) -> dict[str, float]:
    return {
        "epoch": epoch,
        "loss": 2.0 / epoch,
        "weight_mean": 1.0,
        "weight_max": 2.0,
        "weight_ess": 0.9,
        **more,
    }


def save_training_run(
    folder: Path, run: str, entries: list[dict[str, float]], **settings: Any
) -> tuple[Path, Record, Rows]:
    """Return a run folder with a log and one record in it."""
    found = evaluation(folder / run / "evaluations", synthetic.make_rows(30), run)
    RunFolder(folder / run).config.write_text(TrainConfig(**settings).to_json())
    RunFolder(folder / run).write_log(entries)
    return found


def held_out(value: float) -> dict[str, float]:
    return {
        f"val_a_{name}{end}": value + shift
        for name in ("nat", "rob", "sa")
        for end, shift in (("", 0), ("_low", -0.1), ("_high", 0.1))
    }


def test_training_figure_shows_the_log(tmp_path: Path) -> None:
    entries = [
        entry(1, attack_success=0.5),
        entry(2, attack_success=0.4, **held_out(0.5)),
        entry(3, **held_out(0.6)),
    ]
    figure = figure_of(
        training.make_figures,
        [save_training_run(tmp_path, "a", entries), save_training_run(tmp_path, "b", entries[:2])],
    )
    panels = {axes.get_title(): axes for axes in figure.axes}
    assert len(panels) == 8
    x, y = line(panels["training loss"], "a")
    assert list(x) == [1, 2, 3]
    assert list(y) == pytest.approx([2, 1, 2 / 3])
    (rob,) = (axes for title, axes in panels.items() if "rob" in title)
    x, y = line(rob, "a")
    assert list(x) == [2, 3]
    assert list(y) == pytest.approx([50, 60])
    ends = corners_of(rob.collections[0])
    assert (ends[:, 1].min(), ends[:, 1].max()) == pytest.approx((40, 70))
    assert line(panels["attack success (%)"], "b")[1] == pytest.approx([50, 40])
    assert line(panels["ESS of weights (%)"], "b")[1] == pytest.approx([90, 90])


def test_runs_with_other_validation_settings_have_separate_figures(tmp_path: Path) -> None:
    runs = [
        save_training_run(tmp_path, name, [entry(1)], eps=eps)
        for name, eps in (("a", 0.1), ("b", 0.2), ("c", 0.1))
    ]
    drawings = drawn(training.make_figures, runs)
    figures = [instance_of(NamedFigure, part).figure for part in drawings]
    assert [len(figure.axes[0].get_lines()) for figure in figures] == [2, 1]


def test_empty_or_damaged_log_is_skipped(tmp_path: Path) -> None:
    run = save_training_run(tmp_path, "a", [])
    (skipped,) = drawn(training.make_figures, [run])
    assert "is empty" in instance_of(SkippedFigure, skipped).text
    (tmp_path / "a" / "log.jsonl").write_text("{]\n")
    (skipped,) = load_figure_data([run[:2]]).skipped
    assert skipped.is_bad_file
    (tmp_path / "a" / "log.jsonl").unlink()
    assert load_figure_data([run[:2]]).training_logs == []


@pytest.mark.parametrize(("name", "panels"), [("F3", 6), ("F4", 4)])
def test_figures_of_the_paper_have_its_points(name: str, panels: int) -> None:
    with figure_style():
        figure = make_paper_figure(name)
    source = results.find_figure(name)
    assert len(source.panels) == panels
    for axes, panel in zip(figure.axes, source.panels, strict=True):
        drawn = [one for one in axes.get_lines() if not label_of(one).startswith("suspect")]
        assert len(drawn) == len(panel.series)
        for one, series in zip(drawn, panel.series, strict=True):
            assert label_of(one).split(",")[0] == series.defense
            x, y = line_points(one)
            assert tuple(x) == series.x
            scale = 1 if panel.metric == "loss" else 100
            np.testing.assert_allclose(y, [scale * value for value in series.y])


def test_suspect_points_have_rings_and_a_legend_entry() -> None:
    with figure_style():
        figure = make_paper_figure("F4")
    for axes, expected in zip(
        figure.axes, [[], [], [[0.01, 0.02]] * 2, [[0.01, 0.02]] * 2], strict=True
    ):
        rings = [one for one in axes.get_lines() if label_of(one).startswith("suspect")]
        assert [list(line_points(ring)[0]) for ring in rings] == expected
    assert "suspect point" in [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.fixture
def seeds(tmp_path: Path) -> list[tuple[Path, Record, dict[str, Any]]]:
    """Two trainings, one with three seeds and one with a single seed."""
    pairs = []
    for name, alpha, seed in (("a0", 0.0, 0), ("a0", 0.0, 1), ("a0", 0.0, 2), ("a2", 2.0, 0)):
        rows, run = synthetic.make_rows(120, seed=seed, skill=0.3 * seed), f"{name}-s{seed}"
        pairs.append(
            evaluation(
                tmp_path / run,
                rows,
                run,
                seed=seed,
                alpha_train=alpha,
                training={"alpha": alpha, "seed": seed},
            )
        )
    return pairs


def test_training_seeds_are_one_model(
    seeds: list[tuple[Path, Record, dict[str, Any]]],
) -> None:
    (group,) = load_figure_data([(file, record) for file, record, _ in seeds]).groups
    assert [[one.record.checkpoint.seed for one in model.seeds] for model in group.models] == [
        [0, 1, 2],
        [0],
    ]
    repeated = [*seeds, seeds[0]]
    assert [
        len(model.seeds)
        for model in load_figure_data([(file, record) for file, record, _ in repeated])
        .groups[0]
        .models
    ] == [
        3,
        1,
    ]


def test_several_seeds_have_a_mean_line_and_thin_lines(
    seeds: list[tuple[Path, Record, dict[str, Any]]],
) -> None:
    (group,) = load_figure_data([(file, record) for file, record, _ in seeds]).groups
    several = group.models[0].label
    accuracies = np.array(
        [not_none(measures.sampled_accuracy(rows, "exp", 2.0)).value for *_, rows in seeds[:3]]
    )
    above, below = figure_of(alpha_curves.make_figures, seeds).axes
    assert at(*line(above, several), 2.0) == pytest.approx(100 * accuracies.mean())
    thin = [
        line_points(one)[1]
        for one in above.get_lines()
        if label_of(one).startswith("_") and len(line_points(one)[0]) >= alpha_curves.CURVE_POINTS
    ]
    assert [values[-1] for values in thin] == pytest.approx(list(100 * accuracies))
    assert len(below.get_lines()) == 2
    crafted = [
        next(not_none(row.a_tr).value for row in record.by_alpha if row.alpha_test == 2.0)
        for _, record, _ in seeds[:3]
    ]
    (points, *_) = next(one for one in above.containers if one.get_label() == several)
    assert points.get_ydata()[-1] == pytest.approx(100 * np.mean(crafted))
    worst = [measures.worst_case(rows["uniform/loss"], 1.0).value for *_, rows in seeds[:3]]
    assert at(*line(figure_of(dro.make_figures, seeds).axes[0], several), 1.0) == pytest.approx(
        np.mean(worst)
    )


def test_several_seeds_are_pooled_in_distributions(
    seeds: list[tuple[Path, Record, dict[str, Any]]],
) -> None:
    headings = {
        maker: figure_of(maker, seeds).get_suptitle()
        for maker in (
            alpha_curves.make_figures,
            dro.make_figures,
            distributions.make_weight_figures,
            classes.make_figures,
        )
    }
    assert all("training seeds" in text for text in headings.values())
    assert not any(
        "training seeds" in figure_of(maker, seeds[2:]).get_suptitle() for maker in headings
    )
    (group,) = load_figure_data([(file, record) for file, record, _ in seeds]).groups
    several = group.models[0]
    spread = distributions.weight_distribution(several, 2.0)
    assert len(not_none(spread).correct) + len(not_none(spread).misclassified) == 3 * 120
    pooled = np.concatenate([rows["uniform/margin"] for *_, rows in seeds[:3]])
    attacked = figure_of(distributions.make_margin_figures, seeds).axes[1]
    assert line(attacked, several.label)[1] == pytest.approx(
        100 * distributions.cumulative_fractions(pooled)
    )
    (first, *_) = classes.class_bars(several, [0])
    assert not_none(first.estimates[0]).value == pytest.approx(
        np.mean(
            [np.mean((rows["clean/prediction"] == 0)[rows["label"] == 0]) for *_, rows in seeds[:3]]
        )
    )


@pytest.mark.parametrize("maker", FIGURE_MAKERS)
@pytest.mark.parametrize(
    "attack",
    ["pgd:steps=20,step=0.003", "third-party-attack:first=0.123456,second=0.123456,third=7"],
)
def test_headings_fit_their_figures(
    maker: FigureMaker, attack: str, seeds: list[tuple[Path, Record, dict[str, Any]]]
) -> None:
    attacked = [
        (
            file,
            msgspec.structs.replace(
                record, attack=msgspec.structs.replace(record.attack, spec=attack)
            ),
            rows,
        )
        for file, record, rows in seeds
    ]
    figure = figure_of(maker, attacked)
    figure.canvas.draw()
    ticks = {
        one
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for one in axis.get_ticklabels(which="both")
    }
    for text in set(figure.findobj(matplotlib.text.Text)) - ticks:  # there are ticks out of sight
        extent = text.get_window_extent()
        assert not text.get_text() or 0 <= extent.x0 <= extent.x1 <= figure.bbox.width, (
            text.get_text()
        )


@pytest.mark.parametrize("kernel", ["exp", "other"])
def test_seeds_with_other_alphas_are_drawn_at_their_own(tmp_path: Path, kernel: str) -> None:
    runs = []
    for seed, alpha in ((0, 1.0), (1, 2.0)):
        rows = synthetic.make_rows(60, seed=seed, alphas=(alpha,))
        rows[measures.at_alpha("uniform/log_weight", alpha)] = -alpha * rows["uniform/margin"]
        record = msgspec.structs.replace(
            synthetic.make_record(
                rows, f"a-s{seed}", seed=seed, alphas=(alpha,), training={"seed": seed}
            )
        )
        record = msgspec.structs.replace(record, kernel=kernel)
        runs.append((*synthetic.save_record(tmp_path / f"a-s{seed}", record, rows), rows))
    x, y = line(
        figure_of(alpha_curves.make_figures, runs).axes[0],
        load_figure_data([run[:2] for run in runs]).groups[0].models[0].label,
    )
    accuracies = [
        not_none(measures.sampled_accuracy(rows, kernel, alpha)).value
        for (*_, rows), alpha in zip(runs, (1.0, 2.0), strict=True)
    ]
    if kernel == "other":
        assert [at(x, y, alpha) for alpha in (1.0, 2.0)] == pytest.approx(
            [100 * accuracy for accuracy in accuracies]
        )
    assert figure_of(distributions.make_weight_figures, runs)
    assert figure_of(classes.make_figures, runs)


def test_runs_of_one_training_share_a_style(tmp_path: Path) -> None:
    runs = []
    for seed in (0, 1):
        rows, folder = synthetic.make_rows(20, seed=seed), tmp_path / f"a-s{seed}"
        runs.append(
            evaluation(
                folder / "evaluations", rows, f"a-s{seed}", seed=seed, training={"seed": seed}
            )
        )
        RunFolder(folder).config.write_text(TrainConfig(seed=seed).to_json())
        RunFolder(folder).write_log([entry(1), entry(2)])
    figure = figure_of(training.make_figures, runs)
    assert len(figure.legends[0].get_texts()) == 1
    assert len({one.get_color() for one in figure.axes[0].get_lines()}) == 1
    assert len(figure.axes[0].get_lines()) == 2
