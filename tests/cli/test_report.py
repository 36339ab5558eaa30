"""wmr report with many records, broken ones, comparisons and the paper."""

import csv
import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from support import synthetic
from support.cli_runner import wmr
from wmr_cli.storage import records
from wmr_cli.storage.records import AttackFacts, Rows

PAPER: dict[str, Any] = {
    "dataset": "mnist",
    "eps": 0.3,
    "attack": "pgd:steps=40,step=0.01",
    "training": {"eps": 0.3, "epochs": 100},
}
FORMATS = ("table", "markdown", "latex", "csv", "json")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two models that meet a row of the paper, one of them trained with two seeds."""
    folder = tmp_path / "runs"
    for seed in range(2):
        synthetic.save_run_record(
            folder,
            synthetic.make_rows(skill=0.4 + 0.01 * seed, seed=seed),
            f"mnist-trades-a2-s{seed}",
            seed=seed,
            **PAPER,
        )
    synthetic.save_run_record(
        folder, synthetic.make_rows(), "mnist-trades-a0-s0", **PAPER, alpha_train=0.0
    )
    return folder


@pytest.mark.parametrize(
    "flags", [(), ("--compare",), ("--paper", "auto"), ("--paper", "all")], ids=" ".join
)
@pytest.mark.parametrize("output", FORMATS)
def test_every_format_shows_the_requested_values(
    runs: Path, tmp_path: Path, output: str, flags: tuple[str, ...]
) -> None:
    result = wmr("report", runs, "--format", output, *flags)
    assert result.stderr == ""
    if output == "json":
        data = json.loads(result.stdout)
        assert len(data if not flags else data["records"]) == 3
    elif output == "csv":
        lines = list(csv.reader(result.stdout.splitlines()))
        assert {len(line) for line in lines} == {len(lines[0])}
    else:
        assert "mnist-trades-a2-s" in result.stdout
        assert ("difference to" in result.stdout.lower()) == ("--compare" in flags)
        assert ("paper: TRADES" in result.stdout) == ("--paper" in flags)
        assert ("CIFAR-10, several attacks" in result.stdout) == ("all" in flags)
    file = tmp_path / "made" / "report"
    wmr("report", runs, "--format", output, *flags, "--out", file, "-q")
    assert file.read_text(encoding="utf-8") == result.stdout


ENDINGS = [
    ("x.tex", "% needs"),
    ("x.md", "| run"),
    ("x.csv", "run,id"),
    ("x.json", "["),
    ("X.TEX", "% needs"),
    ("x.Csv", "run,id"),
    ("x.html", "<!DOCTYPE"),
    ("x.htm", "<!DOCTYPE"),
    ("x.HTML", "<!DOCTYPE"),
    ("x.txt", "defense "),
    ("x", "defense "),
]


@pytest.mark.parametrize(("name", "begins"), ENDINGS)
def test_the_ending_of_a_file_chooses_its_format(
    runs: Path, tmp_path: Path, name: str, begins: str
) -> None:
    wmr("report", runs, "--out", tmp_path / name, "-q")
    assert (tmp_path / name).read_text(encoding="utf-8").startswith(begins)
    wmr("report", runs, "--out", tmp_path / name, "--format", "json", "-q")
    assert json.loads((tmp_path / name).read_text(encoding="utf-8"))


def test_an_unknown_ending_is_refused(runs: Path, tmp_path: Path) -> None:
    result = wmr("report", runs, "--out", tmp_path / "x.docx", status=2)
    assert "x.docx" in result.stderr
    assert "--format" in result.stderr
    assert not (tmp_path / "x.docx").exists()
    wmr("report", runs, "--out", tmp_path / "x.docx", "--format", "csv")


def test_colour_is_for_terminals_not_for_files(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    wmr("report", runs, "--out", tmp_path / "x.txt", "-q")
    assert "\x1b" not in (tmp_path / "x.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["same\x1b[31mred", "two\nlines", "right \u202e left", "bell\x07"])
def test_a_name_cannot_steer_the_terminal_from_a_message(tmp_path: Path, name: str) -> None:
    for skill in (90.0, -90.0):  # weighted accuracies without an interval give a warning
        synthetic.save_run_record(tmp_path, synthetic.make_rows(60, skill=skill), name)
    result = wmr("report", tmp_path, "--compare")
    assert name.encode("unicode_escape").decode() in result.stderr
    assert all(char.isprintable() or char == "\n" for char in result.stderr + result.stdout)
    missing = wmr("report", tmp_path / f"no {name}", status=2).stderr
    assert len(missing.splitlines()) == 2
    assert all(char.isprintable() or char == "\n" for char in missing)


def test_seeds_are_one_line_and_the_best_is_marked(runs: Path) -> None:
    shown = wmr("report", runs).stdout
    rows = [line for line in shown.splitlines() if line.strip().startswith("mnist")]
    assert len(rows) == 4
    assert [row.split()[0] for row in rows] == ["mnist-trades-a0-s0"] * 2 + [
        "mnist-trades-a2-s*"
    ] * 2
    assert all(re.search(r"\d ± \d+\.\d\* \[", row) for row in rows[2:])


def test_the_paper_alone_needs_no_records() -> None:
    for output in FORMATS:
        assert wmr("report", "--paper", "all", "--format", output).stdout
    markdown = wmr("report", "--paper", "all", "--format", "markdown").stdout
    assert len([line for line in markdown.splitlines() if line.startswith("| --- |")]) == 12
    assert len([line for line in markdown.splitlines() if line.startswith("| ")]) == 220 + 2 * 12
    assert len(wmr("report", "--paper", "all", "--format", "csv").stdout.splitlines()) == 221
    data = json.loads(wmr("report", "--paper", "all", "--format", "json").stdout)
    assert sum(len(table["rows"]) for table in data["paper"]["tables"]) == 220


def test_a_table_of_the_paper_is_beside_the_records_and_also_alone(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = wmr("report", runs, "--paper", "T1").stdout
    assert "(T1)" in beside
    assert "T1: MNIST" in beside
    assert "T2: " not in beside
    data = json.loads(wmr("report", runs, "--paper", "T6", "--format", "json").stdout)
    assert {table for one in data["beside_paper"] for table in one["tables"]} == {"T6"}
    assert [table["name"] for table in data["paper"]["tables"]] == ["T6"]
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    for output in FORMATS:
        assert wmr("report", "--paper", "T6", "--format", output).stdout
    assert len(wmr("report", "--paper", "T6", "--format", "csv").stdout.splitlines()) == 10
    refused = wmr("report", "--paper", "T13", status=2).stderr
    assert all(f"T{number}" in refused for number in range(1, 13))


def test_a_warning_names_the_only_condition_that_fails(tmp_path: Path) -> None:
    record = {**PAPER, "alpha_train": 3.0}
    synthetic.save_run_record(tmp_path / "runs", synthetic.make_rows(60), "mine", **record)
    warning = wmr("report", tmp_path / "runs", "--paper", "auto").stderr
    assert warning.startswith("warning: mine: ")
    assert "α_train 3 instead of none, 0.5, 1, 1.5 or 2" in warning
    synthetic.save_run_record(tmp_path / "near", synthetic.make_rows(60), **{**PAPER, "eps": 0.31})
    near = wmr("report", tmp_path / "near", "--paper", "auto")
    assert near.stderr == ""
    assert "ε 0.31 instead of 0.3" in near.stdout


def test_records_without_a_row_in_the_paper_give_a_warning(tmp_path: Path) -> None:
    synthetic.save_run_record(tmp_path / "runs", synthetic.make_rows(60))
    result = wmr("report", tmp_path / "runs", "--paper", "auto")
    assert result.stderr.startswith("warning: ")
    data = json.loads(
        wmr("report", tmp_path / "runs", "--paper", "mnist", "--format", "json").stdout
    )
    assert data["beside_paper"] == []


def test_one_model_cannot_be_compared(tmp_path: Path) -> None:
    synthetic.save_run_record(tmp_path / "runs", synthetic.make_rows(60))
    result = wmr("report", tmp_path / "runs", "--compare")
    assert result.stderr.startswith("warning: ")
    assert (
        json.loads(wmr("report", tmp_path / "runs", "--compare", "--format", "json").stdout)[
            "comparisons"
        ]
        == []
    )


def test_one_csv_is_one_table(runs: Path) -> None:
    refused = wmr("report", runs, "--compare", "--paper", "auto", "--format", "csv", status=2)
    assert "csv" in refused.stderr.lower()
    assert "'mnist'" in wmr("report", "--paper", "mnst", status=2).stderr


@pytest.mark.parametrize(
    "flags",
    [(), ("--compare",), ("--paper", "auto"), ("--alpha-test", "1", "--compare")],
    ids=" ".join,
)
@pytest.mark.parametrize("damage", ["broken", "truncated", "future", "spec"])
def test_a_bad_record_is_named_and_the_rest_is_shown(
    runs: Path, damage: str, flags: tuple[str, ...]
) -> None:
    synthetic.save_run_record(runs, synthetic.make_rows(), "bad", **PAPER, alpha_train=1.0)
    (file,) = (runs / "bad" / "evaluations").glob("*.json")
    text = file.read_text(encoding="utf-8")
    edited = {
        "broken": "{",
        "truncated": text[: len(text) // 2],
        "future": text.replace('"schema": 1', '"schema": 2'),
        "spec": text.replace('"pgd:steps=40,step=0.01"', '"pgd:(("'),
    }
    file.write_text(edited[damage], encoding="utf-8")
    for output in ("table", "json"):
        result = wmr("report", runs, *flags, "--format", output, status=1)
        assert str(file) in result.stderr
        assert "mnist-trades-a2-s" in result.stdout
        assert "bad/last" not in result.stdout


def test_rows_that_cannot_be_read_are_left_out_of_comparisons(runs: Path) -> None:
    synthetic.save_run_record(runs, synthetic.make_rows(), "bad", **PAPER, alpha_train=1.0)
    (rows,) = (runs / "bad" / "evaluations").glob("*.safetensors")
    rows.write_bytes(rows.read_bytes()[:-8])
    result = wmr("report", runs, "--compare", "--format", "json", status=1)
    assert rows.name in result.stderr
    data = json.loads(result.stdout)
    assert len(data["records"]) == 4
    assert {made_of["run"] for made_of in data["comparisons"]} == {"mnist-trades-a2-s*"}
    assert "bad" in wmr("report", runs, status=1).stdout  # to rank, its intervals will do


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a hundred models on the same 10,000 images, with logits."""
    folder = tmp_path_factory.mktemp("hundred")
    for number in range(100):
        given = synthetic.make_rows(10_000, skill=0.002 * number, seed=number, logits=True)
        synthetic.save_run_record(
            folder, given, f"run{number}", training={"lr": 0.001 * (number + 1)}
        )
    return folder


