"""Figures as files: which are written, equal bytes for equal records, user text as text."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import msgspec
import numpy as np
import pytest
from matplotlib import cbook
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from support import synthetic
from support.typed import instance_of
from wmr_cli.config import EvaluateConfig
from wmr_cli.errors import RunFolderError
from wmr_cli.reporting import figures
from wmr_cli.reporting.figures import (
    FigureFiles,
    alpha_curves,
    classes,
    distributions,
    draw_figures,
    dro,
    unique_file_name,
    write_figures,
)
from wmr_cli.reporting.figures.data import SkippedFigure, load_figure_data
from wmr_cli.reporting.figures.layout import NamedFigure
from wmr_cli.reporting.figures.style import (
    COLOURS,
    LineStyle,
    escape_text,
    figure_style,
    save_figure,
    wrap_text,
)
from wmr_cli.storage import records
from wmr_cli.storage.records import AttackFacts, DatasetFacts, Record, Threat

HOSTILE = [
    "a$b$c",
    "$\\frac{1}{0}$",
    "<script>alert(1)<&script>",
    "under_score_{x}^2 \\alpha",
    "two\nlines\tand\x1bmore",
    "%s {} [b]bold[-b]",
    "您好 ✓",
    "x" * 200,
    "odd $ dollar \\",
]


def pair(folder: Path, n: int = 60) -> Iterator[tuple[Path, Record]]:
    """Two models under the same attack."""
    for number, alpha in enumerate((0.0, 2.0)):
        rows = synthetic.make_rows(n, seed=number, skill=0.1 * number, classes=4)
        record = synthetic.make_record(
            rows, f"run{number}", evaluation=synthetic.WITH_DRO, alpha_train=alpha
        )
        yield synthetic.save_record(folder / "evaluations", record, rows)


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], list[Path]]:
    """Draw the same records twice; return the files of both."""
    folder = tmp_path_factory.mktemp("twice")
    found = list(pair(folder))
    first = write_figures(found, folder / "first")
    # a matplotlibrc of the user must not change the figures
    with matplotlib.rc_context({"lines.linewidth": 9, "font.size": 30, "savefig.dpi": 10}):
        second = write_figures(found[::-1], folder / "second")
        assert matplotlib.rcParams["lines.linewidth"] == 9
    return first, second


def make_figures(found: list[tuple[Path, Record]]) -> list[NamedFigure]:
    """Make every figure without writing it."""
    with figure_style():
        data = load_figure_data(found)
        makers = (
            alpha_curves.make_figures,
            dro.make_figures,
            distributions.make_weight_figures,
            distributions.make_margin_figures,
            classes.make_figures,
        )
        return [part for maker in makers for part in maker(data) if isinstance(part, NamedFigure)]


def test_every_figure_is_written_in_three_formats(twice: tuple[list[Path], list[Path]]) -> None:
    files, _ = twice
    names = [
        "curves-digits",
        "worst-case-digits",
        "weights-digits-pgd-0.15",
        "margins-digits",
        "classes-digits-pgd-0.15",
    ]
    assert [file.name for file in files] == [
        f"{name}.{kind}" for name in names for kind in ("png", "svg", "pdf")
    ]
    begins = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
    assert all(file.read_bytes().startswith(begins[file.suffix]) for file in files)
    assert sorted(files[0].parent.iterdir()) == sorted(files)  # and nothing else


def test_equal_records_give_equal_bytes(twice: tuple[list[Path], list[Path]]) -> None:
    first, second = twice
    assert {one.name: one.read_bytes() for one in first} == {
        one.name: one.read_bytes() for one in second
    }


def test_style_of_the_caller_is_restored_between_figures(tmp_path: Path) -> None:
    before = matplotlib.rcParams["font.family"]
    next(draw_figures(list(pair(tmp_path)), tmp_path / "figures"))
    assert matplotlib.rcParams["font.family"] == before


def test_only_requested_kinds_are_drawn(tmp_path: Path) -> None:
    drawn = [
        instance_of(FigureFiles, part).files[0].name
        for part in draw_figures(
            list(pair(tmp_path)), tmp_path / "figures", ["worst-case", "margins"]
        )
    ]
    assert [name.rpartition("-digits")[0] for name in drawn] == ["worst-case", "margins"]


def test_without_records_nothing_is_written(tmp_path: Path) -> None:
    assert write_figures([], tmp_path / "figures") == []
    assert not (tmp_path / "figures").exists()


def test_unwritable_folder_raises(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(RunFolderError):
        write_figures(list(pair(tmp_path)), tmp_path / "taken")


def test_user_text_is_neither_formula_nor_markup(tmp_path: Path) -> None:
    found = []
    for number, name in enumerate(HOSTILE):
        rows = synthetic.make_rows(20, seed=number, classes=4)
        found.append(
            synthetic.save_record(
                tmp_path / str(number),
                synthetic.make_record(rows, name, evaluation=synthetic.WITH_DRO),
                rows,
            )
        )
    drawings = make_figures(found)
    assert len(drawings) == 7  # classes take two pages, weights too
    with figure_style():
        for drawing in drawings:
            drawing.figure.draw_without_rendering()  # every text is read
        (svg,) = (
            file
            for file in save_figure(drawings[0].figure, tmp_path / "figures", "curves")
            if file.suffix == ".svg"
        )
    (legend,) = drawings[0].figure.legends
    shown = [text.get_text() for text in legend.get_texts()]
    assert not any(cbook.is_math_text(text) for text in shown)
    plain = {text.replace("\n", "").replace(r"\$", "$") for text in shown}
    assert {
        "a$b$c",
        "$\\frac{1}{0}$",
        "<script>alert(1)<&script>",
        "under_score_{x}^2 \\alpha",
        "x" * 200,
    } <= plain
    assert {
        "two\\nlines\\tand\\x1bmore",
        "%s {} [b]bold[-b]",
        "\\u60a8\\u597d ✓",
        "odd $ dollar \\",
    } <= plain
    assert "<script>" not in svg.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a$b", r"a\$b"),
        ("a_b", "a_b"),
        ("a\nb", r"a\nb"),
        ("", ""),
        ("ε α", "ε α"),
        ("\u202eabc", r"\u202eabc"),
    ],
)
def test_user_text_is_escaped(text: str, shown: str) -> None:
    assert escape_text(text) == shown


@pytest.mark.parametrize("text", ["", "short", "a-b_" * 40, "x" * 300, "$" * 100])
def test_wrapped_text_is_complete(text: str) -> None:
    lines = wrap_text(text, 20).split("\n")
    assert "".join(lines) == escape_text(text)
    assert all(len(line.replace(r"\$", "$")) <= 20 for line in lines)


def test_line_styles_of_280_models_differ() -> None:
    styles = [LineStyle(number) for number in range(280)]
    assert (
        len({(style.colour, str(style.line["linestyle"]), style.marker) for style in styles}) == 280
    )
    # neighbours differ in dashes and marker, for printing in grey
    assert all(
        str(one.line) != str(two.line) and one.marker != two.marker
        for one, two in itertools.pairwise(styles)
    )


def line_style(one: Line2D) -> tuple[str, str]:
    """Return dashes and marker, which distinguish lines without colour."""
    return str(vars(one)["_dash_pattern"]), str(one.get_marker())


@pytest.mark.parametrize("kind", ["curves", "margins"])
def test_twelve_models_are_distinguishable_in_grey(kind: str, tmp_path: Path) -> None:
    found = []
    for number in range(12):
        rows = synthetic.make_rows(40, seed=number)
        found.append(
            synthetic.save_record(
                tmp_path / str(number), synthetic.make_record(rows, f"run{number:02}"), rows
            )
        )
    (drawing,) = (drawing for drawing in make_figures(found) if drawing.name == f"{kind}-digits")
    drawn = [
        one
        for one in drawing.figure.axes[0].get_lines()
        if str(one.get_label()).startswith("run") and np.size(one.get_xdata()) > 20
    ]
    styles = [line_style(one) for one in drawn]
    assert len(drawn) == len(set(styles)) == 12
    (legend,) = drawing.figure.legends
    assert [line_style(one) for one in legend.get_lines()] == styles
    with figure_style():
        (svg,) = (
            file
            for file in save_figure(drawing.figure, tmp_path / "figures", "curves")
            if file.suffix == ".svg"
        )
    assert svg.read_text(encoding="utf-8").count("<use ") > 12 * 5  # the markers


def luminance(colour: str) -> float:
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_colours_are_visible_on_white() -> None:
    assert all(luminance(colour) < 0.68 for colour in COLOURS)


def model_labels(found: list[tuple[Path, Record]]) -> list[str]:
    return [model.label for group in load_figure_data(found).groups for model in group.models]


def test_models_have_the_shortest_distinct_labels(tmp_path: Path) -> None:
    alphas = list(pair(tmp_path))
    assert [re.sub(r"[$\\{}]|mathrm", "", label) for label in model_labels(alphas)] == [
        "trades, alpha_train = 0", "trades, alpha_train = 2",
    ]  # fmt: skip
    same = [
        (
            file,
            msgspec.structs.replace(
                record, checkpoint=msgspec.structs.replace(record.checkpoint, alpha_train=2.0)
            ),
        )
        for file, record in alphas
    ]
    assert model_labels(same) == ["run0", "run1"]
    moved = [
        (
            file,
            msgspec.structs.replace(
                record, checkpoint=msgspec.structs.replace(record.checkpoint, path=path)
            ),
        )
        for (file, record), path in zip(
            same, ("a/x/last.safetensors", "b/x/last.safetensors"), strict=True
        )
    ]
    assert model_labels(moved) == ["a/x/last.safetensors", "b/x/last.safetensors"]
    copied = [
        (
            file,
            msgspec.structs.replace(
                record,
                checkpoint=msgspec.structs.replace(record.checkpoint, path="x/last.safetensors"),
            ),
        )
        for file, record in same
    ]
    assert model_labels(copied) == [
        f"x/last.safetensors {record.checkpoint.sha256[:8]}" for _, record in copied
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"threat": Threat(norm="linf", eps=0.2)},
        {"threat": Threat(norm="l2", eps=0.1)},
        {"attack": AttackFacts(spec="pgd:steps=3", seed=0, restarts=1)},
        {"attack": AttackFacts(spec="pgd:steps=2", seed=0, restarts=5)},
        {"attack": AttackFacts(spec="pgd:steps=2", seed=1, restarts=1)},
        {"dataset": DatasetFacts(name="digits", split="test", n=60, sha256="1")},
        {
            "dataset": DatasetFacts(
                name="digits", split="test", n=60, sha256="0", indices=list(range(60))
            )
        },
        {"kernel": "tilt"},
    ],
    ids=str,
)
def test_different_settings_have_separate_panels(
    changes: dict[str, str | AttackFacts | DatasetFacts | Threat], tmp_path: Path
) -> None:
    (file, one), (other_file, other) = pair(tmp_path)
    assert len(load_figure_data([(file, one), (other_file, other)]).groups) == 1
    groups = load_figure_data(
        [(file, one), (other_file, msgspec.structs.replace(other, **changes))]
    ).groups
    assert [len(group.models) for group in groups] == [1, 1]
    assert groups[0].facts != groups[1].facts or "sha256" in str(changes)


def test_worst_cases_of_the_same_attacks_share_a_panel(tmp_path: Path) -> None:
    (file, one), (other_file, other) = pair(tmp_path)
    first, second = (
        msgspec.structs.replace(
            record,
            id=f"worst {record.id}",
            attack=AttackFacts(spec="worst", seed=0, restarts=1, of=[record.id]),
        )
        for record in (one, other)
    )
    known = [(file, one), (other_file, other), (file, first), (other_file, second)]
    assert [len(group.models) for group in load_figure_data(known).groups] == [2, 2]
    assert [len(group.models) for group in load_figure_data(known[2:]).groups] == [
        1,
        1,
    ]  # the attacks behind them are unknown


def test_model_that_was_evaluated_twice_is_drawn_once(tmp_path: Path) -> None:
    rows = synthetic.make_rows(60)
    little, much = (
        synthetic.make_record(rows, alphas=synthetic.ALPHAS[:1]),
        synthetic.make_record(rows),
    )
    found = [synthetic.save_record(tmp_path, record, rows) for record in (much, little)]
    data = load_figure_data(found)
    assert [model.record for group in data.groups for model in group.models] == [much]
    assert ["more than once" in part.text for part in data.skipped] == [True]


def test_record_with_damaged_rows_is_skipped(tmp_path: Path) -> None:
    (file, one), (other_file, other) = pair(tmp_path)
    records.rows_path(file).write_bytes(b"nothing")
    records.save_rows(records.rows_path(other_file), {})
    parts = list(draw_figures([(file, one), (other_file, other)], tmp_path / "figures"))
    assert all(isinstance(part, SkippedFigure) and part.is_bad_file for part in parts)
    first, second = (instance_of(SkippedFigure, part).text for part in parts)
    assert records.rows_path(file).name in first
    assert records.rows_path(other_file).name in second


@pytest.mark.parametrize("skill", [-90.0, 90.0], ids=["none correct", "all correct"])
@pytest.mark.parametrize("n", [1, 30])
@pytest.mark.parametrize("alphas", [(), (0.0,), (1e6,)], ids=str)
def test_degenerate_records_are_drawn(
    n: int, skill: float, alphas: tuple[float], tmp_path: Path
) -> None:
    rows = synthetic.make_rows(n, skill=skill, alphas=alphas)
    found = [
        synthetic.save_record(
            tmp_path,
            synthetic.make_record(rows, alphas=alphas, evaluation=synthetic.WITH_DRO),
            rows,
        )
    ]
    drawn = {drawing.name for drawing in make_figures(found)}
    expected = {
        "curves-digits",
        "worst-case-digits",
        "margins-digits",
        "classes-digits-pgd-0.15",
        "weights-digits-pgd-0.15",
    }
    assert drawn == (expected if alphas else expected - {"weights-digits-pgd-0.15"})


def test_attack_without_margins_is_skipped(tmp_path: Path) -> None:
    whole = synthetic.make_rows(60)
    bare = {
        name: values
        for name, values in whole.items()
        if name in ("label", "index", "clean/prediction", "uniform/prediction")
    }
    found = [synthetic.save_record(tmp_path, synthetic.make_record(bare, alphas=()), bare)]
    first, second, drawn = draw_figures(found, tmp_path / "figures")
    assert "A_sa not drawn" in instance_of(SkippedFigure, first).text
    assert "worst case not drawn" in instance_of(SkippedFigure, second).text
    assert instance_of(FigureFiles, drawn).files[0].name == "classes-digits-pgd-0.15.png"
    clean = {name: values for name, values in bare.items() if not name.startswith("uniform")}
    found = [
        synthetic.save_record(
            tmp_path,
            synthetic.make_record(clean, alphas=(), evaluation=EvaluateConfig(metrics=("nat",))),
            clean,
        )
    ]
    assert {
        "has no attack" in part.text
        for part in draw_figures(found, tmp_path)
        if isinstance(part, SkippedFigure)
    } == {True}


def test_file_names_are_safe(tmp_path: Path) -> None:
    rows = synthetic.make_rows(20)
    record = synthetic.make_record(
        rows,
        dataset="folder:path=/a/../b",
        attack="my/file.py:Attack",
        eps=8 / 255,
        evaluation=synthetic.WITH_DRO,
    )
    found = [synthetic.save_record(tmp_path, record, rows)]
    drawn = instance_of(FigureFiles, next(draw_figures(found, tmp_path / "figures")))
    assert drawn.files[0].name == "curves-folder.png"
    assert unique_file_name(make_figures(found)[2].name, set()) == "weights-folder-Attack-8_255"
    assert unique_file_name("a/b", {"a_b", "a_b-2"}) == "a_b-3"
    assert len(unique_file_name("x" * 500, set())) < 100


@pytest.mark.parametrize("names", [None, ("cat", "a $ dog")])
def test_attack_grid_names_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...] | None
) -> None:
    titles: list[str] = []
    set_title = Axes.set_title

    def keep_title(axes: Axes, label: str, **style: Any) -> None:
        titles.append(label)
        set_title(axes, label, **style)

    monkeypatch.setattr(Axes, "set_title", keep_title)
    images = np.zeros((1, 3, 4, 4))
    classes = [np.array([label]) for label in (0, 0, 1)]
    figures.attack_grid(tmp_path / "grid.png", images, images, *classes, class_names=names)
    first, _, last = titles
    shown = ("0", "1") if names is None else ("cat", r"a \$ dog")
    assert first.replace("\n", " ") == f"label {shown[0]}, predicted {shown[0]}"
    assert last == f"predicted {shown[1]}"
    assert (tmp_path / "grid.png").stat().st_size


def test_files_of_a_figure_in_one_line() -> None:
    assert (
        str(FigureFiles([Path("a/b.png"), Path("a/b.svg"), Path("a/b.pdf")]))
        == "a/b.png, .svg, .pdf"
    )
