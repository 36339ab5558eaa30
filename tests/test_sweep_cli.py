"""wmr sweep as a user meets it, as far as nothing is trained."""

import itertools
import json
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import made
from wmr_cli.cli import app
from wmr_cli.config import EvaluateConfig, resolve
from wmr_cli.errors import BadInput, BrokenContract
from wmr_cli.storage import ledgers
from wmr_cli.storage.runs import RunFolder
from wmr_cli.workflows import rehearsal
from wmr_cli.workflows.shapes import Answer, Answers, Request
from wmr_cli.workflows.study_file import MAX_RUNS, read_study

TEXT = """
folder = "runs"
[train]
epochs = 4
[grid]
seed = [0, 1]
[report]
figures = ""
"""
SLURM = "[slurm]\ncluster = 'local'\ntimeout_minutes = 9\n"


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


def test_a_rehearsal_of_jobs_asks_nothing_of_this_machine(study):
    Path("study.toml").write_text(f"{TEXT}[machine]\ndevice = 'cuda:7'\n{SLURM.replace('utes', '')}")
    said = " ".join(wmr("sweep", "study.toml", "--slurm", "--dry-run").stdout.split())
    assert "digits-trades-a2-s0 to do - -" in said
    assert "2 runs, 1 done; the settings of Slurm are right" in said


def test_runs_that_are_known_by_their_records_alone_are_told(study):
    Path("study.toml").write_text(f'keep = "kept"\n{TEXT}')
    shutil.move(study.path(study.runs[1]), Path("kept") / study.runs[1].name)
    said = wmr("sweep", "study.toml", "--run", study.runs[1].name).stderr
    assert "1 of 1 runs are done by their records in kept; to carry them out yourself, copy study.toml to another folder" in said
    study.path(study.runs[1]).mkdir()
    assert "by their records" not in wmr("sweep", "study.toml", "--run", study.runs[1].name).stderr


def pretended(monkeypatch, *, problem: str = "", epochs: int = 4) -> list[str]:
    """Commands that are done at once, and what the rehearsal finds; the commands that were begun."""
    begun = []

    class Done:
        status = 0

        def __init__(self, command, log, *, threads):
            begun.append(command.words[0])
            if command.words[0] == "train":
                folder = RunFolder(Path(command.words[command.words.index("--out") + 1]))
                made.stored_weights(folder.last)
                folder.write_log([{"epoch": epochs}])
            else:
                rows = made.rows(20)
                _, record = made.stored(Path(command.words[1]).parent / "evaluations", made.record(rows), rows)
                command.output.write_text(json.dumps([{"id": record.id}]))

        def failure(self): ...

    def measured(requests, threads):
        assert not any(request.is_timed for request in requests)
        return Answers([Answer(problem=problem) for _ in requests], 0.0), 0.0

    monkeypatch.setattr("wmr_cli.workflows.sweep.Child", Done)
    monkeypatch.setattr("wmr_cli.workflows.shapes._measured", measured)
    return begun


def test_a_mistake_in_an_evaluation_is_told_before_anything_is_trained(study, monkeypatch):
    begun = pretended(monkeypatch, problem="attack 'pgd' has no 'stepz'")
    said = wmr("sweep", "study.toml", status=1)
    assert begun == []
    assert "error: digits-trades-a2-s0: attack 'pgd' has no 'stepz'" in said.stderr
    assert "[2/2] digits-trades-a2-s1: done before" in said.stderr
    assert "A\\_rob" in Path("runs/report.md").read_text()  # the others have their report


def test_only_runs_that_are_to_be_trained_are_looked_at_each_by_its_own_settings(monkeypatch):
    Path("study.toml").write_text("folder = 'runs'\n[train]\nepochs = 4\n[grid]\nalpha = [1, 2]\nseed = [0, 1]\n")
    asked = []

    def measured(requests, threads):
        asked.extend(request.config.alpha for request in requests)
        return Answers([Answer(problem="too much" if request.config.alpha == 2 else "") for request in requests], 0.0), 0.0

    begun = pretended(monkeypatch)
    monkeypatch.setattr("wmr_cli.workflows.shapes._measured", measured)
    said = wmr("sweep", "study.toml", status=1).stderr
    assert asked == [1.0, 2.0]  # seeds are alike
    assert begun.count("train") == 2
    assert said.count("warning: digits-trades-a2-s") == 2
    asked.clear()
    shutil.rmtree("runs/digits-trades-a1-s0/evaluations")
    wmr("sweep", "study.toml", status=1)
    assert asked == [2.0]  # the first is trained, and its evaluation says for itself what is wrong


def test_a_rehearsal_that_breaks_stops_nothing(monkeypatch):
    Path("study.toml").write_text(TEXT)
    begun = pretended(monkeypatch)

    def broken(requests, threads):
        raise BrokenContract("the rehearsal failed: killed")

    monkeypatch.setattr("wmr_cli.workflows.shapes._measured", broken)
    wmr("sweep", "study.toml")
    assert begun.count("train") == 2