@pytest.mark.parametrize(
    "flags",
    [(), ("--compare", "--format", "json"), ("--format", "csv"), ("--alpha-test", "1,3")],
    ids=" ".join,
)
def test_a_hundred_records_take_seconds(hundred: Path, flags: tuple[str, ...]) -> None:
    started = time.process_time()  # of this process: tests run side by side
    wmr("report", hundred, *flags, "-q")
    assert time.process_time() - started < 10


def spoiled(rows: Rows, name: str, values: np.ndarray) -> Rows:
    return {**rows, name: values}


BAD_ROWS: dict[str, Callable[[Rows], Rows]] = {
    "a margin of nan": lambda rows: spoiled(
        rows, "uniform/margin", rows["uniform/margin"] * np.nan
    ),
    "a loss of nan": lambda rows: spoiled(rows, "uniform/loss", rows["uniform/loss"] * np.nan),
    "no labels": lambda rows: {name: values for name, values in rows.items() if name != "label"},
    "no index": lambda rows: {name: values for name, values in rows.items() if name != "index"},
    "fewer images": lambda rows: {name: values[:50] for name, values in rows.items()},
    "ragged": lambda rows: spoiled(rows, "uniform/margin", rows["uniform/margin"][:-1]),
    "in two dimensions": lambda rows: spoiled(
        rows, "uniform/margin", rows["uniform/margin"][:, None]
    ),
    "fractional labels": lambda rows: spoiled(rows, "label", rows["label"] + 0.5),
}


