"""Runs and sweeps on a real Slurm cluster of one node: `make test-slurm`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from support.slurm_cluster import list_jobs, wait_until
from wmr_cli.storage import checkpoints, records

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("slurm")]

WMR = (sys.executable, "-m", "wmr_cli")
TWO_TASKS = ("srun", "--ntasks=2", "--ntasks-per-node=2", "--kill-on-bad-exit=1")
BRIEF = ("--epochs", "2", "--steps", "2", "--validate-every", "0", "--device", "cpu", "--quiet")
MAX_SECONDS = 900
"""How long a command may take on a busy machine."""
TIMES = {"created", "seconds", "images_per_second"}
DIGITS_STUDY = Path(__file__).parents[2] / "studies" / "digits.toml"
SHORTER = {
    "epochs = 20": "epochs = 1\nsteps = 2",
    r"seed = \[0, 1, 2\]": "seed = 0",
    r"alpha = \[0, 1, 2\]": "alpha = 2",
    r"alpha = \[0, 0.5, 1\]": "alpha = 0.5",
    r'defense = \["free", "yopo", "iaat"\]': 'defense = "free"',
    "limit = 200\n": "",
    r"(\[\[evaluate\]\].*)": r"\1\nlimit = 40",
    r"(\[report\])": r'\1\nfigures = ""',
}
"""What replaces which parts of the digits study, so that it takes seconds."""
STUDY = """
[train]
epochs = {epochs}
steps = 2
validate_every = 0

[[grid]]
defense = "trades"
alpha = [0, 2]

[[evaluate]]
attack = ["pgd:steps=2"]

[report]
out = ["report.csv", "report.md"]
figures = ""

[machine]
device = "cpu"
save_minutes = 0.05

[slurm]
timeout_min = {minutes}
slurm_signal_delay_s = 20
"""


@pytest.fixture(autouse=True)
def _use_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def run(*words: object, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, check=False, timeout=MAX_SECONDS
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


def load_weights(folder: str) -> dict[str, torch.Tensor]:
    return dict(checkpoints.load(Path(folder)).tensors)


def assert_bit_identical(folder: str, other: str) -> None:
    weights = load_weights(folder)
    other_weights = load_weights(other)
    assert weights.keys() == other_weights.keys()
    assert all(torch.equal(tensor, other_weights[name]) for name, tensor in weights.items())


def read_record(folder: str) -> tuple[dict[str, object], dict[str, bytes]]:
    """Return the only record of a folder without its times, and its rows."""
    (file,) = Path(folder).glob("*.json")
    facts = {
        name: value for name, value in vars_of(records.load(file)).items() if name not in TIMES
    }
    rows = records.load_rows(records.rows_path(file))
    return facts, {name: values.tobytes() for name, values in rows.items()}


def vars_of(record: records.Record) -> dict[str, object]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


def test_two_tasks_train_and_evaluate_like_two_processes_of_wmr() -> None:
    run(*WMR, "train", *BRIEF, "--devices", 2, "--out", "own")
    run(*TWO_TASKS, *WMR, "train", *BRIEF, "--out", "tasks")
    assert_bit_identical("own", "tasks")
    attack = ("--attack", "pgd:steps=2", "--alpha-test", "2", "--quiet")
    run(*WMR, "evaluate", "own", *attack, "--devices", 2, "--out", "own-records")
    run(*TWO_TASKS, *WMR, "evaluate", "own", *attack, "--out", "task-records")
    assert read_record("own-records") == read_record("task-records")


@pytest.mark.parametrize("signal_name", ["USR1", "TERM"])
def test_a_signal_saves_a_run_of_two_tasks_and_it_resumes(signal_name: str) -> None:
    words = (*WMR, "train", *BRIEF, "--epochs", "30", "--save-minutes", "0.01")
    running = subprocess.Popen([*TWO_TASKS, *words, "--out", "cut"])
    wait_until(Path("cut/resume.safetensors").exists, "the first save", seconds=120)
    (job,) = list_jobs()
    run("scancel", f"--signal={signal_name}", job)
    assert running.wait(timeout=MAX_SECONDS) == 143
    _, header = checkpoints.load_tensors(Path("cut/resume.safetensors"))
    assert int(header["epoch"]) < 30, "the signal must come before the end"
    run(*TWO_TASKS, *words, "--out", "cut", "--resume")
    run(*words, "--devices", 2, "--out", "straight")
    assert_bit_identical("straight", "cut")


def test_a_cancelled_job_can_be_resumed() -> None:
    words = (*WMR, "train", *BRIEF, "--epochs", "1000", "--save-minutes", "0.01", "--out", "run")
    script = "\n".join(["#!/bin/sh", " ".join(["srun", *words])])
    Path("job.sh").write_text(script)
    job = run("sbatch", "--parsable", "job.sh").stdout.strip()
    wait_until(Path("run/resume.safetensors").exists, "the first save", seconds=120)
    run("scancel", job)
    wait_until(lambda: job not in list_jobs(), "the job has ended")
    tensors, header = checkpoints.load_tensors(Path("run/resume.safetensors"))
    assert tensors
    assert int(header["epoch"]) < 1000


def write_short_digits_study(file: Path) -> None:
    """Write the digits study with all its parts, but few runs, steps and images."""
    text = DIGITS_STUDY.read_text()
    for pattern, replacement in SHORTER.items():
        text, count = re.subn(pattern, replacement, text)
        assert count, pattern
    file.write_text(f"{text}\n[slurm]\ntimeout_min = 10\n")


def test_the_digits_study_gives_the_report_of_a_local_sweep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {}
    for place, flags in (("slurm", ["--slurm"]), ("local", ["--jobs", "2"])):
        folder = Path(place).absolute()
        folder.mkdir()
        with monkeypatch.context() as patch:
            patch.chdir(folder)
            write_short_digits_study(Path("digits.toml"))
            swept = run(*WMR, "sweep", "digits.toml", "--quiet", *flags)
            assert "sacct" not in swept.stdout + swept.stderr
            # the other formats of the report contain times
            files = [*Path().glob("runs/*/report.[cm]*"), *Path("records").rglob("*.safetensors")]
            found[place] = {file: file.read_bytes() for file in files}
    assert {file.suffix for file in found["slurm"]} == {".csv", ".md", ".safetensors"}
    assert found["slurm"] == found["local"]


def test_a_job_that_is_warned_of_its_time_limit_is_queued_again_and_finishes() -> None:
    study = STUDY.format(epochs=60, minutes=10)
    Path("study.toml").write_text(study.replace("alpha = [0, 2]", "alpha = [2]"))
    sweep = subprocess.Popen([*WMR, "sweep", "study.toml", "--slurm", "--quiet"])
    state = Path("runs/study/digits-trades-a2-s0/resume.safetensors")
    wait_until(state.exists, "the first save", seconds=180)
    (job,) = list_jobs()
    # what Slurm sends before the limit; waiting for it would take minutes
    run("scancel", "--signal=USR2", job)
    assert sweep.wait(timeout=MAX_SECONDS) == 0
    (log,) = Path("runs/study/logs/slurm").glob("*_log.out")
    assert "Requeued job" in log.read_text()
    assert Path("runs/study/report.csv").exists()
