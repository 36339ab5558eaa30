"""Figures as files: which are written, that they repeat to the byte, and that user text stays text."""

import itertools
import re
from pathlib import Path

import matplotlib
import msgspec
import pytest
from matplotlib import cbook

import made
from wmr_cli.config import EvaluateConfig
from wmr_cli.errors import RunFolderError
from wmr_cli.reporting import figures
from wmr_cli.reporting.figures import Drawn, balls, classes, curves, draw, margins, untaken, walk, weights
from wmr_cli.reporting.figures.layout import Drawing
from wmr_cli.reporting.figures.material import Undrawn, gathered
from wmr_cli.reporting.figures.style import COLOURS, Look, save, styled
from wmr_cli.reporting.figures.words import literal, wrapped
from wmr_cli.storage import records
from wmr_cli.storage.records import AttackFacts, DatasetFacts, Threat

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


def pair(folder, n=60):
    """Two models under the same attack."""
    for number, alpha in enumerate((0.0, 2.0)):
        rows = made.rows(n, seed=number, skill=0.1 * number, classes=4)
        record = made.record(rows, f"run{number}", asked=made.WITH_BALLS, alpha_train=alpha)
        yield made.stored(folder / "evaluations", record, rows)


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    """The files of two drawings of the same records."""
    folder = tmp_path_factory.mktemp("twice")
    found = list(pair(folder))
    first = draw(found, folder / "first")
    with matplotlib.rc_context({"lines.linewidth": 9, "font.size": 30, "savefig.dpi": 10}):  # as a user's matplotlibrc may
        second = draw(found[::-1], folder / "second")
        assert matplotlib.rcParams["lines.linewidth"] == 9
    return first, second


def built(found):
    """Every figure, not yet written."""
    with styled():
        material = gathered(found)
        makers = (curves, balls, weights, margins, classes)
        return [part for maker in makers for part in maker.figures(material) if isinstance(part, Drawing)]


def test_every_figure_is_written_in_three_formats(twice):
    files, _ = twice
    names = ["curves-digits", "worst-case-digits", "weights-digits-pgd-0.15", "margins-digits", "classes-digits-pgd-0.15"]
    assert [file.name for file in files] == [f"{name}.{kind}" for name in names for kind in ("png", "svg", "pdf")]
    begins = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
    assert all(file.read_bytes().startswith(begins[file.suffix]) for file in files)
    assert sorted(files[0].parent.iterdir()) == sorted(files)  # and nothing else


def test_the_same_records_give_the_same_bytes(twice):
    first, second = twice
    assert {one.name: one.read_bytes() for one in first} == {one.name: one.read_bytes() for one in second}


def test_whoever_follows_the_walk_keeps_their_own_style(tmp_path):
    before = matplotlib.rcParams["font.family"]
    next(walk(list(pair(tmp_path)), tmp_path / "figures"))  # and is not asked to go on
    assert matplotlib.rcParams["font.family"] == before


def test_only_the_kinds_that_are_named_are_drawn(tmp_path):
    drawn = [part.files[0].name for part in walk(list(pair(tmp_path)), tmp_path / "figures", ["worst-case", "margins"])]
    assert [name.rpartition("-digits")[0] for name in drawn] == ["worst-case", "margins"]


def test_nothing_to_draw_is_drawn_as_nothing(tmp_path):
    assert draw([], tmp_path / "figures") == []
    assert not (tmp_path / "figures").exists()


def test_a_place_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(RunFolderError, match="cannot write"):
        draw(list(pair(tmp_path)), tmp_path / "taken")


def test_user_text_is_neither_formula_nor_markup(tmp_path):
    found = []
    for number, name in enumerate(HOSTILE):
        rows = made.rows(20, seed=number, classes=4)
        found.append(made.stored(tmp_path / str(number), made.record(rows, name, asked=made.WITH_BALLS), rows))
    drawings = built(found)
    assert len(drawings) == 7  # classes take two pages, weights too
    with styled():
        for drawing in drawings:
            drawing.figure.draw_without_rendering()  # every text is read
        (svg,) = (file for file in save(drawings[0].figure, tmp_path / "figures", "curves") if file.suffix == ".svg")
    (legend,) = drawings[0].figure.legends
    shown = [text.get_text() for text in legend.get_texts()]
    assert not any(cbook.is_math_text(text) for text in shown)
    plain = {text.replace("\n", "").replace(r"\$", "$") for text in shown}
    assert {"a$b$c", "$\\frac{1}{0}$", "<script>alert(1)<&script>", "under_score_{x}^2 \\alpha", "x" * 200} <= plain
    assert {"two\\nlines\\tand\\x1bmore", "%s {} [b]bold[-b]", "\\u60a8\\u597d ✓", "odd $ dollar \\"} <= plain
    assert "<script>" not in svg.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a$b", r"a\$b"), ("a_b", "a_b"), ("a\nb", r"a\nb"), ("", ""), ("ε α", "ε α"), ("\u202eabc", r"\u202eabc")],
)
def test_literal_text(text, shown):
    assert literal(text) == shown


