"""Evaluations on several ranks: the same record, and one error for all."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.typed import not_none
from wmr_cli.storage import records

TIMES = ("created", "seconds", "images_per_second")
QUICK = ("--alpha-test", "2", "--batch-size", "64", "--quiet")


def make_command(*words: object) -> list[str]:
    return [sys.executable, "-m", "wmr_cli", *map(str, words)]


def wmr(*words: object, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        make_command(*words), capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == status, done.stderr
    return done


def read_records(folder: Path) -> dict[str, Any]:
    """Return every record without its times, and its rows."""
    found = {}
    for file in sorted(folder.glob("*.json")):
        record = json.loads(file.read_text())
        rows = records.load_rows(records.rows_path(file))
        found[file.name] = {key: value for key, value in record.items() if key not in TIMES}
        found[f"{file.name} rows"] = {name: values.tobytes() for name, values in rows.items()}
    return found


@pytest.fixture(scope="module")
def alone(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Evaluate two attacks and their worst case in one process."""
    out = tmp_path_factory.mktemp("alone")
    wmr("evaluate", tiny_run, *QUICK, "--attack", "pgd:steps=3", "--attack", "fgsm", "--out", out)
    return out


def test_two_ranks_give_the_same_records_as_one(
    alone: Path, tiny_run: Path, tmp_path: Path
) -> None:
    done = wmr(
        "evaluate",
        tiny_run,
        *QUICK,
        "--attack",
        "pgd:steps=3",
        "--attack",
        "fgsm",
        "--out",
        tmp_path / "two",
        "--devices",
        "2",
    )
    assert read_records(tmp_path / "two") == read_records(alone)
    assert done.stdout.count("worst case over attacks: ") == 1, "only rank 0 prints"
    assert not list((tmp_path / "two").glob("*.partial"))


def test_the_worst_case_is_taken_image_by_image(alone: Path) -> None:
    found = [records.load(file) for file in alone.glob("*.json")]
    (worst,) = [record for record in found if record.attack.of]
    others = [record for record in found if not record.attack.of]
    assert worst.attack.spec == "worst"
    assert sorted(not_none(worst.attack.of)) == sorted(record.id for record in others)
    rows = {record.id: records.load_rows(alone / f"{record.id}.safetensors") for record in found}
    misclassified = [
        rows[record.id]["uniform/prediction"] != rows[record.id]["label"] for record in others
    ]
    expected = 1 - np.mean(np.logical_or(*misclassified))
    assert not_none(worst.a_rob).value == pytest.approx(expected, abs=1e-12)
    assert not_none(worst.a_rob).value <= min(not_none(record.a_rob).value for record in others)
    assert not_none(worst.by_alpha[0].a_sa).value <= not_none(worst.a_rob).value