@pytest.mark.parametrize(
    ("evaluation", "said"),
    [
        ({}, ""),
        ({"split": "tset"}, "the data set has no split 'tset'"),
        ({"attacks": ("pgd:stepz=3",)}, "attack 'pgd' has no 'stepz'"),
    ],
)
def test_the_rehearsal_builds_everything_and_does_nothing(registry, evaluation, said, monkeypatch):
    monkeypatch.setattr("wmr_cli.workflows.rehearsal.estimate", None)  # nobody asks for it
    request = Request(resolve({"epochs": 1}), [EvaluateConfig(), EvaluateConfig(**evaluation)], "cpu", None, False, "data", False)
    assert rehearsal.measured(request, registry).problem == said


def test_the_time_that_is_left_counts_what_was_there(monkeypatch):
    Path("study.toml").write_text(TEXT.replace("[0, 1]", "[0, 1, 2]"))
    pretended(monkeypatch)
    log = Path("runs/digits-trades-a2-s0/log.jsonl")
    log.parent.mkdir(parents=True)
    log.write_text('{"epoch": 3}\n')  # of 4: two of its five parts are left, and twelve in all
    clock = itertools.count(0, 60.0)  # looked at once in the beginning, and once at the end of each run
    monkeypatch.setattr("wmr_cli.cli.sweep.time", SimpleNamespace(monotonic=lambda: next(clock)))
    said = wmr("sweep", "study.toml", "--jobs", 1).stderr
    assert "[1/3] digits-trades-a2-s0: done, about 5.0 min left" in said  # 2 parts in one minute, 10 are left
    assert "[2/3] digits-trades-a2-s1: done, about 86 s left" in said  # 7 parts in two minutes, 5 are left
    assert "[3/3] digits-trades-a2-s2: done\n" in said


def test_a_study_without_evaluations_wants_no_report(monkeypatch):
    Path("study.toml").write_text("evaluate = []\n" + TEXT)
    begun = pretended(monkeypatch)
    assert "nothing to report" not in wmr("sweep", "study.toml").stderr
    assert begun == ["train", "train"]


def test_an_evaluation_of_no_run_is_warned_of(study):
    Path("study.toml").write_text(TEXT + "[[evaluate]]\n[[evaluate]]\nonly = { alpha = 7 }\n")
    assert "evaluate 2: no run is as its `only` says" in wmr("sweep", "study.toml", "--run", "digits-trades-a2-s1").stderr


def test_runs_of_one_shape_are_measured_once(monkeypatch):
    Path("study.toml").write_text("[grid]\nseed = [0, 1, 2]\nalpha = [0, 1]\nbatch_size = [32, 64]\n")
    asked = []

    def measured(requests, threads):
        asked.extend(requests)
        return Answers([Answer(problem="there are no data", hint="put them there") for _ in requests], 0.0), 1.0

    monkeypatch.setattr("wmr_cli.workflows.shapes._measured", measured)
    said = wmr("sweep", "study.toml", "--dry-run", status=1).stderr
    assert [request.config.batch_size for request in asked] == [32, 64]
    assert said.count("error:") == 1
    assert "and 11 other runs: there are no data" in said