@pytest.mark.parametrize(
    "flags",
    [(), ("--compare",), ("--alpha-test", "3"), ("--rho", "0.1"), ("--format", "html")],
    ids=" ".join,
)
@pytest.mark.parametrize("spoil", BAD_ROWS.values(), ids=BAD_ROWS)
def test_rows_that_do_not_match_their_record_are_named(
    runs: Path, spoil: Callable[[Rows], Rows], flags: tuple[str, ...]
) -> None:
    rows = synthetic.make_rows(seed=5)
    record = synthetic.save_run_record(runs, rows, "bad", **PAPER)
    file = runs / "bad" / "evaluations" / f"{record.id}.json"
    records.save_rows(records.rows_path(file), spoil(rows))
    result = wmr("report", runs, *flags, status=1)
    assert "mnist-trades-a2-s" in result.stdout
    assert f"{record.id}.safetensors" in "".join(result.stderr.split())


@pytest.mark.parametrize(
    "change",
    [
        {"a_rob": {"value": 0.5, "low": 0.9, "high": 0.1}},
        {"a_nat": {"value": 7.0, "low": 0.0, "high": 1.0}},
        {"config": {"metrics": 5}},
        {"schema": 2, "new": [1]},
        {"new": [1]},
    ],
)
def test_invalid_records_are_named_and_the_rest_is_shown(
    runs: Path,
    change: dict[str, dict[str, float]]
    | dict[str, dict[str, int]]
    | dict[str, list[int]]
    | dict[str, object],
) -> None:
    record = synthetic.save_run_record(runs, synthetic.make_rows(seed=5), "bad", **PAPER)
    file = runs / "bad" / "evaluations" / f"{record.id}.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    result = wmr("report", runs, status=1)
    assert "mnist-trades-a2-s" in result.stdout
    assert file.name in "".join(result.stderr.split())


