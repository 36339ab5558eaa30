"""Cores of a process, by affinity, Slurm and ranks; and the end of a process with its parent."""

import os
import signal
import subprocess
import sys

import pytest

from wmr_cli.runtime import processes
from wmr_cli.runtime.fabric import Hardware
from wmr_cli.runtime.processes import count_granted_cores, end_with_parent


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "count_usable_cores", lambda: 8)
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("ranks", "cores"), [(1, 8), (2, 4), (3, 2), (16, 1)])
def test_ranks_divide_the_cores_of_their_machine(ranks: int, cores: int) -> None:
    assert count_granted_cores(ranks) == cores


@pytest.mark.parametrize(
    ("granted", "tasks", "ranks", "cores"),
    [
        ("6", "1", 1, 6),
        # one task that starts both ranks
        ("6", "1", 2, 3),
        # a task for each rank
        ("3", "2", 2, 3),
        # more than the affinity allows
        ("64", "2", 2, 8),
        ("many", "1", 2, 4),
    ],
)
def test_slurm_limits_the_cores_of_a_task(
    granted: str, tasks: str, ranks: int, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", granted)
    monkeypatch.setenv("SLURM_NTASKS", tasks)
    assert count_granted_cores(ranks) == cores


def test_threads_of_the_user_have_precedence() -> None:
    assert Hardware("cpu", 2).count_threads() == 4
    assert Hardware("cpu", 2, threads=7).count_threads() == 7


@pytest.mark.skipif(sys.platform != "linux", reason="other systems send no signal")
def test_a_child_does_not_start_if_its_parent_has_died_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 1_000_000_000)
        prepare = end_with_parent(signal.SIGKILL)
    child = subprocess.Popen([sys.executable, "-c", "raise SystemExit(5)"], preexec_fn=prepare)
    assert child.wait() == 1
