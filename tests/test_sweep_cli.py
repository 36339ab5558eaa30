"""wmr sweep as a user meets it, as far as nothing is trained."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

import made
from wmr_cli.cli import app
from wmr_cli.storage import ledgers
from wmr_cli.workflows.shapes import Answer, Answers
from wmr_cli.workflows.study import read_study

TEXT = """
folder = "runs"
[train]
epochs = 4
[grid]
seed = [0, 1]
[report]
figures = ""
"""


def wmr(*args: object, status: int = 0):
    result = CliRunner().invoke(app, [str(arg) for arg in args], prog_name="wmr")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == status, result.stderr
    return result


@pytest.fixture
def study(registry):
    """Two runs, the second of them done."""
    Path("study.toml").write_text(TEXT)
    made_of = read_study(Path("study.toml"), registry)
    path, rows = made_of.path(made_of.runs[1]), made.rows(20)
    _, record = made.stored(path / "evaluations", made.record(rows), rows)
    evaluations = {made_of.evaluations[0].key: [record.id]}
    ledgers.save(path, ledgers.Ledger(settings=made_of.runs[1].config, weights="", evaluations=evaluations))
    return made_of


def test_a_rehearsal_says_where_every_run_stands_and_what_is_left(study, monkeypatch):
    asked = []

    def measured(requests, threads):
        asked.extend(requests)
        return Answers([Answer(100.0, [30.0]) for _ in requests], 0.0), 1.0

    monkeypatch.setattr("wmr_cli.workflows.shapes._measured", measured)
    log = study.path(study.runs[0]) / "log.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text('{"epoch": 1}\n')
    said = wmr("sweep", "study.toml", "--dry-run", "--jobs", 1).stdout
    assert "digits-trades-a2-s0 broken off after epoch 1 76 s 31 s" in " ".join(said.split())  # 1 + 3/4 of 100, and 1 + 30
    assert "digits-trades-a2-s1 done - -" in " ".join(said.split())
    assert "2 runs, 1 done; about 1.8 min with 1 at a time" in said
    assert len(asked) == 1


def test_runs_of_one_shape_are_measured_once(monkeypatch):
    Path("study.toml").write_text("[grid]\nseed = [0, 1, 2]\nalpha = [0, 1]\nbatch_size = [32, 64]\n")
    asked = []

    def measured(requests, threads):
        asked.extend(requests)
        return Answers([Answer(problem="there are no data", hint="put them there") for _ in requests], 0.0), 1.0

    monkeypatch.setattr("wmr_cli.workflows.shapes._measured", measured)
    said = wmr("sweep", "study.toml", "--dry-run", status=1).stderr
    assert [request.config.batch_size for request in asked] == [32, 64]
    assert said.count("there are no data") == 12


@pytest.mark.parametrize(
    ("text", "flags", "said"),
    [
        (TEXT, ["--run", "digits-trades-a2-s7"], "the study has no run 'digits-trades-a2-s7'"),
        (TEXT + "out = 'report.docx'", [], "the ending of report.docx says no format"),
        (TEXT.replace("epochs", "epoch"), [], "study.toml: grid: there is no setting 'epoch'"),
        (TEXT + "[slurm]\npartition = 'gpu'", ["--slurm"], "partition"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_begins(text, flags, said):
    Path("study.toml").write_text(text)
    assert said in wmr("sweep", "study.toml", *flags, status=2).stderr
    assert not list(Path("runs").glob("*/*"))


@pytest.mark.parametrize(
    ("machine", "jobs"),
    [("", 1), ("device = 'cpu'", 4), ("device = 'cpu'\nthreads = 3", 1), ("device = ['cuda:0', 'cuda:1']", 2)],
)
def test_how_many_run_at_once_is_for_the_study_to_say(registry, monkeypatch, machine, jobs):
    monkeypatch.setattr("wmr_cli.workflows.study.cores", lambda: 4)
    Path("study.toml").write_text(f"[machine]\n{machine}\n")
    assert read_study(Path("study.toml"), registry).machine.jobs == jobs


def test_failures_are_told_even_where_the_report_fails(study, monkeypatch):
    log = study.path(study.runs[0]) / "log.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text("damaged\n")
    (study.folder / "report.md").mkdir()
    said = wmr("sweep", "study.toml", "--jobs", 1, status=2).stderr
    assert "error: digits-trades-a2-s0: runs/digits-trades-a2-s0/log.jsonl cannot be read" in said
    assert "cannot write runs/report.md" in said
