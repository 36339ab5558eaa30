"""`wmr sweep` at the command line, with fake training and evaluation."""

import itertools
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from support import synthetic
from wmr_cli.cli import app
from wmr_cli.config import EvaluateConfig, resolve
from wmr_cli.errors import BadInput, BrokenContract
from wmr_cli.registry import Registry
from wmr_cli.storage.runs import RunFolder
from wmr_cli.sweeps import cost_probe, ledger
from wmr_cli.sweeps.dry_run import ProbeReport, ProbeRequest, ProbeResult
from wmr_cli.sweeps.process import ChildCommand, CommandResult
from wmr_cli.sweeps.study import MAX_RUNS, Study, read_study

TEXT = """
folder = "runs"
[train]
epochs = 4
[grid]
seed = [0, 1]
[report]
figures = ""
"""
Requests = Sequence[ProbeRequest]
SLURM = "[slurm]\ncluster = 'local'\ntimeout_minutes = 9\n"


def wmr(*args: object, status: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(arg) for arg in args], prog_name="wmr")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == status, result.stderr
    return result


@pytest.fixture
def study(registry: Registry) -> Study:
    """Two runs, the second of them done."""
    Path("study.toml").write_text(TEXT)
    study = read_study(Path("study.toml"), registry)
    path, rows = study.path(study.runs[1]), synthetic.make_rows(20)
    _, record = synthetic.save_record(path / "evaluations", synthetic.make_record(rows), rows)
    evaluations = {study.evaluations[0].key: [record.id]}
    ledger.save_ledger(
        path, ledger.Ledger(settings=study.runs[1].config, weights="", evaluations=evaluations)
    )
    return study


