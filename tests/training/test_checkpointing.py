"""After a signal a run finishes its step and saves; however it ends, it resumes bit-identically."""

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import Signals
from typing import Any

import pytest
import torch

from support.training import train
from support.typed import stop
from wmr_cli.config import resolve
from wmr_cli.errors import RunFolderError
from wmr_cli.events import EpochDone, StepDone, TrainingDone, TrainingStarted, TrainingStopped
from wmr_cli.registry import Registry
from wmr_cli.runtime.fabric import Hardware
from wmr_cli.storage import checkpoints
from wmr_cli.storage.runs import RunFolder
from wmr_cli.training import loop
from wmr_cli.training.checkpointing import SAVE_REQUEST, SignalHandler
from wmr_cli.training.loop import TrainOptions

SHORT = (
    "--epochs",
    "6",
    "--steps",
    "5",
    "--validate-every",
    "2",
    "--ema",
    "0.9",
    "--eps-ramp",
    "0.5",
    "--quiet",
)
ONCE = 1e-9
"""Minutes: the state is saved after every step."""


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "wmr_cli", "train", *map(str, words)]


def wmr(*words: object, status: int = 0) -> str:
    done = subprocess.run(command(*words), capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == status, done.stderr
    return done.stderr


def read_result(run: Path) -> dict[str, Any]:
    """Return all weights, and the log without times."""
    found: dict[str, Any] = {}
    for name in ("last", "best", "ema"):
        if (run / f"{name}.safetensors").exists():
            tensors = checkpoints.load(run / f"{name}.safetensors").tensors
            found |= {f"{name} {key}": tensor.numpy().tobytes() for key, tensor in tensors.items()}
    found["log"] = [
        {k: v for k, v in entry.items() if k != "images_per_second"}
        for entry in RunFolder(run).read_log()
    ]
    return found


def start_and_wait_for_state(out: Path, *words: object) -> subprocess.Popen[str]:
    """Start a run, and wait until it has saved its state."""
    running = subprocess.Popen(
        command(*words, "--out", out), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    while running.poll() is None and not (out / "resume.safetensors").exists():
        time.sleep(0.05)
    return running


def test_a_run_stopped_within_an_epoch_resumes_bit_identically(
    tmp_path: Path, registry: Registry
) -> None:
    config = resolve(
        {
            "epochs": 3,
            "steps": 2,
            "validate_every": 2,
            "ema": 0.9,
            "alpha_ramp": 0.5,
            "clip_grad": 1.0,
        }
    )

    def walk(name: str, **more: Any) -> Iterator[Any]:
        return train(config, tmp_path / name, registry, data_dir=Path(), device="cpu", **more)

    list(walk("straight"))
    cut = walk("cut", save_minutes=ONCE)
    steps = 0
    while steps < 13:  # of nine in an epoch: in the middle of the second
        steps += isinstance(next(cut), StepDone)
    stop(cut)
    events = list(walk("cut", resume=True))
    (begun,) = [event for event in events if isinstance(event, TrainingStarted)]
    assert (begun.epoch, begun.step) in [(1, 3), (1, 4)], "the step in hand may be lost, no other"
    assert [event.epoch for event in events if isinstance(event, EpochDone)] == [2, 3]
    assert read_result(tmp_path / "cut") == read_result(tmp_path / "straight")
    assert {"last", "best", "ema"} == {
        name.split()[0] for name in read_result(tmp_path / "cut") if name != "log"
    }


@pytest.fixture
def _keep_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_keep_threads")
def test_a_resumed_run_keeps_its_threads_unless_the_user_chooses(
    tmp_path: Path, registry: Registry
) -> None:
    config = resolve({"epochs": 1, "steps": 1, "batch_size": 256})

    def count_threads(threads: int | None = None) -> int:
        """Run one step of a new or resumed run, and return its number of threads."""
        hardware = Hardware("cpu", threads=threads)
        options = TrainOptions(data_dir=Path(), hardware=hardware, resume=True, save_minutes=ONCE)
        events = loop.train(config, tmp_path / "run", registry, options)
        for event in events:
            if isinstance(event, StepDone):
                break
        # the state is saved before the next step
        next(events)
        stop(events)
        return torch.get_num_threads()

    torch.set_num_threads(2)
    assert count_threads() == 2
    torch.set_num_threads(1)
    assert count_threads() == 2
    assert count_threads(threads=3) == 3
    torch.set_num_threads(1)
    assert count_threads() == 3


KEEPERS = {
    "free": {"defense": "free:m=2", "alpha": 1.0, "epochs": 6},
    "yopo": {"defense": "yopo:m=2,n=2", "alpha": 1.0},
    "iaat": {"defense": "iaat:steps=2,warmup=1", "alpha": 1.0},
    "wat": {"defense": "trades:terms=both", "kernel": "wat:eta=1", "steps": 2},
}
"""Methods with a state between steps or epochs, or with their own gradients."""


@pytest.mark.parametrize("method", KEEPERS)
def test_the_state_of_a_method_is_restored(method: str, tmp_path: Path, registry: Registry) -> None:
    config = resolve({"epochs": 3, "validate_every": 2, **KEEPERS[method]})

    def walk(name: str, **more: Any) -> Iterator[Any]:
        return train(config, tmp_path / name, registry, data_dir=Path(), device="cpu", **more)

    list(walk("straight"))
    cut = walk("cut", save_minutes=ONCE)
    steps = 0
    while steps < 13:
        steps += isinstance(next(cut), StepDone)
    stop(cut)
    list(walk("cut", resume=True))
    assert read_result(tmp_path / "cut") == read_result(tmp_path / "straight")


@pytest.mark.slow
@pytest.mark.parametrize("method", KEEPERS)
def test_the_state_of_a_method_is_restored_after_three_kills(method: str, tmp_path: Path) -> None:
    settings = {"epochs": 8, "validate_every": 4, **KEEPERS[method]}
    words = [
        word for key, value in settings.items() for word in (f"--{key.replace('_', '-')}", value)
    ]
    wmr(*words, "--quiet", "--out", tmp_path / "straight")
    draw = random.Random(method)
    for _ in range(3):
        again = command(
            *words, "--quiet", "--out", tmp_path / "killed", "--resume", "--save-minutes", "0.0001"
        )
        running = subprocess.Popen(again, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while running.poll() is None and not (tmp_path / "killed" / "resume.safetensors").exists():
            time.sleep(0.05)
        time.sleep(draw.uniform(0.0, 4.0))
        running.send_signal(signal.SIGKILL)
        running.wait()
    wmr(*words, "--quiet", "--out", tmp_path / "killed", "--resume")
    assert read_result(tmp_path / "killed") == read_result(tmp_path / "straight")


def test_a_run_stopped_during_validation_repeats_no_step(
    tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = resolve({"epochs": 1, "steps": 1})

    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("wmr_cli.training.validation.evaluate_validation_set", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(train(config, tmp_path / "run", registry, data_dir=Path(), device="cpu"))
    events = list(
        train(config, tmp_path / "run", registry, data_dir=Path(), device="cpu", resume=True)
    )
    assert not [event for event in events if isinstance(event, StepDone)]
    assert isinstance(events[-1], TrainingDone)
    assert RunFolder(tmp_path / "run").read_log()[0]["val_a_nat"] > 0


def test_the_state_is_saved_every_few_minutes(tmp_path: Path, registry: Registry) -> None:
    config = resolve({"epochs": 1, "steps": 1})
    saved = {}
    for minutes in (0.0, ONCE):
        path = tmp_path / str(minutes)
        walk = train(config, path, registry, data_dir=Path(), device="cpu", save_minutes=minutes)
        for event in walk:
            if isinstance(event, StepDone) and event.step == 2:
                break
        saved[minutes] = (path / "resume.safetensors").exists()
    assert saved == {0.0: False, ONCE: True}


def test_the_first_signal_has_precedence_over_saving() -> None:
    signals = SignalHandler(save_minutes=ONCE)
    assert signals.request == SAVE_REQUEST
    with signals.deferred():
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert signals.request == signal.SIGTERM, "the first signal is the reason"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.fixture(params=[signal.SIGUSR1, signal.SIGUSR2], ids=["USR1", "USR2"])
def scheduler_signal(request: pytest.FixtureRequest) -> Iterator[Signals]:
    """Return a signal that a test may send: by default it would end the process of the tests."""

    def fail(number: int, frame: object) -> None:
        pytest.fail("the signal was not deferred")

    number: Signals = request.param
    before = signal.signal(number, fail)
    yield number
    signal.signal(number, before)


def test_a_signal_stops_training_after_the_step(
    scheduler_signal: Signals, tmp_path: Path, registry: Registry
) -> None:
    config = resolve({"epochs": 2, "steps": 1, "validate_every": 0})
    events = []
    for event in train(config, tmp_path / "run", registry, data_dir=Path(), device="cpu"):
        events.append(event)
        if isinstance(event, StepDone) and event.step == 3:
            os.kill(os.getpid(), scheduler_signal)
    assert events[-1] == TrainingStopped(tmp_path / "run", scheduler_signal, epoch=1, step=4)


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),
        pytest.param(signal.SIGUSR1, 143, marks=pytest.mark.slow),
    ],
    ids=["TERM", "INT", "USR1"],
)
def test_after_a_signal_a_run_saves_exits_and_resumes_bit_identically(
    number: Signals, status: int, tmp_path: Path
) -> None:
    words = ("--epochs", "12", "--steps", "1", "--validate-every", "0", "--save-minutes", "0")
    running = start_and_wait_for_state(tmp_path / "run", *words)
    running.send_signal(number)
    _, stderr = running.communicate(timeout=60)
    assert running.returncode == status
    assert "--resume" in stderr
    assert "Traceback" not in stderr
    wmr(*words, "--out", tmp_path / "run", "--resume", "--quiet")
    wmr(*words, "--out", tmp_path / "straight", "--quiet")
    assert read_result(tmp_path / "run") == read_result(tmp_path / "straight")


SLOW = """
import time
from torch import nn


class Slow(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.layer = nn.Linear(64, num_classes)

    def forward(self, images):
        if len(images) > 100 and self.training:
            print("forward", flush=True)
            time.sleep(30)
        return self.layer(images.flatten(1))
"""


def test_a_second_interruption_stops_at_once(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(SLOW, encoding="utf-8")
    words = command("--model", "nets.py:Slow", "--defense", "natural", "--out", tmp_path / "run")
    running = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout is not None
    assert running.stdout.readline() == "forward\n"
    running.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert running.poll() is None, "the first waits for the step"
    interrupted = time.monotonic()
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=25)
    assert time.monotonic() - interrupted < 20
    assert running.returncode == 130


@contextmanager
def full_disk() -> Iterator[None]:
    """Limit files to 10,000 bytes, so that a write really fails."""
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)


def test_a_full_disk_is_reported_and_the_last_state_kept(
    tmp_path: Path, registry: Registry
) -> None:
    config = resolve({"epochs": 2, "steps": 1, "validate_every": 0})
    walk = train(config, tmp_path / "run", registry, data_dir=Path(), device="cpu", save_minutes=0)
    while not isinstance(next(walk), EpochDone):
        pass
    before = {file.name: file.read_bytes() for file in (tmp_path / "run").iterdir()}
    with full_disk(), pytest.raises(RunFolderError, match="cannot write") as raised:
        list(walk)
    assert "\n" not in str(raised.value)
    assert raised.value.hint
    assert {file.name: file.read_bytes() for file in (tmp_path / "run").iterdir()} == before, (
        "and nothing half-written lies about"
    )
    assert checkpoints.load(tmp_path / "run").epoch == 1
    list(train(config, tmp_path / "run", registry, data_dir=Path(), device="cpu", resume=True))
    list(train(config, tmp_path / "straight", registry, data_dir=Path(), device="cpu"))
    assert read_result(tmp_path / "run") == read_result(tmp_path / "straight")


def test_a_removed_run_folder_is_reported(tmp_path: Path, registry: Registry) -> None:
    """A file replaces the folder, because permissions do not restrict root."""
    config = resolve({"epochs": 2, "steps": 1, "validate_every": 0})
    walk = train(config, tmp_path / "run", registry, data_dir=Path(), device="cpu")
    while not isinstance(next(walk), EpochDone):
        pass
    (tmp_path / "run").rename(tmp_path / "moved")
    (tmp_path / "run").write_text("in the way")
    with pytest.raises(RunFolderError, match="was moved or deleted while it was in use") as raised:
        list(walk)
    assert "\n" not in str(raised.value)
    assert checkpoints.load(tmp_path / "moved").epoch == 1


@pytest.mark.parametrize(
    "take_away",
    [lambda run: run.rename(run.with_name("moved")), shutil.rmtree],
    ids=["moved", "deleted"],
)
def test_a_run_whose_folder_was_moved_writes_no_new_folder(
    take_away: Callable[..., Any], tmp_path: Path, registry: Registry
) -> None:
    config = resolve({"epochs": 3, "steps": 1, "validate_every": 0})
    walk = train(
        config, tmp_path / "run", registry, data_dir=Path(), device="cpu", loggers=("csv",)
    )
    while not isinstance(next(walk), EpochDone):
        pass
    take_away(tmp_path / "run")
    with pytest.raises(RunFolderError, match="was moved or deleted while it was in use"):
        list(walk)
    assert not (tmp_path / "run").exists()


def test_a_moved_folder_in_use_is_refused_for_a_second_process(
    tmp_path: Path, registry: Registry
) -> None:
    config = resolve({"epochs": 2, "steps": 1, "validate_every": 0})
    walk = train(config, tmp_path / "run", registry, data_dir=Path(), device="cpu")
    while not isinstance(next(walk), EpochDone):
        pass
    (tmp_path / "run").rename(tmp_path / "moved")
    assert "is in use by another process" in wmr(
        *SHORT, "--out", tmp_path / "moved", "--overwrite", status=2
    )
    stop(walk)


@pytest.mark.slow
@pytest.mark.parametrize("minutes", ["0", "0.0001"], ids=["epochs", "steps"])
def test_ten_kills_do_not_change_the_weights(minutes: object, tmp_path: Path) -> None:
    """kill -9 at random moments, each followed by --resume."""
    began = time.monotonic()
    wmr(*SHORT, "--out", tmp_path / "straight")
    took, draw, kills, later = time.monotonic() - began, random.Random(0), 0, 0
    while kills < 10:
        running = subprocess.Popen(
            command(*SHORT, "--out", tmp_path / "killed", "--resume", "--save-minutes", minutes),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(draw.uniform(0.3, 0.9) * took)
        later += running.poll() is None and (tmp_path / "killed" / "resume.safetensors").exists()
        running.send_signal(signal.SIGKILL)
        running.wait()
        kills += 1
    assert later, "some kill hit a run that had something to lose"
    wmr(*SHORT, "--out", tmp_path / "killed", "--resume")
    assert read_result(tmp_path / "killed") == read_result(tmp_path / "straight")


@pytest.mark.slow
def test_ten_runs_killed_once_each_end_with_bit_identical_weights(tmp_path: Path) -> None:
    """The moment is random over the whole run after its start."""
    begun = time.monotonic()
    wmr(*SHORT, "--out", tmp_path / "straight")
    seconds = time.monotonic() - begun
    expected, draw = read_result(tmp_path / "straight"), random.Random(1)
    for number in range(10):
        out = tmp_path / f"run{number}"
        words = (*SHORT, "--out", out, "--save-minutes", "0.0001")
        running = subprocess.Popen(
            command(*words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(draw.uniform(0.3, 1.0) * seconds)
        running.send_signal(
            random.Random(number).choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
        )
        running.wait()
        wmr(*words, "--resume")
        assert read_result(out) == expected, f"run {number}"


def test_the_state_of_a_diverged_model_is_not_saved(tmp_path: Path, registry: Registry) -> None:
    config = resolve(
        {
            "epochs": 1,
            "steps": 0,
            "defense": "natural",
            "optimizer": "sgd",
            "lr": 1e9,
            "schedule": "constant",
        }
    )
    with pytest.raises(Exception, match=r"epoch 1, step \d+") as raised:
        list(
            train(
                config, tmp_path / "run", registry, data_dir=Path(), device="cpu", save_minutes=ONCE
            )
        )
    assert "finite" in str(raised.value)
    if (tmp_path / "run" / "resume.safetensors").exists():
        tensors, _ = checkpoints.load_tensors(tmp_path / "run" / "resume.safetensors")
        assert all(torch.isfinite(tensor).all() for tensor in tensors.values())
