"""Slurm jobs: when a sweep ends early, it cancels the jobs that it has submitted."""

import os
import pickle
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from wmr_cli.errors import BadInput
from wmr_cli.registry import Registry
from wmr_cli.sweeps import slurm
from wmr_cli.sweeps.process import CommandResult, Failure
from wmr_cli.sweeps.runner import RunFailed, SweepEvents
from wmr_cli.sweeps.slurm import JobCommand, JobQueue
from wmr_cli.sweeps.study import Study, read_study

pytest.importorskip("submitit")


class FakeExecutor:
    """An executor that accepts `capacity` jobs and refuses the next one."""

    cluster = "local"

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.cancelled: list[str] = []
        self.ends_at_once = False
        self.state = "FAILED"

    def submit(self, call: JobCommand) -> SimpleNamespace:
        if self.capacity == 0:
            raise RuntimeError("sbatch: error:\n no such partition")
        self.capacity -= 1
        name = call.words[call.words.index("--run") + 1]
        return SimpleNamespace(
            job_id=name,
            state=self.state,
            done=lambda: self.ends_at_once,
            cancel=lambda check: self.cancelled.append(name),
            stderr=lambda: "starting\nslurmstepd: error: out of memory\n",
            stdout=lambda: "",
            paths=SimpleNamespace(stderr=Path("job.err")),
        )


@pytest.fixture
def study(registry: Registry) -> Study:
    Path("study.toml").write_text("[grid]\nseed = [0, 1, 2]\n")
    return read_study(Path("study.toml"), registry)


def submit_to(executor: FakeExecutor, study: Study, monkeypatch: pytest.MonkeyPatch) -> SweepEvents:
    monkeypatch.setattr(slurm, "make_executor", lambda study, folder: executor)
    return slurm.submit_study(study, None)


def test_stopping_during_submission_cancels_the_submitted_jobs(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = FakeExecutor(capacity=3)
    events = submit_to(executor, study, monkeypatch)
    next(events)
    next(events)
    events.close()
    assert executor.cancelled == ["digits-trades-a2-s0", "digits-trades-a2-s1"]


def test_a_job_that_slurm_refuses_cancels_the_others(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = FakeExecutor(capacity=1)
    # the reason of sbatch, in one line
    with pytest.raises(BadInput, match="sbatch: error: no such partition"):
        list(submit_to(executor, study, monkeypatch))
    assert executor.cancelled == ["digits-trades-a2-s0"]


@pytest.mark.parametrize(
    ("result", "failure"),
    [
        (
            CommandResult(status=1, error="no data", hint="download them"),
            Failure("job digits-trades-a2-s0 ended as FAILED: no data", "download them"),
        ),
        (
            None,
            Failure(
                "job digits-trades-a2-s0 ended as FAILED: slurmstepd: error: out of memory",
                "see job.err",
            ),
        ),
    ],
)
def test_a_failed_job_is_explained_by_its_result_file_or_its_log(
    study: Study, monkeypatch: pytest.MonkeyPatch, result: CommandResult | None, failure: Failure
) -> None:
    executor = FakeExecutor(capacity=3)
    executor.ends_at_once = True
    monkeypatch.setattr(slurm, "read_result", lambda path: result)
    events = list(submit_to(executor, study, monkeypatch))
    failures = [event.failure for event in events if isinstance(event, RunFailed)]
    assert failures[0] == failure


SAVING_COMMAND = """
import os, signal, sys, time
from pathlib import Path

def save(number, frame):
    Path("saved").write_text(os.environ["WMR_RESULT_FILE"])
    sys.exit(143)

signal.signal(signal.SIGUSR2, save)
Path("ready").touch()
time.sleep(60)
"""


def test_a_job_that_runs_out_of_time_lets_its_command_save() -> None:
    command = JobCommand((sys.executable, "-c", SAVING_COMMAND), Path("result.json"))
    resumed = []

    # as submitit does: in a signal handler, while the main thread waits for the command
    def requeue(number: int, frame: object) -> None:
        resumed.append(command.checkpoint())

    def warn() -> None:
        while not Path("ready").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGUSR2)

    previous = signal.signal(signal.SIGUSR2, requeue)
    warning = threading.Thread(target=warn)
    warning.start()
    with pytest.raises(RuntimeError, match="143"):
        command()
    warning.join()
    signal.signal(signal.SIGUSR2, previous)
    assert Path("saved").read_text() == "result.json"
    (submission,) = resumed
    assert pickle.loads(pickle.dumps(submission.function)) == command


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a `squeue` first on the PATH that prints a file, and fails without it."""
    program = tmp_path / "bin" / "squeue"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/queue\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(slurm, "QUEUE_SECONDS", 0)
    return tmp_path / "queue"


def test_states_of_jobs_need_no_accounting(squeue: Path) -> None:
    result = Path("7.pkl")
    queue = JobQueue()
    assert not queue.has_ended("8", Path("8.pkl")), "the controller does not answer"
    squeue.write_text("7 RUNNING\n8 TIMEOUT\n9 FAILED\n")
    assert queue.has_ended("8", Path("8.pkl"))
    assert queue.state("8") == "TIMEOUT"
    assert not queue.has_ended("7", result)
    result.touch()
    assert queue.has_ended("7", result), "its result file exists before its state changes"
    result.unlink()
    squeue.write_text("")
    assert queue.has_ended("7", result), "Slurm has forgotten it"


def test_a_job_that_no_answer_lists_has_ended(squeue: Path) -> None:
    result = Path("8.pkl")
    queue = JobQueue()
    for _ in range(3):
        assert not queue.has_ended("8", result), "the controller does not answer"
    squeue.write_text("7 RUNNING\n")
    assert not queue.has_ended("8", result)
    assert queue.has_ended("8", result)
    assert not queue.has_ended("7", Path("7.pkl"))


def test_a_job_whose_state_is_out_of_date_has_failed(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = FakeExecutor(capacity=3)
    executor.state = "RUNNING"
    executor.ends_at_once = True
    failures = [
        event.failure
        for event in submit_to(executor, study, monkeypatch)
        if isinstance(event, RunFailed)
    ]
    assert "RUNNING" not in failures[0].reason