def test_a_dry_run_lists_every_run_and_the_remaining_time(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    probed: list[ProbeRequest] = []

    def probe(requests: Requests, threads: int) -> tuple[ProbeReport, float]:
        probed.extend(requests)
        results = [ProbeResult(training=100.0, evaluations=[30.0]) for _ in requests]
        return ProbeReport(results=results, seconds=0.0), 1.0

    monkeypatch.setattr("wmr_cli.sweeps.dry_run.probe", probe)
    log = study.path(study.runs[0]) / "log.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text('{"epoch": 1}\n')
    said = wmr("sweep", "study.toml", "--dry-run", "--jobs", 1).stdout
    assert "digits-trades-a2-s0 interrupted after epoch 1 76 s 31 s" in " ".join(
        said.split()
    )  # 1 + 3/4 of 100, and 1 + 30
    assert "digits-trades-a2-s1 done - -" in " ".join(said.split())
    assert "2 runs, 1 done; about 1.8 min with 1 at a time" in said
    assert len(probed) == 1


def test_a_dry_run_of_slurm_jobs_measures_nothing_on_this_machine(study: Study) -> None:
    Path("study.toml").write_text(
        f"{TEXT}[machine]\ndevice = 'cuda:7'\n{SLURM.replace('utes', '')}"
    )
    said = " ".join(wmr("sweep", "study.toml", "--slurm", "--dry-run").stdout.split())
    assert "digits-trades-a2-s0 to do - -" in said
    assert "2 runs, 1 done" in said


def test_runs_known_from_stored_records_are_reported(study: Study) -> None:
    Path("study.toml").write_text(f'keep = "kept"\n{TEXT}')
    shutil.move(study.path(study.runs[1]), Path("kept") / study.runs[1].name)
    said = wmr("sweep", "study.toml", "--run", study.runs[1].name).stderr
    assert "records in kept" in said
    study.path(study.runs[1]).mkdir()
    assert "records in kept" not in wmr("sweep", "study.toml", "--run", study.runs[1].name).stderr


def fake_commands(
    monkeypatch: pytest.MonkeyPatch, *, error: str = "", epochs: int = 4
) -> list[str]:
    """Replace commands by ones that are done at once, and the probe by one that finds `error`.

    Return a list that grows by the name of every command that is started.
    """
    started: list[str] = []

    class FakeProcess:
        status = 0

        def __init__(self, command: ChildCommand, log: Path, *, threads: int) -> None:
            name = command.arguments[0]
            started.append(name)
            self.record_ids: list[str] = []
            if name == "train":
                out = command.arguments[command.arguments.index("--out") + 1]
                folder = RunFolder(Path(out))
                synthetic.save_weights(folder.last)
                folder.write_log([{"epoch": epochs}])
            else:
                rows = synthetic.make_rows(20)
                evaluations = Path(command.arguments[1]).parent / "evaluations"
                _, record = synthetic.save_record(evaluations, synthetic.make_record(rows), rows)
                self.record_ids = [record.id]

        def read_result(self) -> CommandResult:
            return CommandResult(status=0, record_ids=self.record_ids)

    def probe(requests: Requests, threads: int) -> tuple[ProbeReport, float]:
        assert not any(request.is_timed for request in requests)
        return ProbeReport(results=[ProbeResult(error=error) for _ in requests], seconds=0.0), 0.0

    monkeypatch.setattr("wmr_cli.sweeps.runner.ChildProcess", FakeProcess)
    monkeypatch.setattr("wmr_cli.sweeps.dry_run.probe", probe)
    return started


def test_an_error_in_an_evaluation_is_reported_before_training(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = fake_commands(monkeypatch, error="attack 'pgd' has no 'stepz'")
    said = wmr("sweep", "study.toml", status=1)
    assert started == []
    assert "digits-trades-a2-s0" in said.stderr
    assert "attack 'pgd' has no 'stepz'" in said.stderr
    assert "[2/2] digits-trades-a2-s1" in said.stderr
    assert "A\\_rob" in Path("runs/report.md").read_text()  # the others have their report


def test_only_untrained_runs_are_checked_each_with_its_own_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("study.toml").write_text(
        "folder = 'runs'\n[train]\nepochs = 4\n[grid]\nalpha = [1, 2]\nseed = [0, 1]\n"
    )
    probed: list[float | None] = []

    def probe(requests: Requests, threads: int) -> tuple[ProbeReport, float]:
        alphas = [request.config.alpha for request in requests]
        probed.extend(alphas)
        results = [ProbeResult(error="too much" if alpha == 2 else "") for alpha in alphas]
        return ProbeReport(results=results, seconds=0.0), 0.0

    started = fake_commands(monkeypatch)
    monkeypatch.setattr("wmr_cli.sweeps.dry_run.probe", probe)
    said = wmr("sweep", "study.toml", status=1).stderr
    assert probed == [1.0, 2.0]  # one seed stands for all
    assert started.count("train") == 2
    assert said.count("warning: digits-trades-a2-s") == 2
    probed.clear()
    shutil.rmtree("runs/digits-trades-a1-s0/evaluations")
    wmr("sweep", "study.toml", status=1)
    assert probed == [2.0]  # a trained run reports errors of its evaluation itself


def test_a_failing_probe_does_not_stop_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("study.toml").write_text(TEXT)
    started = fake_commands(monkeypatch)

    def fail(requests: Requests, threads: int) -> tuple[ProbeReport, float]:
        raise BrokenContract("the dry run failed: killed")

    monkeypatch.setattr("wmr_cli.sweeps.dry_run.probe", fail)
    wmr("sweep", "study.toml")
    assert started.count("train") == 2


@pytest.mark.parametrize(
    ("evaluation", "name"),
    [({}, ""), ({"split": "tset"}, "tset"), ({"attacks": ("pgd:stepz=3",)}, "stepz")],
)
def test_a_probe_without_timing_builds_everything_and_measures_nothing(
    registry: Registry, evaluation: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wmr_cli.sweeps.cost_probe.estimate", None)  # must not be called
    request = ProbeRequest(
        config=resolve({"epochs": 1}),
        evaluations=[EvaluateConfig(), EvaluateConfig(**evaluation)],
        device="cpu",
        devices=None,
        compile=False,
        data_dir="data",
        is_timed=False,
    )
    found = cost_probe.answer_request(request, registry).error
    assert name in found
    assert bool(found) == bool(name)


def test_the_remaining_time_does_not_count_earlier_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("study.toml").write_text(TEXT.replace("[0, 1]", "[0, 1, 2]"))
    fake_commands(monkeypatch)
    log = Path("runs/digits-trades-a2-s0/log.jsonl")
    log.parent.mkdir(parents=True)
    log.write_text('{"epoch": 3}\n')  # of 4: two of its five parts are left, and twelve in all
    clock = itertools.count(
        0, 60.0
    )  # looked at once in the beginning, and once at the end of each run
    monkeypatch.setattr("wmr_cli.cli.sweep.time", SimpleNamespace(monotonic=lambda: next(clock)))
    said = wmr("sweep", "study.toml", "--jobs", 1).stderr
    first, second, third = (line for line in said.splitlines() if re.search(r"s\d: done", line))
    assert "5.0 min" in first  # 2 parts in one minute, 10 are left
    assert "86 s" in second  # 7 parts in two minutes, 5 are left
    assert not re.search(r"\d (s|min)\b", third)


def test_a_study_without_evaluations_makes_no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("study.toml").write_text("evaluate = []\n" + TEXT)
    started = fake_commands(monkeypatch)
    assert "report" not in wmr("sweep", "study.toml").stderr
    assert started == ["train", "train"]


def test_an_evaluation_that_matches_no_run_is_a_warning(study: Study) -> None:
    Path("study.toml").write_text(TEXT + "[[evaluate]]\n[[evaluate]]\nonly = { alpha = 7 }\n")
    assert "evaluate 2" in wmr("sweep", "study.toml", "--run", "digits-trades-a2-s1").stderr


def test_runs_with_the_same_cost_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("study.toml").write_text(
        "[grid]\nseed = [0, 1, 2]\nalpha = [0, 1]\nbatch_size = [32, 64]\n"
    )
    probed: list[ProbeRequest] = []

    def probe(requests: Requests, threads: int) -> tuple[ProbeReport, float]:
        probed.extend(requests)
        result = ProbeResult(error="there are no data", hint="put them there")
        return ProbeReport(results=[result] * len(requests), seconds=0.0), 1.0

    monkeypatch.setattr("wmr_cli.sweeps.dry_run.probe", probe)
    said = wmr("sweep", "study.toml", "--dry-run", status=1).stderr
    assert [request.config.batch_size for request in probed] == [32, 64]
    assert said.count("error:") == 1
    assert "11" in said
    assert "there are no data" in said


@pytest.mark.parametrize(
    ("text", "flags", "named"),
    [
        (TEXT, ["--run", "digits-trades-a2-s7"], "'digits-trades-a2-s7'"),
        (TEXT + "out = 'report.docx'", [], "report.docx"),
        (TEXT.replace("epochs", "epoch"), [], "'epoch'"),
        (
            TEXT + SLURM,
            ["--slurm"],
            "[slurm]: ",
        ),
        (
            TEXT + SLURM,
            ["--slurm", "--dry-run"],
            "[slurm]: ",
        ),
        (
            TEXT + SLURM.replace("utes = 9", " = '9'"),
            ["--slurm", "--dry-run"],
            "[slurm]: ",
        ),
        (TEXT + "[slurm]\ncluster = 'slumr'", ["--slurm", "--dry-run"], "cluster"),
        (
            TEXT + "[slurm]\ncluster = []",
            ["--slurm", "--dry-run"],
            "[slurm]: cluster",
        ),
        (TEXT + "[slurm]\ncluster = ''", ["--slurm", "--dry-run"], "[slurm]: cluster"),
    ],
)
def test_invalid_input_is_refused_before_anything_starts(
    text: str, flags: list[str], named: str
) -> None:
    Path("study.toml").write_text(text)
    assert named in wmr("sweep", "study.toml", *flags, status=2).stderr
    assert not list(Path("runs").glob("*/*"))


@pytest.mark.parametrize(
    ("machine", "jobs"),
    [
        ("", 1),
        ("device = 'cpu'", 4),
        ("device = 'cpu'\nthreads = 3", 1),
        ("device = ['cuda:0', 'cuda:1']", 2),
    ],
)
def test_the_study_sets_how_many_runs_are_active(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, machine: str, jobs: int
) -> None:
    monkeypatch.setattr("wmr_cli.sweeps.study.count_usable_cores", lambda: 4)
    Path("study.toml").write_text(f"[machine]\n{machine}\n")
    assert read_study(Path("study.toml"), registry).machine.default_jobs == jobs


def test_failures_are_printed_even_if_the_report_fails(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = study.path(study.runs[0]) / "log.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text("damaged\n")
    (study.folder / "report.md").mkdir()
    (study.folder / "logs").mkdir()
    (study.folder / "logs" / ".wmr-study").touch()  # a sweep has been here
    said = wmr("sweep", "study.toml", "--jobs", 1, status=2).stderr
    assert "runs/digits-trades-a2-s0/log.jsonl" in said
    assert "runs/report.md" in said


@pytest.mark.parametrize(
    ("text", "flags", "problem"),
    [
        ("folder = ''", [], "study.toml: folder"),
        ("keep = ''", [], "study.toml: keep"),
        ('folder = "a\\u0000b"', [], "folder"),
        (f"folder = '{'a' * 300}'", [], "folder"),
        ("[report]\nout = ['', 'report.md']", [], "[report]: out"),
        (f"[report]\nfigures = '{'a' * 300}'", [], "[report]: figures"),
        (f"[grid]\naugment = '{'crop:4,' * 60}flip'", [], ""),
        ("[machine]\nsave_minutes = 1e300", [], "[machine]: save_minutes"),
        ("[machine]\nsave_minutes = inf", [], "[machine]: save_minutes"),
        (f"[machine]\ndevices = {'9' * 30}", [], "[machine]: devices"),
        (f"[machine]\nthreads = {'9' * 30}", [], "[machine]: threads"),
        (f"[evaluate]\nseed = {'9' * 30}", [], "evaluate: seed"),
        (f"[evaluate]\nlimit = {'9' * 30}", [], "evaluate: limit"),
        (f"[train]\nepochs = {'9' * 30}", [], "[train]: epochs"),
        (f"[train]\nmilestones = [{'9' * 30}]", [], "[train]: milestones"),
        ("x = " + "[" * 5000 + "]" * 5000, [], "study.toml"),
        (
            f"[grid]\nseed = {list(range(1000))}\nsplit_seed = {list(range(1000))}",
            ["--dry-run"],
            "1,000,000",
        ),
        (
            f"[[grid]]\nseed = {list(range(6000))}\n" * 2,
            [],
            "12,000",
        ),
    ],
)
def test_a_study_that_cannot_be_used_is_refused_with_one_error_and_one_hint(
    text: str, flags: list[str], problem: str
) -> None:
    Path("study.toml").write_text(text)
    printed = wmr("sweep", "study.toml", *flags, "--quiet", status=2).stderr
    assert problem in printed
    assert [line.partition(":")[0] for line in printed.splitlines()] == ["error", "hint"]
    assert not Path("runs").exists()


def test_a_grid_that_is_too_large_is_refused_before_any_run_is_resolved(
    monkeypatch: pytest.MonkeyPatch, registry: Registry
) -> None:
    monkeypatch.setattr("wmr_cli.sweeps.study._make_run", None)
    Path("study.toml").write_text(
        "\n".join(
            [
                "[grid]",
                *(f"{name} = {list(range(1, 1001))}" for name in ("seed", "epochs", "steps")),
            ]
        )
    )
    with pytest.raises(BadInput, match="1,000,000,000"):
        read_study(Path("study.toml"), registry)


def test_the_largest_study_is_read_in_seconds(registry: Registry) -> None:
    Path("study.toml").write_text(
        f"[grid]\nseed = {list(range(1000))}\nalpha = {list(range(10))}\n"
    )
    began = time.process_time()
    assert len(read_study(Path("study.toml"), registry).runs) == MAX_RUNS
    assert time.process_time() - began < 10


def test_a_dry_run_prints_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("study.toml").write_text("[grid]\nbatch_size = [8, 16, 32, 64]\n")
    chunks: list[int] = []

    def probe(requests: Requests, threads: int) -> tuple[ProbeReport, float]:
        chunks.append(len(requests))
        results = [ProbeResult(training=1.0, evaluations=[1.0]) for _ in requests]
        return ProbeReport(results=results, seconds=2.0 * len(requests)), 1.0

    monkeypatch.setattr("wmr_cli.sweeps.dry_run.probe", probe)
    printed = wmr("sweep", "study.toml", "--dry-run").stderr.splitlines()
    assert "study.toml" in printed[0]
    assert "1 of 4" in printed[2]
    assert "4 of 4" in printed[4]
    assert chunks == [1, 2, 1]  # as many as take four times as long as the start of a process
    assert wmr("sweep", "study.toml", "--dry-run", "--quiet").stderr == ""


def test_more_jobs_than_runs_take_no_memory(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_commands(monkeypatch)
    wmr("sweep", "study.toml", "--jobs", 2**31 - 1)


def test_a_sweep_with_nothing_to_report_ends_with_an_error_and_a_hint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("study.toml").write_text(TEXT)
    fake_commands(monkeypatch)
    monkeypatch.setattr("wmr_cli.sweeps.ledger.list_records", lambda study, run: [])
    printed = wmr("sweep", "study.toml", status=1).stderr
    assert [line[:5] for line in printed.splitlines()[-2:]] == ["error", "hint:"]
