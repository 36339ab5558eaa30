"""Several processes train one model on common batches, however they are started."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from wmr_cli.errors import BadInput
from wmr_cli.runtime.distributed import read_launcher
from wmr_cli.runtime.fabric import Hardware, launch
from wmr_cli.storage import checkpoints
from wmr_cli.storage.runs import RunFolder

NETS = """
from torch import nn


class Smooth(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(64, 50), nn.Tanh(), nn.Linear(50, num_classes))


class Normed(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(
            nn.Flatten(), nn.Linear(64, 50), nn.BatchNorm1d(50),
            nn.Tanh(), nn.Linear(50, num_classes),
        )


class Broken(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(64, num_classes))

    def forward(self, images):
        import os

        logits = super().forward(images)
        if os.environ.get("LOCAL_RANK") == "1" and len(images) > 10:
            return logits * float("nan")
        return logits
"""
SGD = 'optimizer = "sgd"\nlr = 0.05\nschedule = "constant"\n'
L2 = ("--attack", "pgd:norm=l2,start=gauss:0.001", "--eps", "1", "--step-size", "0.2")
"""Its steps are continuous in the gradient; a sign would amplify rounding errors."""
BRIEF = ("--epochs", "1", "--steps", "3", "--batch-size", "127", "--quiet", "--config", "sgd.toml")


@pytest.fixture(autouse=True)
def _nets(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(NETS, encoding="utf-8")
    (tmp_path / "sgd.toml").write_text(SGD, encoding="utf-8")


def wmr(
    *words: object, by: tuple[str, ...] = (), status: int = 0, **environment: Any
) -> subprocess.CompletedProcess[str]:
    program = [*(by or (sys.executable,)), "-m", "wmr_cli", "train", *map(str, words)]
    done = subprocess.run(
        program,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={**os.environ, **environment},
    )
    assert done.returncode == status, done.stderr
    return done


def weights(run: str) -> dict[str, torch.Tensor]:
    return dict(checkpoints.load(Path(run)).tensors)


def log(run: str) -> list[dict[str, float]]:
    return [
        {k: v for k, v in entry.items() if k != "images_per_second"}
        for entry in RunFolder(Path(run)).read_log()
    ]


@pytest.mark.parametrize(
    ("defense", "normalize"),
    [
        ("trades", "batch"),
        pytest.param("trades", "none", marks=pytest.mark.slow),
        pytest.param("pgd", "none", marks=pytest.mark.slow),
        pytest.param("pgd", "batch", marks=pytest.mark.slow),
    ],
)
def test_two_processes_train_like_one(defense: str, normalize: str) -> None:
    words = (
        *BRIEF,
        *L2,
        "--model",
        "nets.py:Smooth",
        "--defense",
        defense,
        "--normalize",
        normalize,
        "--alpha",
        "2",
    )
    wmr(*words, "--out", "one")
    wmr(*words, "--out", "two", "--devices", "2")
    one, two = weights("one"), weights("two")
    for name in one:
        torch.testing.assert_close(two[name], one[name], atol=1e-5, rtol=1e-4)
    (alone,), (shared,) = log("one"), log("two")
    assert alone.keys() == shared.keys()
    for name in alone:
        assert shared[name] == pytest.approx(alone[name], abs=2e-3), name


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        # one batch: the rows of a process stay those of the same images
        ("--defense", "free:m=2", "--epochs", "8", "--alpha", "1", "--batch-size", "2000"),
        ("--defense", "yopo:m=2,n=2", "--alpha", "1"),
        ("--defense", "iaat:steps=2,warmup=1", "--epochs", "2", "--alpha", "1"),
        ("--defense", "trades:terms=both", "--kernel", "wat:eta=1", "--epochs", "2"),
        ("--defense", "pgd", "--kernel", "cvar"),
        ("--defense", "pgd", "--kernel", "chi2"),
        ("--defense", "pgd", "--kernel", "gairat:start-epoch=0"),
        ("--defense", "mart", "--kernel", "tilt"),
    ],
    ids=lambda words: f"{words[1]} {words[3]}".replace("/", " "),
)
def test_two_processes_train_like_one_with_methods_that_compare_images(
    words: tuple[str, ...],
) -> None:
    options = (*BRIEF, *L2, "--model", "nets.py:Smooth", *words)
    wmr(*options, "--out", "one")
    wmr(*options, "--out", "two", "--devices", "2")
    one, two = weights("one"), weights("two")
    for name in one:
        torch.testing.assert_close(two[name], one[name], atol=1e-4, rtol=1e-3)


def test_each_process_restores_its_own_perturbation() -> None:
    words = (
        *BRIEF,
        *L2,
        "--model",
        "nets.py:Smooth",
        "--defense",
        "free:m=2",
        "--epochs",
        "4",
        "--alpha",
        "0",
        "--devices",
        "2",
    )
    wmr(*words, "--out", "straight")
    running = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "wmr_cli",
            "train",
            *words,
            "--out",
            "cut",
            "--save-minutes",
            "0.0001",
        ]
    )
    while running.poll() is None and not Path("cut/resume.safetensors").exists():
        time.sleep(0.05)
    running.send_signal(signal.SIGTERM)
    assert running.wait(timeout=120) in (0, 143)
    kept, _ = checkpoints.load_tensors(Path("cut/resume.safetensors"))
    assert {"defense/0/perturbation", "defense/1/perturbation"} <= kept.keys()
    output = wmr(*words[:-2], "--out", "cut", "--resume", status=2).stderr
    assert "--devices 2" in output
    wmr(*words, "--out", "cut", "--resume")
    assert all(
        torch.equal(tensor, weights("cut")[name]) for name, tensor in weights("straight").items()
    )


WATCHED = """
import os
import torch
from torch import nn


class Watched(nn.Sequential):
    \"\"\"Writes down what it remembers of the batches, in every process.\"\"\"

    def __init__(self, num_classes):
        super().__init__(
            nn.Flatten(), nn.Linear(64, 50), nn.BatchNorm1d(50),
            nn.Tanh(), nn.Linear(50, num_classes),
        )

    def forward(self, images):
        if not self.training and len(images) > 10:
            torch.save(self[2].running_mean.clone(), f"seen{os.environ.get('LOCAL_RANK', '0')}.pt")
        return super().forward(images)
"""


@pytest.mark.slow
def test_two_processes_have_equal_models_and_resume_bit_identically(tmp_path: Path) -> None:
    (tmp_path / "watched.py").write_text(WATCHED, encoding="utf-8")
    words = (
        *BRIEF[2:],
        "--epochs",
        "2",
        "--model",
        "watched.py:Watched",
        "--validate-every",
        "1",
        "--ema",
        "0.9",
        "--devices",
        "2",
    )
    wmr(*words, "--out", "straight")
    first, second = (torch.load(f"seen{rank}.pt", weights_only=True) for rank in range(2))
    assert first.abs().max() > 0
    assert torch.equal(first, second), "both see the same statistics"

    running = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "wmr_cli",
            "train",
            *words,
            "--out",
            "cut",
            "--save-minutes",
            "0.0001",
        ]
    )
    while running.poll() is None and not Path("cut/resume.safetensors").exists():
        time.sleep(0.05)
    running.send_signal(signal.SIGTERM)
    assert running.wait(timeout=120) in (0, 143)
    wmr(*words, "--out", "cut", "--resume")
    assert all(
        torch.equal(tensor, weights("cut")[name]) for name, tensor in weights("straight").items()
    )
    assert log("cut") == log("straight")


def test_torchrun_starts_the_processes(tmp_path: Path) -> None:
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
    output = wmr(
        *BRIEF[:-3],
        "--config",
        "sgd.toml",
        "--model",
        "nets.py:Smooth",
        *L2,
        "--out",
        "by",
        by=torchrun,
    )
    assert output.stdout.count("last.safetensors") == 1, "only rank 0 prints"
    assert "2 x cpu" in output.stderr
    wmr(*BRIEF, *L2, "--model", "nets.py:Smooth", "--out", "two", "--devices", "2")
    assert all(torch.equal(tensor, weights("by")[name]) for name, tensor in weights("two").items())


@pytest.mark.slow
def test_slurm_starts_the_processes() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    tasks = {
        "SLURM_NTASKS": "2",
        "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_NNODES": "1",
        "SLURM_NODEID": "0",
        "SLURM_JOB_ID": "1",
        "SLURM_STEP_ID": "0",
        "SLURM_JOB_NAME": "train",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    program = [
        sys.executable,
        "-m",
        "wmr_cli",
        "train",
        *BRIEF,
        *L2,
        "--model",
        "nets.py:Smooth",
        "--out",
        "by",
    ]
    running = [
        subprocess.Popen(
            program,
            env={**os.environ, **tasks, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    output = [process.communicate(timeout=240) for process in running]
    assert [process.returncode for process in running] == [0, 0], output
    assert [stdout.count("last.safetensors") for stdout, _ in output] == [1, 0]
    wmr(*BRIEF, *L2, "--model", "nets.py:Smooth", "--out", "two", "--devices", "2")
    assert all(torch.equal(tensor, weights("by")[name]) for name, tensor in weights("two").items())


@pytest.mark.slow
def test_an_error_of_one_process_is_reported_once_with_its_place() -> None:
    words = [
        sys.executable,
        "-m",
        "wmr_cli",
        "train",
        *BRIEF,
        "--model",
        "nets.py:Broken",
        "--out",
        "run",
        "--devices",
        "2",
    ]
    failed = subprocess.run(words, capture_output=True, text=True, check=False, timeout=240)
    assert failed.returncode == 2
    assert [line.split(":")[0] for line in failed.stderr.splitlines()] == ["error", "hint"]
    assert "epoch 1, step 1: image" in failed.stderr
    assert "logits are not finite" in failed.stderr


def test_a_batch_too_small_for_the_processes_is_refused() -> None:
    failed = wmr("--batch-size", "3", "--devices", "2", "--quiet", status=2)
    assert (
        failed.stderr.splitlines()[0] == "error: a batch of 3 images is too small for 2 processes"
    )


@pytest.mark.slow
def test_a_used_folder_is_reported_once() -> None:
    wmr(*BRIEF, "--out", "run")
    failed = wmr(
        *BRIEF, "--out", "run", "--resume", "--epochs", "1", "--lr", "1", "--devices", "2", status=2
    )
    assert [line.split(":")[0] for line in failed.stderr.splitlines()] == ["error", "hint"]
    assert "lr was 0.05, is 1.0" in failed.stderr


STEP = {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}


@pytest.mark.parametrize(
    ("environment", "started"),
    [
        ({}, None),
        ({"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8"}, (4, 2)),
        ({**STEP, "SLURM_NTASKS": "6", "SLURM_NTASKS_PER_NODE": "3", "SLURM_NNODES": "2"}, (3, 2)),
        (
            {
                "SLURM_PROCID": "0",
                "SLURM_NTASKS": "6",
                "SLURM_NTASKS_PER_NODE": "3",
                "SLURM_NNODES": "2",
            },
            None,
        ),
        ({**STEP, "SLURM_NTASKS": "6", "SLURM_JOB_NAME": "interactive"}, None),
        ({**STEP, "SLURM_NTASKS": "1"}, None),
    ],
    ids=["no launcher", "torchrun", "slurm", "no srun", "interactive", "one task"],
)
def test_the_launcher_is_read_from_the_environment(
    environment: dict[str, str], started: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "TORCHELASTIC_RUN_ID",
        "SLURM_NTASKS",
        "SLURM_PROCID",
        "SLURM_STEP_ID",
        "SLURM_JOB_NAME",
        "SLURM_NTASKS_PER_NODE",
    ):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert read_launcher() == started


def test_slurm_without_tasks_per_node_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SLURM_NTASKS_PER_NODE", raising=False)
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    with pytest.raises(BadInput, match="SLURM_NTASKS_PER_NODE"):
        read_launcher()


def test_several_nodes_without_a_launcher_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(BadInput, match="no launcher has started processes on 2 machines"):
        launch(Hardware("cpu", nodes=2))
