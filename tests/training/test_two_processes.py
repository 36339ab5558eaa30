"""Several processes train one model on common batches, however they are started."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from wmr_cli.errors import BadInput
from wmr_cli.runtime.distributed import read_launcher
from wmr_cli.runtime.fabric import Hardware, launch
from wmr_cli.storage import checkpoints
from wmr_cli.storage.runs import RunFolder

MODELS = """
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


class PartlyUnused(Smooth):
    def __init__(self, num_classes):
        super().__init__(num_classes)
        self.unused = nn.Linear(3, 3)

    def forward(self, images):
        for layer in list(self)[:4]:
            images = layer(images)
        return images


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
SMOOTH = ("--model", "nets.py:Smooth")
TRAIN = ("-m", "wmr_cli", "train")


@pytest.fixture(autouse=True)
def _write_models(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(MODELS, encoding="utf-8")
    (tmp_path / "sgd.toml").write_text(SGD, encoding="utf-8")


def train(
    *words: str, launcher: tuple[str, ...] = (sys.executable,), status: int = 0
) -> subprocess.CompletedProcess[str]:
    command = [*launcher, *TRAIN, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == status, done.stderr
    return done


def train_until_first_save(*words: str) -> None:
    """Terminate a training after its first checkpoint in the folder `cut`."""
    running = subprocess.Popen([sys.executable, *TRAIN, *words, "--save-minutes", "0.0001"])
    while running.poll() is None and not Path("cut/resume.safetensors").exists():
        time.sleep(0.05)
    running.send_signal(signal.SIGTERM)
    # 0 if it ended before the signal, 143 by the signal
    assert running.wait(timeout=120) in (0, 143)


def load_weights(run: str) -> dict[str, torch.Tensor]:
    return dict(checkpoints.load(Path(run)).tensors)


def assert_bit_identical(run: str, other_run: str) -> None:
    """Check that two runs ended with the same weights."""
    weights = load_weights(run)
    other_weights = load_weights(other_run)
    assert all(torch.equal(tensor, other_weights[name]) for name, tensor in weights.items())


def read_log(run: str) -> list[dict[str, float]]:
    """Return the log without its only measurement of time."""
    return [
        {name: value for name, value in entry.items() if name != "images_per_second"}
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
    method = ("--defense", defense, "--normalize", normalize, "--alpha", "2")
    words = (*BRIEF, *L2, *SMOOTH, *method)
    train(*words, "--out", "one")
    train(*words, "--out", "two", "--devices", "2")
    one_weights = load_weights("one")
    two_weights = load_weights("two")
    for name, tensor in one_weights.items():
        torch.testing.assert_close(two_weights[name], tensor, atol=1e-5, rtol=1e-4)
    (one_entry,) = read_log("one")
    (two_entry,) = read_log("two")
    assert one_entry.keys() == two_entry.keys()
    for name, value in one_entry.items():
        assert two_entry[name] == pytest.approx(value, abs=2e-3), name


def test_two_processes_mix_and_label_extra_images_like_one() -> None:
    train(*BRIEF, *SMOOTH, "--defense", "natural", "--out", "teacher")
    extra = ("--extra", "digits", "--extra-fraction", "0.6", "--extra-labels", "teacher")
    words = (*BRIEF, *L2, *SMOOTH, *extra, "--defense", "pgd", "--alpha", "2")
    train(*words, "--out", "one")
    train(*words, "--out", "two", "--devices", "2")
    one_weights = load_weights("one")
    two_weights = load_weights("two")
    for name, tensor in one_weights.items():
        torch.testing.assert_close(two_weights[name], tensor, atol=1e-5, rtol=1e-4)
    # the hash of the labels, too
    one_extra = checkpoints.load(Path("one")).extra
    assert one_extra is not None
    assert one_extra == checkpoints.load(Path("two")).extra
    assert one_extra.labels == checkpoints.load(Path("teacher")).sha256
    (entry,) = read_log("two")
    assert entry["extra_images"] == read_log("one")[0]["extra_images"] > 1147


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
    options = (*BRIEF, *L2, *SMOOTH, *words)
    train(*options, "--out", "one")
    train(*options, "--out", "two", "--devices", "2")
    one_weights = load_weights("one")
    two_weights = load_weights("two")
    for name, tensor in one_weights.items():
        torch.testing.assert_close(two_weights[name], tensor, atol=1e-4, rtol=1e-3)


def test_each_process_restores_its_own_perturbation() -> None:
    method = ("--defense", "free:m=2", "--epochs", "4", "--alpha", "0")
    one_process = (*BRIEF, *L2, *SMOOTH, *method)
    words = (*one_process, "--devices", "2")
    train(*words, "--out", "straight")
    train_until_first_save(*words, "--out", "cut")
    stored, _ = checkpoints.load_tensors(Path("cut/resume.safetensors"))
    assert {"defense/0/perturbation", "defense/1/perturbation"} <= stored.keys()
    failed = train(*one_process, "--out", "cut", "--resume", status=2)
    assert "--devices 2" in failed.stderr
    train(*words, "--out", "cut", "--resume")
    assert_bit_identical("straight", "cut")


SAVED_STATISTICS = """
import os
import torch
from torch import nn


class SavedStatistics(nn.Sequential):
    \"\"\"Saves its batch statistics, in every process.\"\"\"

    def __init__(self, num_classes):
        super().__init__(
            nn.Flatten(), nn.Linear(64, 50), nn.BatchNorm1d(50),
            nn.Tanh(), nn.Linear(50, num_classes),
        )

    def forward(self, images):
        if not self.training and len(images) > 10:
            rank = os.environ.get("LOCAL_RANK", "0")
            torch.save(self[2].running_mean.clone(), f"statistics{rank}.pt")
        return super().forward(images)
"""


@pytest.mark.slow
def test_two_processes_have_equal_models_and_resume_bit_identically(tmp_path: Path) -> None:
    (tmp_path / "watched.py").write_text(SAVED_STATISTICS, encoding="utf-8")
    validation = ("--validate-every", "1", "--ema", "0.9")
    model = ("--model", "watched.py:SavedStatistics")
    words = (*BRIEF[2:], "--epochs", "2", *model, *validation, "--devices", "2")
    train(*words, "--out", "straight")
    first = torch.load("statistics0.pt", weights_only=True)
    second = torch.load("statistics1.pt", weights_only=True)
    assert first.abs().max() > 0
    assert torch.equal(first, second), "both processes have the same statistics"

    train_until_first_save(*words, "--out", "cut")
    train(*words, "--out", "cut", "--resume")
    assert_bit_identical("straight", "cut")
    assert read_log("cut") == read_log("straight")


def test_torchrun_starts_the_processes() -> None:
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
    # without --quiet, to see which processes print
    verbose = [word for word in BRIEF if word != "--quiet"]
    done = train(*verbose, *SMOOTH, *L2, "--out", "by-torchrun", launcher=torchrun)
    assert done.stdout.count("last.safetensors") == 1, "only rank 0 prints"
    assert "2 x cpu" in done.stderr
    train(*BRIEF, *L2, *SMOOTH, "--out", "two", "--devices", "2")
    assert_bit_identical("two", "by-torchrun")


@pytest.mark.slow
def test_slurm_starts_the_processes() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    environment = {
        **os.environ,
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
    command = [sys.executable, *TRAIN, *BRIEF, *L2, *SMOOTH, "--out", "by-slurm"]
    running = [
        subprocess.Popen(
            command,
            env={**environment, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=240) for process in running]
    assert [process.returncode for process in running] == [0, 0], outputs
    assert [stdout.count("last.safetensors") for stdout, _ in outputs] == [1, 0]
    train(*BRIEF, *L2, *SMOOTH, "--out", "two", "--devices", "2")
    assert_bit_identical("two", "by-slurm")


@pytest.mark.slow
def test_parameters_without_a_gradient_stay_as_they_are() -> None:
    words = (*BRIEF, *L2, "--model", "nets.py:PartlyUnused")
    train(*words, "--out", "one")
    train(*words, "--out", "two", "--devices", "2")
    one, two = load_weights("one"), load_weights("two")
    assert torch.equal(one["unused.weight"], two["unused.weight"])
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_an_error_of_one_process_is_reported_once_with_its_place() -> None:
    words = (*BRIEF, "--model", "nets.py:Broken", "--out", "run", "--devices", "2")
    failed = train(*words, status=2)
    assert [line.split(":")[0] for line in failed.stderr.splitlines()] == ["error", "hint"]
    assert "epoch 1, step 1: image" in failed.stderr
    assert "logits are not finite" in failed.stderr


FAILING = """
import os
import signal
import time
from pathlib import Path

import torch
from torch import nn

from wmr_cli.core.data.splits import MemorySplit

PLACE = os.environ["FAILING_PLACE"]
IS_FAILING = os.environ.get("LOCAL_RANK", "0") == os.environ["FAILING_RANK"]


def fail():
    Path("failed").touch()
    if PLACE == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise RuntimeError("boom")


class FailInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        fail()


class Failing(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(64, num_classes))
        self.passes = 0
        if IS_FAILING and PLACE == "optimizer":
            torch.optim.SGD.step = lambda *args, **kwargs: fail()
        if IS_FAILING and PLACE == "reading":
            read = MemorySplit.stored_batch
            MemorySplit.stored_batch = lambda *args: fail() if self.passes == 2 else read(*args)

    def forward(self, images):
        logits = super().forward(images)
        if not IS_FAILING or len(images) < 20:
            return logits
        if not self.training:
            if PLACE == "validation" and not torch.is_grad_enabled():
                fail()
            return logits
        self.passes += 1
        if PLACE == f"forward {self.passes}" or (PLACE == "killed" and self.passes == 3):
            fail()
        return FailInBackward.apply(logits) if PLACE == "backward" else logits
"""
FAILING_WORDS = (*BRIEF, "--model", "failing.py:Failing", "--out", "run")
EXIT_SECONDS = 60
"""How soon all ranks must have ended after the failure, on a busy machine."""


def assert_fails_once(stderr: str, message: str) -> None:
    """Check that all ranks together have printed one error, and that they ended soon."""
    assert [line.split(":")[0] for line in stderr.splitlines()] == ["error", "hint"], stderr
    assert message in stderr
    assert time.time() - Path("failed").stat().st_mtime < EXIT_SECONDS


@pytest.fixture
def _write_failing_model(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("failing.py").write_text(FAILING, encoding="utf-8")


@pytest.mark.usefixtures("_write_failing_model")
@pytest.mark.parametrize(
    ("place", "rank"),
    [
        ("forward 2", "1"),
        pytest.param("forward 1", "1", marks=pytest.mark.slow),
        pytest.param("forward 2", "0", marks=pytest.mark.slow),
        pytest.param("backward", "1", marks=pytest.mark.slow),
        pytest.param("backward", "0", marks=pytest.mark.slow),
        pytest.param("optimizer", "1", marks=pytest.mark.slow),
        pytest.param("reading", "1", marks=pytest.mark.slow),
        pytest.param("validation", "1", marks=pytest.mark.slow),
        pytest.param("killed", "1", marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_fails_ends_all_ranks(
    place: str, rank: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILING_PLACE", place)
    monkeypatch.setenv("FAILING_RANK", rank)
    failed = train(*FAILING_WORDS, "--devices", "2", status=2)
    message = "process 1 has died" if place == "killed" else f"process {rank} failed: RuntimeError"
    assert_fails_once(failed.stderr, message)


@pytest.mark.slow
@pytest.mark.usefixtures("_write_failing_model")
@pytest.mark.parametrize("place", ["forward 2", "killed"])
@pytest.mark.parametrize("failing_rank", [0, 1])
def test_a_rank_that_fails_ends_ranks_of_another_launcher(place: str, failing_rank: int) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    environment = {
        **os.environ,
        "FAILING_PLACE": place,
        "FAILING_RANK": str(failing_rank),
        "TORCHELASTIC_RUN_ID": "none",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GROUP_RANK": "0",
    }
    running = [
        subprocess.Popen(
            [sys.executable, *TRAIN, *FAILING_WORDS],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=240)[1] for process in running]
    expected = [2, 2]
    if place == "killed":
        expected[failing_rank] = -signal.SIGKILL
    assert [process.returncode for process in running] == expected
    message = "has died" if place == "killed" else "failed: RuntimeError: boom"
    assert_fails_once("".join(outputs), f"process {failing_rank} {message}")


def is_running(pid: int) -> bool:
    try:
        # empty for a process that has ended, but that its parent has not waited for
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems send no signal")
def test_a_rank_ends_if_rank_0_is_killed_before_they_are_connected() -> None:
    running = subprocess.Popen([sys.executable, *TRAIN, *BRIEF, "--out", "run", "--devices", "2"])
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
    while not children.read_text():
        time.sleep(0.01)
    rank_1 = int(children.read_text().split()[0])
    running.kill()
    running.wait()
    deadline = time.monotonic() + EXIT_SECONDS
    while is_running(rank_1):
        assert time.monotonic() < deadline, "rank 1 waits for rank 0"
        time.sleep(0.1)


def test_a_batch_too_small_for_the_processes_is_refused() -> None:
    failed = train("--batch-size", "3", "--devices", "2", "--quiet", status=2)
    assert (
        failed.stderr.splitlines()[0] == "error: a batch of 3 images is too small for 2 processes"
    )


@pytest.mark.slow
def test_a_used_folder_is_reported_once() -> None:
    train(*BRIEF, "--out", "run")
    other_settings = ("--epochs", "1", "--lr", "1", "--devices", "2")
    failed = train(*BRIEF, "--out", "run", "--resume", *other_settings, status=2)
    assert [line.split(":")[0] for line in failed.stderr.splitlines()] == ["error", "hint"]
    assert "lr was 0.05, is 1.0" in failed.stderr


SRUN = {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}
"""Set by `srun` in every task."""
SIX_TASKS = {"SLURM_NTASKS": "6", "SLURM_NTASKS_PER_NODE": "3", "SLURM_NNODES": "2"}


@pytest.mark.parametrize(
    ("environment", "started"),
    [
        ({}, None),
        ({"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8"}, (4, 2)),
        ({**SRUN, **SIX_TASKS}, (3, 2)),
        ({"SLURM_PROCID": "0", **SIX_TASKS}, None),
        ({**SRUN, "SLURM_NTASKS": "6", "SLURM_JOB_NAME": "interactive"}, None),
        ({**SRUN, "SLURM_NTASKS": "1"}, None),
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
