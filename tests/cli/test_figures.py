"""Figures as a user meets them: what was drawn is said, and so is what could not be."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from support import synthetic
from support.cli_runner import wmr
from wmr_cli.storage import records
from wmr_cli.storage.records import Record


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One record whose attack stops early: a figure is drawn, others cannot be."""
    rows = synthetic.make_rows(40)
    bare = {
        name: rows[name] for name in ("label", "index", "clean/prediction", "uniform/prediction")
    }
    synthetic.save_record(
        tmp_path / "evaluations", synthetic.make_record(bare, "odd [b]name", alphas=()), bare
    )
    return tmp_path


def test_drawn_and_omitted_figures_are_reported(folder: Path) -> None:
    result = wmr("report", folder, "--figures", folder / "figures", "--format", "json")
    assert result.stdout.startswith("[")
    printed = " ".join(result.stderr.split())
    assert f"{folder}/figures/classes-digits-pgd-0.15.png" in printed
    assert "warning: odd [b]name" in printed
    assert sorted(file.suffix for file in (folder / "figures").iterdir()) == [
        ".pdf",
        ".png",
        ".svg",
    ]
    assert wmr("report", folder, "--figures", folder / "figures", "-q").stderr == ""


def test_unreadable_rows_are_an_error_after_the_table(folder: Path) -> None:
    (rows,) = folder.glob("evaluations/*.safetensors")
    rows.write_bytes(b"")
    result = wmr("report", folder, "--figures", folder / "figures", status=1)
    assert rows.name in " ".join(result.stderr.split())
    assert "odd [b]name" in result.stdout  # the table needs no rows


def test_other_alphas_reach_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = synthetic.make_rows(40)
    synthetic.save_record(tmp_path / "evaluations", synthetic.make_record(rows), rows)
    seen: list[tuple[Path, Record]] = []

    def keep(found: Iterable[tuple[Path, Record]], *_: object, **__: object) -> tuple[()]:
        seen.extend(found)
        return ()

    monkeypatch.setattr("wmr_cli.cli.output.draw_figures", keep)
    wmr("report", tmp_path, "--alpha-test", "0,7", "--figures", tmp_path / "figures")
    ((_, record),) = seen
    assert [row.alpha_test for row in record.by_alpha] == [0.0, 7.0]


def test_the_papers_own_figures_come_with_its_tables(tmp_path: Path) -> None:
    result = wmr("report", "--paper", "all", "--figures", tmp_path)
    assert "T1: MNIST" in result.stdout
    assert sorted(file.name for file in tmp_path.glob("*.png")) == [
        "paper-figure-3.png",
        "paper-figure-4.png",
    ]
    assert str(tmp_path / "paper-figure-4.png") in " ".join(result.stderr.split())


def test_figures_cannot_replace_a_file(folder: Path) -> None:
    taken = next(folder.glob("evaluations/*.json"))
    assert taken.name in " ".join(
        wmr("report", folder, "--figures", taken, status=2).stderr.split()
    )
    assert records.load(taken)