@pytest.mark.parametrize("text", ["", "short", "a-b_" * 40, "x" * 300, "$" * 100])
def test_wrapping_loses_nothing(text):
    lines = wrapped(text, 20).split("\n")
    assert "".join(lines) == literal(text)
    assert all(len(line.replace(r"\$", "$")) <= 20 for line in lines)


def test_every_model_has_a_look_of_its_own():
    looks = [Look(number) for number in range(280)]
    assert len({(look.colour, str(look.line["linestyle"]), look.marker) for look in looks}) == 280
    # neighbours differ in every respect, so that they are told apart in grey
    assert all(str(one.line) != str(two.line) and one.marker != two.marker for one, two in itertools.pairwise(looks))


@pytest.mark.parametrize("maker", [curves, margins], ids=["curves", "margins"])
def test_twelve_models_are_told_apart_in_grey(maker, tmp_path):
    found = []
    for number in range(12):
        rows = made.rows(40, seed=number)
        found.append(made.stored(tmp_path / str(number), made.record(rows, f"run{number:02}"), rows))
    (drawing,) = (drawing for drawing in built(found) if drawing.name == f"{maker.__name__.rpartition('.')[2]}-digits")
    drawn = [one for one in drawing.figure.axes[0].get_lines() if one.get_label().startswith("run") and len(one.get_xdata()) > 20]
    grey = {(str(one._dash_pattern), one.get_marker()) for one in drawn}
    assert len(drawn) == len(grey) == 12
    (legend,) = drawing.figure.legends
    assert [(str(one._dash_pattern), one.get_marker()) for one in legend.get_lines()] == [
        (str(one._dash_pattern), one.get_marker()) for one in drawn
    ]
    with styled():
        (svg,) = (file for file in save(drawing.figure, tmp_path / "figures", "told") if file.suffix == ".svg")
    assert svg.read_text(encoding="utf-8").count("<use ") > 12 * 5  # and the marks are there


def luminance(colour):
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_no_colour_is_lost_on_white():
    assert all(luminance(colour) < 0.68 for colour in COLOURS)


def labelled(found):
    return [member.label for group in gathered(found).groups for member in group.members]


def test_models_are_named_by_what_tells_them_apart(tmp_path):
    alphas = list(pair(tmp_path))
    assert [re.sub(r"[$\\{}]|mathrm", "", label) for label in labelled(alphas)] == [
        "trades, alpha_train = 0", "trades, alpha_train = 2",
    ]  # fmt: skip
    same = [
        (file, msgspec.structs.replace(record, checkpoint=msgspec.structs.replace(record.checkpoint, alpha_train=2.0)))
        for file, record in alphas
    ]
    assert labelled(same) == ["run0", "run1"]
    moved = [
        (file, msgspec.structs.replace(record, checkpoint=msgspec.structs.replace(record.checkpoint, path=path)))
        for (file, record), path in zip(same, ("a/x/last.safetensors", "b/x/last.safetensors"), strict=True)
    ]
    assert labelled(moved) == ["a/x/last.safetensors", "b/x/last.safetensors"]
    copied = [
        (file, msgspec.structs.replace(record, checkpoint=msgspec.structs.replace(record.checkpoint, path="x/last.safetensors")))
        for file, record in same
    ]
    assert labelled(copied) == [f"x/last.safetensors {record.checkpoint.sha256[:8]}" for _, record in copied]


@pytest.mark.parametrize(
    "changes",
    [
        {"threat": Threat(norm="linf", eps=0.2)},
        {"threat": Threat(norm="l2", eps=0.1)},
        {"attack": AttackFacts(spec="pgd:steps=3", seed=0, restarts=1)},
        {"attack": AttackFacts(spec="pgd:steps=2", seed=0, restarts=5)},
        {"attack": AttackFacts(spec="pgd:steps=2", seed=1, restarts=1)},
        {"dataset": DatasetFacts(name="digits", split="test", n=60, sha256="1")},
        {"dataset": DatasetFacts(name="digits", split="test", n=60, sha256="0", indices=list(range(60)))},
        {"kernel": "tilt"},
    ],
    ids=str,
)
def test_what_cannot_be_compared_shares_no_panel(changes, tmp_path):
    (file, one), (other_file, other) = pair(tmp_path)
    assert len(gathered([(file, one), (other_file, other)]).groups) == 1
    groups = gathered([(file, one), (other_file, msgspec.structs.replace(other, **changes))]).groups
    assert [len(group.members) for group in groups] == [1, 1]
    assert groups[0].facts != groups[1].facts or "sha256" in str(changes)


