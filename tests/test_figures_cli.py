"""Figures as a user meets them: what was drawn is said, and so is what could not be."""

import pytest

import made
from test_cli import wmr
from wmr_cli.storage import records


@pytest.fixture
def folder(tmp_path):
    """One record whose attack stops early: a figure is drawn, others cannot be."""
    rows = made.rows(40)
    bare = {name: rows[name] for name in ("label", "index", "clean/prediction", "uniform/prediction")}
    made.stored(tmp_path / "evaluations", made.record(bare, "odd [b]name", alphas=()), bare)
    return tmp_path


def test_what_was_drawn_is_said_and_what_was_not(folder):
    result = wmr("report", folder, "--figures", folder / "figures", "--format", "json")
    assert result.stdout.startswith("[")
    said = " ".join(result.stderr.split())
    assert f"drew {folder}/figures/classes-digits-pgd-0.15.png, .svg, .pdf" in said
    assert "warning: odd [b]name under pgd:steps=20,step=0.015, ε 0.15: the attack leaves no margins to weigh by" in said
    assert sorted(file.suffix for file in (folder / "figures").iterdir()) == [".pdf", ".png", ".svg"]
    assert wmr("report", folder, "--figures", folder / "figures", "-q").stderr == ""


def test_rows_that_cannot_be_read_are_an_error_at_the_end(folder):
    (rows,) = folder.glob("evaluations/*.safetensors")
    rows.write_bytes(b"")
    result = wmr("report", folder, "--figures", folder / "figures", status=1)
    assert "error: not drawn: the rows" in result.stderr
    assert "odd [b]name" in result.stdout  # the table is there all the same


def test_other_alphas_reach_the_figures(tmp_path, monkeypatch):
    rows = made.rows(40)
    made.stored(tmp_path / "evaluations", made.record(rows), rows)
    seen = []
    monkeypatch.setattr("wmr_cli.cli.drawing.walk", lambda found, folder: seen.extend(found) or ())
    wmr("report", tmp_path, "--alpha-test", "0,7", "--figures", tmp_path / "figures")
    ((_, record),) = seen
    assert [row.alpha_test for row in record.by_alpha] == [0.0, 7.0]


def test_the_papers_own_figures_come_with_its_tables(tmp_path):
    result = wmr("report", "--paper", "all", "--figures", tmp_path)
    assert "T1: MNIST" in result.stdout
    assert sorted(file.name for file in tmp_path.glob("*.png")) == ["paper-figure-3.png", "paper-figure-4.png"]
    assert str(tmp_path / "paper-figure-4.png") in " ".join(result.stderr.split())


def test_a_figure_needs_a_place(folder):
    taken = next(folder.glob("evaluations/*.json"))
    assert "cannot write" in wmr("report", folder, "--figures", taken, status=2).stderr
    assert records.load(taken)
