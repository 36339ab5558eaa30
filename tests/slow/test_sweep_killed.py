"""Real sweeps of a tiny study: killed and repeated, stopped, failing, submitted."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc"),
]
STUDY = """
summary = "tiny"
folder = "runs"
[train]
epochs = 6
steps = 3
validate_every = 3
[[grid]]
alpha = [0, 2]
seed = [0, 1]
[[evaluate]]
attack = ["pgd", "pgd-margin"]
steps = 30
alpha_test = [1, 2]
metrics = ["nat", "rob", "sa", "tr", "dro"]
[report]
out = ["report.md", "report.json", "report.csv"]
figures = "figures"
[machine]
device = "cpu"
threads = 1
save_minutes = 0.001
"""
COMMAND = [sys.executable, "-m", "wmr_cli", "sweep", "study.toml", "--jobs", "2"]
TIMES = ("seconds", "images_per_second", "created", "rows")


def begun(folder: Path, text: str = STUDY) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    (folder / "study.toml").write_text(text)
    return subprocess.Popen(
        COMMAND, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def finished(folder: Path, text: str = STUDY, status: int = 0) -> str:
    running = begun(folder, text)
    _, said = running.communicate(timeout=900)
    assert running.returncode == status, said
    return said


def until(happens: Callable[[], object], running: subprocess.Popen[str]) -> None:
    limit = time.monotonic() + 600
    while not happens():
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < limit
        time.sleep(0.05)


def timeless(value: Any) -> Any:
    """A report without its times and absolute paths."""
    if isinstance(value, dict):
        return {name: timeless(part) for name, part in value.items() if name not in TIMES}
    return [timeless(part) for part in value] if isinstance(value, list) else value


def content(folder: Path) -> dict[str, Any]:
    report = {name: (folder / "runs" / name).read_text() for name in ("report.md", "report.csv")}
    figures = {file.name: file.read_bytes() for file in (folder / "runs" / "figures").glob("*.png")}
    return {
        **report,
        **figures,
        "json": timeless(json.loads((folder / "runs" / "report.json").read_text())),
    }


def children(of: int) -> list[int]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if (found := state(pid)) is not None and found[1] == of]


def state(pid: int) -> tuple[str, int] | None:
    """Its letter and its parent; None where it is no more."""
    try:
        letter, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return None
    return letter, int(parent)


def gone(pids: list[int]) -> bool:
    """A zombie waits for nothing but its parent's word."""
    return all((found := state(pid)) is None or found[0] == "Z" for pid in pids)


def killed_with_its_workers(running: subprocess.Popen[str]) -> None:
    """By `kill -9` of the sweep alone: its workers save and end by themselves."""
    workers = children(running.pid)
    assert workers
    running.kill()
    running.communicate()
    limit = time.monotonic() + 60
    while not gone(workers):
        assert time.monotonic() < limit, "the kill has left processes behind"
        time.sleep(0.05)


def test_a_sweep_killed_twice_gives_the_report_of_one_that_was_left_alone(tmp_path: Path) -> None:
    finished(tmp_path / "straight")
    killed = tmp_path / "killed"

    first = begun(killed)
    until(lambda: list(killed.glob("runs/*/resume.safetensors")), first)  # in the midst of training
    killed_with_its_workers(first)

    second = begun(killed)
    until(
        lambda: list(killed.glob("runs/*/evaluations/*.partial")), second
    )  # in the midst of an evaluation
    killed_with_its_workers(second)

    said = finished(killed)
    assert content(killed) == content(tmp_path / "straight")
    assert "[4/4]" in said
    assert re.search(r"done before", finished(killed))


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_sweep_that_is_asked_to_stop_saves_and_goes_on(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    running = begun(tmp_path)
    until(lambda: list(tmp_path.glob("runs/*/resume.safetensors")), running)
    workers = children(running.pid)
    running.send_signal(number)
    _, said = running.communicate(timeout=120)
    assert running.returncode == status
    assert "repeat the command to continue" in said
    assert gone(workers)
    listed = subprocess.run(
        [*COMMAND, "--dry-run"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    assert "to do" in listed


def test_a_run_that_fails_is_told_and_stops_no_other(tmp_path: Path) -> None:
    text = STUDY.replace(
        "alpha = [0, 2]\nseed = [0, 1]", 'model = ["digits-cnn", "digits-cnn:nonsense=3"]'
    )
    said = finished(tmp_path, text, status=1)
    assert re.search(r"error: \S*nonsense\S*: model 'digits-cnn' has no 'nonsense'", said)
    assert len(list(tmp_path.glob("runs/*/evaluations/*.json"))) == 3
    assert "digits-trades-a2-s0" in (tmp_path / "runs" / "report.md").read_text()


def test_runs_are_submitted_through_submitit(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    text = (
        STUDY.replace("seed = [0, 1]", "seed = 0")
        + '[slurm]\ncluster = "local"\ntimeout_min = 10\n'
    )
    (tmp_path / "study.toml").write_text(text)
    done = subprocess.run(
        [*COMMAND, "--slurm"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("job ") >= 2
    assert len(list(tmp_path.glob("runs/*/sweep.json"))) == 2
    assert (tmp_path / "runs" / "report.md").exists()


def test_an_unknown_setting_of_slurm_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    (tmp_path / "study.toml").write_text(STUDY + '[slurm]\ncluster = "local"\nminutes = 10\n')
    done = subprocess.run(
        [*COMMAND, "--slurm"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "minutes" in done.stderr
