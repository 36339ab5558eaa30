"""Real sweeps of a small study: killed and repeated, stopped, failing, submitted to Slurm."""

import json
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
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc"),
]
STUDY = """
summary = "small"
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
ONE_SEED = STUDY.replace("seed = [0, 1]", "seed = 0")
COMMAND = [sys.executable, "-m", "wmr_cli", "sweep", "study.toml", "--jobs", "2"]
VARYING_KEYS = ("seconds", "images_per_second", "created", "rows")
"""Keys of a report with times and absolute paths."""
POLL_SECONDS = 0.05


def start_sweep(folder: Path, study: str = STUDY) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    (folder / "study.toml").write_text(study)
    return subprocess.Popen(
        COMMAND, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def run_sweep(folder: Path, study: str = STUDY, status: int = 0) -> str:
    """Run a sweep to its end and return its stderr."""
    sweep = start_sweep(folder, study)
    _, stderr = sweep.communicate(timeout=900)
    assert sweep.returncode == status, stderr
    return stderr


def wait_until(happened: Callable[[], object], sweep: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 600
    while not happened():
        assert sweep.poll() is None, sweep.communicate()
        assert time.monotonic() < deadline
        time.sleep(POLL_SECONDS)


def remove_varying(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return the JSON of a report without times and absolute paths."""
    if isinstance(value, dict):
        return {
            name: remove_varying(part) for name, part in value.items() if name not in VARYING_KEYS
        }
    if isinstance(value, list):
        return [remove_varying(part) for part in value]
    return value


def read_reports(folder: Path) -> dict[str, Any]:
    """Return the contents of all report files and figures, by name."""
    runs = folder / "runs"
    contents: dict[str, Any] = {
        "report.md": (runs / "report.md").read_text(),
        "report.csv": (runs / "report.csv").read_text(),
        "report.json": remove_varying(json.loads((runs / "report.json").read_text())),
    }
    for file in (runs / "figures").glob("*.png"):
        contents[file.name] = file.read_bytes()
    return contents


def read_process(pid: int) -> tuple[str, int] | None:
    """Return the state letter of a process and its parent; None if it has ended."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return None
    return state, int(parent)


def find_children(parent: int) -> list[int]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    processes = {pid: read_process(pid) for pid in pids}
    return [
        pid for pid, process in processes.items() if process is not None and process[1] == parent
    ]


def have_ended(pids: list[int]) -> bool:
    processes = [read_process(pid) for pid in pids]
    # a zombie has ended, but its parent has not read its status yet
    return all(process is None or process[0] == "Z" for process in processes)


def kill_sweep(sweep: subprocess.Popen[str]) -> None:
    """Send SIGKILL to the sweep alone, and check that its child processes end by themselves."""
    children = find_children(sweep.pid)
    assert children
    sweep.kill()
    sweep.communicate()
    deadline = time.monotonic() + 60
    while not have_ended(children):
        assert time.monotonic() < deadline, "child processes outlive the sweep"
        time.sleep(POLL_SECONDS)


def test_a_sweep_that_is_killed_twice_gives_the_same_report(tmp_path: Path) -> None:
    run_sweep(tmp_path / "uninterrupted")
    killed = tmp_path / "killed"

    during_training = start_sweep(killed)
    wait_until(lambda: list(killed.glob("runs/*/resume.safetensors")), during_training)
    kill_sweep(during_training)

    during_evaluation = start_sweep(killed)
    wait_until(lambda: list(killed.glob("runs/*/evaluations/*.partial")), during_evaluation)
    kill_sweep(during_evaluation)

    assert "[4/4]" in run_sweep(killed)
    assert read_reports(killed) == read_reports(tmp_path / "uninterrupted")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_a_sweep_and_its_children_after_they_have_saved(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    sweep = start_sweep(tmp_path)
    wait_until(lambda: list(tmp_path.glob("runs/*/resume.safetensors")), sweep)
    children = find_children(sweep.pid)
    sweep.send_signal(number)
    sweep.communicate(timeout=120)
    assert sweep.returncode == status
    assert have_ended(children)
    assert list(tmp_path.glob("runs/*/resume.safetensors"))
    assert not (tmp_path / "runs" / "report.md").exists()


def test_a_run_that_fails_is_reported_and_stops_no_other(tmp_path: Path) -> None:
    models = 'model = ["digits-cnn", "digits-cnn:nonsense=3"]'
    study = STUDY.replace("alpha = [0, 2]\nseed = [0, 1]", models)
    stderr = run_sweep(tmp_path, study, status=1)
    assert re.search(r"error: \S*nonsense\S*: .*digits-cnn.*nonsense", stderr)
    # two attacks, and their worst case
    assert len(list(tmp_path.glob("runs/*/evaluations/*.json"))) == 3
    assert "digits-trades-a2-s0" in (tmp_path / "runs" / "report.md").read_text()


def test_runs_are_submitted_through_submitit(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    slurm = '[slurm]\ncluster = "local"\ntimeout_min = 10\n'
    (tmp_path / "study.toml").write_text(ONE_SEED + slurm)
    done = subprocess.run(
        [*COMMAND, "--slurm"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("job ") >= 2
    assert len(list(tmp_path.glob("runs/*/sweep.json"))) == 2
    assert (tmp_path / "runs" / "report.md").exists()