def test_worst_cases_share_a_panel_where_they_are_of_the_same_attacks(tmp_path):
    (file, one), (other_file, other) = pair(tmp_path)
    first, second = (
        msgspec.structs.replace(
            record, id=f"worst {record.id}", attack=AttackFacts(spec="worst", seed=0, restarts=1, of=[record.id])
        )
        for record in (one, other)
    )
    known = [(file, one), (other_file, other), (file, first), (other_file, second)]
    assert [len(group.members) for group in gathered(known).groups] == [2, 2]
    assert [len(group.members) for group in gathered(known[2:]).groups] == [1, 1]  # nobody knows what they are of


def test_a_model_that_was_evaluated_twice_is_drawn_once(tmp_path):
    rows = made.rows(60)
    little, much = made.record(rows, alphas=made.ALPHAS[:1]), made.record(rows)
    found = [made.stored(tmp_path, record, rows) for record in (much, little)]
    material = gathered(found)
    assert [member.record for group in material.groups for member in group.members] == [much]
    assert ["more than once" in part.text for part in material.left_out] == [True]


def test_damaged_rows_are_left_out_with_the_reason(tmp_path):
    (file, one), (other_file, other) = pair(tmp_path)
    records.rows_path(file).write_bytes(b"nothing")
    records.save_rows(records.rows_path(other_file), {})
    parts = list(walk([(file, one), (other_file, other)], tmp_path / "figures"))
    assert all(isinstance(part, Undrawn) and part.skipped for part in parts)
    assert ["cannot be read" in parts[0].text, "not those of their record" in parts[1].text] == [True, True]


@pytest.mark.parametrize("skill", [-90.0, 90.0], ids=["all wrong", "all right"])
@pytest.mark.parametrize("n", [1, 30])
@pytest.mark.parametrize("alphas", [(), (0.0,), (1e6,)], ids=str)
def test_degenerate_records_are_drawn(n, skill, alphas, tmp_path):
    rows = made.rows(n, skill=skill, alphas=alphas)
    found = [made.stored(tmp_path, made.record(rows, alphas=alphas, asked=made.WITH_BALLS), rows)]
    drawn = {drawing.name for drawing in built(found)}
    expected = {"curves-digits", "worst-case-digits", "margins-digits", "classes-digits-pgd-0.15", "weights-digits-pgd-0.15"}
    assert drawn == (expected if alphas else expected - {"weights-digits-pgd-0.15"})


def test_an_attack_without_margins_is_said(tmp_path):
    whole = made.rows(60)
    bare = {
        name: values for name, values in whole.items() if name in ("label", "index", "clean/prediction", "uniform/prediction")
    }
    found = [made.stored(tmp_path, made.record(bare, alphas=()), bare)]
    first, second, drawn = walk(found, tmp_path / "figures")
    assert ["no A_sa" in first.text, "no worst case" in second.text] == [True, True]
    assert drawn.files[0].name == "classes-digits-pgd-0.15.png"
    clean = {name: values for name, values in bare.items() if not name.startswith("uniform")}
    found = [made.stored(tmp_path, made.record(clean, alphas=(), asked=EvaluateConfig(metrics=("nat",))), clean)]
    assert {"nothing was attacked" in part.text for part in walk(found, tmp_path) if isinstance(part, Undrawn)} == {True}


def test_names_of_files_are_safe(tmp_path):
    rows = made.rows(20)
    record = made.record(rows, dataset="folder:path=/a/../b", attack="my/file.py:Attack", eps=8 / 255, asked=made.WITH_BALLS)
    found = [made.stored(tmp_path, record, rows)]
    assert next(walk(found, tmp_path / "figures")).files[0].name == "curves-folder.png"
    assert untaken(built(found)[2].name, set()) == "weights-folder-Attack-8_255"
    assert untaken("a/b", {"a_b", "a_b-2"}) == "a_b-3"
    assert len(untaken("x" * 500, set())) < 100


def test_the_grid_of_images_is_still_found_here():
    assert callable(figures.attack_grid)


def test_drawn_files_in_one_line():
    assert str(Drawn([Path("a/b.png"), Path("a/b.svg"), Path("a/b.pdf")])) == "a/b.png, .svg, .pdf"