@pytest.mark.parametrize(
    ("text", "flags", "said"),
    [
        (TEXT, ["--run", "digits-trades-a2-s7"], "the study has no run 'digits-trades-a2-s7'"),
        (TEXT + "out = 'report.docx'", [], "the ending of report.docx says no format"),
        (TEXT.replace("epochs", "epoch"), [], "study.toml, [train]: there is no setting 'epoch'"),
        (TEXT + SLURM, ["--slurm"], "[slurm]: Unknown executor 'timeout' in parameter 'timeout_minutes'.\nhint"),
        (TEXT + SLURM, ["--slurm", "--dry-run"], "[slurm]: Unknown executor 'timeout' in parameter 'timeout_minutes'.\nhint"),
        (TEXT + SLURM.replace("utes = 9", " = '9'"), ["--slurm", "--dry-run"], '[slurm]: Parameter "timeout_min" expected type'),
        (TEXT + "[slurm]\ncluster = 'slumr'", ["--slurm", "--dry-run"], 'cluster = "local"'),
        (TEXT + "[slurm]\ncluster = []", ["--slurm", "--dry-run"], "[slurm]: cluster: expected text"),
        (TEXT + "[slurm]\ncluster = ''", ["--slurm", "--dry-run"], "[slurm]: cluster is empty"),
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
    (study.folder / "logs").mkdir()
    (study.folder / "logs" / ".wmr-study").touch()  # a sweep has been here
    said = wmr("sweep", "study.toml", "--jobs", 1, status=2).stderr
    assert "error: digits-trades-a2-s0: runs/digits-trades-a2-s0/log.jsonl cannot be read" in said
    assert "cannot write runs/report.md" in said


@pytest.mark.parametrize(
    ("text", "flags", "problem"),
    [
        ("folder = ''", [], "study.toml: folder: the path is empty"),
        ("keep = ''", [], "study.toml: keep: the path is empty"),
        ('folder = "a\\u0000b"', [], "contains a NUL character"),
        (f"folder = '{'a' * 300}'", [], "of 300 characters is too long"),
        ("[report]\nout = ['', 'report.md']", [], "[report]: out: the path is empty"),
        (f"[report]\nfigures = '{'a' * 300}'", [], "[report]: figures: the path 'aaaa"),
        (f"[grid]\naugment = '{'crop:4,' * 60}flip'", [], "the name of a run has"),
        ("[machine]\nsave_minutes = 1e300", [], "[machine]: save_minutes"),
        ("[machine]\nsave_minutes = inf", [], "[machine]: save_minutes"),
        (f"[machine]\ndevices = {'9' * 30}", [], "[machine]: devices"),
        (f"[machine]\nthreads = {'9' * 30}", [], "[machine]: threads"),
        (f"[evaluate]\nseed = {'9' * 30}", [], "evaluate: seed"),
        (f"[evaluate]\nlimit = {'9' * 30}", [], "evaluate: limit"),
        (f"[train]\nepochs = {'9' * 30}", [], "[train]: epochs"),
        (f"[train]\nmilestones = [{'9' * 30}]", [], "[train]: milestones"),
        ("x = " + "[" * 5000 + "]" * 5000, [], "nested too deeply"),
        (f"[grid]\nseed = {list(range(1000))}\nsplit_seed = {list(range(1000))}", ["--dry-run"], "make 1,000,000 runs"),
        (f"[[grid]]\nseed = {list(range(6000))}\n" * 2, [], "make 12,000 runs, and a study has at most 10,000"),
    ],
)
def test_a_study_that_cannot_be_used_is_refused_with_one_error_and_one_hint(text, flags, problem):
    Path("study.toml").write_text(text)
    printed = wmr("sweep", "study.toml", *flags, "--quiet", status=2).stderr
    assert problem in printed
    assert [line.partition(":")[0] for line in printed.splitlines()] == ["error", "hint"]
    assert not Path("runs").exists()


def test_a_grid_that_is_too_large_is_refused_before_any_run_is_resolved(monkeypatch, registry):
    monkeypatch.setattr("wmr_cli.workflows.study_file._resolved", None)
    Path("study.toml").write_text(
        "\n".join(["[grid]", *(f"{name} = {list(range(1, 1001))}" for name in ("seed", "epochs", "steps"))])
    )
    with pytest.raises(BadInput, match="1,000,000,000 runs") as caught:
        read_study(Path("study.toml"), registry)
    assert "split" in caught.value.hint


def test_the_largest_study_is_read_in_seconds(registry):
    Path("study.toml").write_text(f"[grid]\nseed = {list(range(1000))}\nalpha = {list(range(10))}\n")
    began = time.process_time()
    assert len(read_study(Path("study.toml"), registry).runs) == MAX_RUNS
    assert time.process_time() - began < 10


def test_a_rehearsal_prints_what_it_does_and_how_far_it_is(monkeypatch):
    Path("study.toml").write_text("[grid]\nbatch_size = [8, 16, 32, 64]\n")
    parts = []

    def measured(requests, threads):
        parts.append(len(requests))
        return Answers([Answer(1.0, [1.0]) for _ in requests], 2.0 * len(requests)), 1.0

    monkeypatch.setattr("wmr_cli.workflows.shapes._measured", measured)
    printed = wmr("sweep", "study.toml", "--dry-run").stderr.splitlines()
    assert printed[:2] == ["reading study.toml", "4 runs; looking where each stands"]
    assert "measuring shape 1 of 4: " in printed[2]
    assert printed[2].endswith("batch 8")
    assert "measuring shape 4 of 4: " in printed[4]
    assert parts == [1, 2, 1]  # as many as take four times as long as the start of a process
    assert wmr("sweep", "study.toml", "--dry-run", "--quiet").stderr == ""


def test_a_sweep_keeps_no_place_for_jobs_that_no_run_needs(study, monkeypatch):
    pretended(monkeypatch)
    wmr("sweep", "study.toml", "--jobs", 2**31 - 1)


def test_a_sweep_with_nothing_to_report_ends_with_an_error_and_a_hint(monkeypatch):
    Path("study.toml").write_text(TEXT)
    pretended(monkeypatch)
    monkeypatch.setattr("wmr_cli.workflows.sweep.record_files", lambda study, run: [])
    printed = wmr("sweep", "study.toml", status=1).stderr
    assert "error: there is nothing to report\nhint: " in printed
