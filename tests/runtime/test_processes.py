"""Cores of a process, by affinity, Slurm and ranks; and the end of a process with its parent."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from wmr_cli.runtime import fabric, processes
from wmr_cli.runtime.fabric import Hardware
from wmr_cli.runtime.processes import count_granted_cores, count_idle_cores, end_with_parent


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


@pytest.mark.parametrize(
    ("running", "idle"),
    # the thread that reads the file runs, too
    [("1", 8), ("3", 6), ("9", 1), ("40", 1)],
)
def test_cores_of_other_processes_are_not_idle(
    running: str, idle: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "loadavg"
    file.write_text(f"9.50 8.25 7.00 {running}/512 12345\n", encoding="ascii")
    monkeypatch.setattr(processes, "LOAD_FILE", file)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert count_idle_cores() == idle


def test_without_a_load_all_cores_count_as_idle(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(processes, "LOAD_FILE", tmp_path / "missing")
    assert count_idle_cores() == 8


@pytest.mark.parametrize(
    ("variable", "devices", "chosen", "threads"),
    [(None, None, None, 3), ("8", None, None, 6), (None, 2, None, 6), (None, None, 4, 6)],
)
def test_an_evaluation_uses_idle_cores_unless_the_user_chose(
    variable: str | None,
    devices: int | None,
    chosen: int | None,
    threads: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used = [6]
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    monkeypatch.setattr(fabric, "count_idle_cores", lambda: 3)
    monkeypatch.setattr("torch.get_num_threads", lambda: used[-1])
    monkeypatch.setattr("torch.set_num_threads", used.append)
    fabric.use_idle_cores(Hardware("cpu", devices, threads=chosen))
    assert used[-1] == threads


def test_chosen_threads_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []
    monkeypatch.setattr("torch.set_num_threads", used.append)
    fabric.launch.cache_clear()
    fabric.launch(Hardware("cpu"))
    runtime = fabric.launch(Hardware("cpu", threads=3))
    assert used == [3]
    # those of a resumed run
    runtime.use_threads(2)
    fabric.launch(Hardware("cpu")).use_threads(2)
    assert used == [3, 3, 2]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems send no signal")
def test_a_child_does_not_start_if_its_parent_has_died_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 1_000_000_000)
        prepare = end_with_parent(signal.SIGKILL)
    child = subprocess.Popen([sys.executable, "-c", "raise SystemExit(5)"], preexec_fn=prepare)
    assert child.wait() == 1