def test_a_record_may_travel_without_its_rows(runs: Path) -> None:
    next(runs.glob("mnist-trades-a0-s0/evaluations/*.safetensors")).unlink()
    assert wmr("report", runs).stderr == ""
    wmr("report", runs, "--compare", status=1)


def test_a_report_beside_the_records_is_not_read_as_a_record(runs: Path) -> None:
    for folder in (runs, runs / "mnist-trades-a0-s0"):
        wmr("report", folder, "--out", folder / "table.json", "-q")
        assert wmr("report", folder).stderr == ""


def test_a_copied_run_is_shown_once(runs: Path, tmp_path: Path) -> None:
    shown = wmr("report", runs).stdout
    shutil.copytree(runs / "mnist-trades-a0-s0", tmp_path / "runs" / "copy")
    assert wmr("report", runs).stdout == shown


def test_the_worst_of_several_attacks_has_no_dro_loss(runs: Path) -> None:
    rows = synthetic.make_rows(seed=5)
    record = msgspec.structs.replace(
        synthetic.make_record(rows, "worst", **PAPER),
        attack=AttackFacts(spec="worst", seed=0, restarts=1, of=["a", "b"]),
    )
    records.save(runs / "worst" / "evaluations" / f"{record.id}.json", record, rows)
    result = wmr("report", runs / "worst", "--rho", "0.1")
    assert result.stderr.startswith("warning: ")


def test_an_infinite_loss_has_no_dro_loss(tmp_path: Path) -> None:
    rows = synthetic.make_rows()
    synthetic.save_run_record(
        tmp_path, spoiled(rows, "uniform/loss", rows["uniform/loss"] + np.inf)
    )
    result = wmr("report", tmp_path, "--rho", "0.1")
    assert result.stderr.startswith("warning: ")


def test_a_difference_between_lines_gets_a_column(tmp_path: Path) -> None:
    rows = synthetic.make_rows()
    for number, changes in enumerate(({}, {"dataset": "fashion-mnist"})):
        synthetic.save_run_record(tmp_path, rows, f"run{number}", **{**PAPER, **changes})
    shown = wmr("report", tmp_path).stdout
    assert "mnist test" in shown
    assert "fashion-mnist test" in shown


def test_results_that_csv_cannot_hold_give_a_warning(runs: Path) -> None:
    assert wmr("report", runs, "--rho", "0.1", "--format", "csv").stderr.startswith("warning: ")
