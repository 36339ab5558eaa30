"""Slurm jobs: when a sweep ends early, it cancels the jobs that it has submitted."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from submitit.core.utils import CommandFunction

from wmr_cli.errors import BadInput
from wmr_cli.registry import Registry
from wmr_cli.sweeps import slurm
from wmr_cli.sweeps.process import CommandResult, Failure
from wmr_cli.sweeps.runner import RunFailed, SweepEvents
from wmr_cli.sweeps.study import Study, read_study

pytest.importorskip("submitit")


class FakeExecutor:
    """An executor that accepts `capacity` jobs and refuses the next one."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.cancelled: list[str] = []
        self.ends_at_once = False

    def submit(self, call: CommandFunction) -> SimpleNamespace:
        if self.capacity == 0:
            raise RuntimeError("sbatch: error:\n no such partition")
        self.capacity -= 1
        name = call.command[call.command.index("--run") + 1]
        return SimpleNamespace(
            job_id=name,
            state="FAILED",
            done=lambda: self.ends_at_once,
            cancel=lambda: self.cancelled.append(name),
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