def test_an_error_of_one_rank_is_printed_once(tiny_run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    failed = wmr(
        "evaluate", tiny_run, *QUICK, "--out", tmp_path / "file", "--devices", "2", status=2
    )
    assert [line.split(":")[0] for line in failed.stderr.splitlines()] == ["error", "hint"]


FAILING_ON_RANK_1 = """
import os
import signal
import time
from torch import nn


class Boom(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.layer = nn.Linear(64, num_classes)

    def forward(self, images):
        is_large = len(images) > 10
        if os.environ.get("LOCAL_RANK") == "1" and is_large:
            if os.environ.get("IS_KILLED"):
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("boom")
        if is_large and os.environ.get("IS_BUSY"):
            time.sleep(600)
        return self.layer(images.flatten(1))
"""


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "process 1 failed: RuntimeError: boom"),
        pytest.param(
            {"IS_BUSY": "1"}, "process 1 failed: RuntimeError: boom", marks=pytest.mark.slow
        ),
        pytest.param({"IS_KILLED": "1"}, "process 1 has died", marks=pytest.mark.slow),
        pytest.param(
            {"IS_KILLED": "1", "IS_BUSY": "1"}, "process 1 has died", marks=pytest.mark.slow
        ),
    ],
    ids=["fails", "fails while rank 0 is busy", "is killed", "is killed while rank 0 is busy"],
)
def test_rank_0_reports_the_end_of_another_rank(
    environment: dict[str, str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "nets.py").write_text(FAILING_ON_RANK_1, encoding="utf-8")
    words = (
        "--model",
        "nets.py:Boom",
        "--dataset",
        "digits",
        "--eps",
        "0.1",
        "--attack",
        "fgsm",
        "--metrics",
        "rob",
        "--quiet",
    )
    failed = wmr("evaluate", *words, "--devices", "2", status=2)
    assert [line.split(":")[0] for line in failed.stderr.splitlines()] == ["error", "hint"]
    assert message in failed.stderr


OTHER_FOLDER_ON_RANK_1 = """
import os
import tempfile
from torch import nn


class Elsewhere(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.layer = nn.Linear(64, num_classes)
        if os.environ.get("LOCAL_RANK") == "1":
            os.chdir(tempfile.mkdtemp())

    def forward(self, images):
        with open(os.environ["PASSES"], "a") as file:
            file.write(f"{len(images)}\\n")
        return self.layer(images.flatten(1))
"""


@pytest.mark.slow
def test_ranks_without_a_shared_folder_fail_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = tmp_path / "passes"
    monkeypatch.setenv("PASSES", str(passes))
    (tmp_path / "nets.py").write_text(OTHER_FOLDER_ON_RANK_1, encoding="utf-8")
    words = ("--model", "nets.py:Elsewhere", "--dataset", "digits", "--eps", "0.1", "--quiet")
    failed = wmr("evaluate", *words, "--out", "out", "--devices", "2", status=2)
    assert [line.split(":")[0] for line in failed.stderr.splitlines()] == ["error", "hint"]
    assert "--out" in failed.stderr
    # fusion and the output check use a few images; the evaluation has batches of 50 or more
    assert max(map(int, passes.read_text().split())) < 50


def test_a_damaged_chunk_is_measured_again(alone: Path, tiny_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for name in (file.stem for file in alone.glob("*.json")):
        (out / f"{name}.partial").mkdir(parents=True)
        (out / f"{name}.partial" / "00000000-00000069.safetensors").write_bytes(b"damaged")
    wmr(
        "evaluate",
        tiny_run,
        *QUICK,
        "--attack",
        "pgd:steps=3",
        "--attack",
        "fgsm",
        "--out",
        out,
        "--resume",
    )
    assert read_records(out) == read_records(alone)


def test_sigterm_ends_an_evaluation_with_a_hint_on_resume(tiny_run: Path, tmp_path: Path) -> None:
    words = (
        "evaluate",
        tiny_run,
        "--attack",
        "pgd:steps=5000",
        "--alpha-test",
        "2",
        "--out",
        tmp_path / "out",
    )
    running = subprocess.Popen(make_command(*words), stderr=subprocess.PIPE, text=True)
    while running.poll() is None and not list(tmp_path.glob("out/*.partial/.lock")):
        time.sleep(0.1)
    running.send_signal(signal.SIGTERM)
    _, stderr = running.communicate(timeout=60)
    assert running.returncode == 143
    assert "--resume" in stderr
    assert "Traceback" not in stderr


@pytest.mark.slow
def test_the_record_is_the_same_after_ten_kills(
    alone: Path, tiny_run: Path, tmp_path: Path
) -> None:
    # kill -9 at random moments, each followed by --resume
    generator = random.Random(0)
    kills = 0
    words = (
        "evaluate",
        tiny_run,
        *QUICK,
        "--attack",
        "pgd:steps=3",
        "--attack",
        "fgsm",
        "--out",
        tmp_path / "killed",
        "--resume",
    )
    while kills < 10:
        running = subprocess.Popen(
            make_command(*words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(generator.uniform(1.0, 6.0))
        if running.poll() is None:
            os.kill(running.pid, signal.SIGKILL)
        running.wait()
        kills += 1
    wmr(*words)
    assert read_records(tmp_path / "killed") == read_records(alone)


EXITING_RANK = """
import atexit, sys
import torch.distributed
import wmr_cli.cli

store = torch.distributed.HashStore()
torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
atexit.register(print, "shut down")
sys.modules["wmr_cli.cli.app"].app = lambda prog_name: sys.exit(3)
print("done", flush=True)
sys.modules["wmr_cli.cli.app"].main()
"""


def test_a_rank_exits_without_interpreter_shutdown() -> None:
    # threads of torch that free a tensor during shutdown would abort the process
    ended = subprocess.run(
        [sys.executable, "-c", EXITING_RANK],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "done\n", "")
