"""Whole runs of the installed plugin, from the command line."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch

from wmr_cli import load

if not any(point.value == "wmr_awp" for point in entry_points(group="wmr")):
    pytest.skip("wmr-awp is not installed: pip install ./plugins/wmr-awp", allow_module_level=True)

BRIEF = ("--epochs", "2", "--steps", "3", "--quiet")
SGD = 'optimizer = "sgd"\nlr = 0.05\nschedule = "constant"\n'
L2 = ("--attack", "pgd:norm=l2,start=gauss:0.001", "--eps", "1", "--step-size", "0.2")
"""Its steps are continuous in the gradient; a sign would amplify rounding errors."""
SMOOTH = """
from torch import nn


class Smooth(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(64, 50), nn.Tanh(), nn.Linear(50, num_classes))
"""


RunWmr = Callable[..., str]


@pytest.fixture
def wmr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunWmr:
    """Return a function that runs `wmr` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text(SMOOTH, encoding="utf-8")
    (tmp_path / "sgd.toml").write_text(SGD, encoding="utf-8")

    def run(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "wmr_cli", *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def weights(run: str) -> dict[str, torch.Tensor]:
    return load(Path(run) / "last.safetensors").state_dict()


def assert_identical(one: str, other: str) -> None:
    for name, tensor in weights(one).items():
        assert torch.equal(tensor, weights(other)[name]), name


def test_it_learns_and_goes_on_exactly_where_it_was_stopped(wmr: RunWmr) -> None:
    words = (
        "train",
        "--defense",
        "awp:trades:beta=2,gamma=0.01,warmup=1",
        "--epochs",
        "4",
        "--steps",
        "4",
        "--out",
    )
    wmr(*words, "whole")
    part = subprocess.Popen([sys.executable, "-m", "wmr_cli", *words, "part", "--quiet"])
    log = Path("part/log.jsonl")
    while part.poll() is None and not (
        log.exists() and len(log.read_text().splitlines()) >= 2
    ):  # past the warm-up
        time.sleep(0.05)
    part.send_signal(signal.SIGTERM)
    assert part.wait() == 143
    assert (Path("part") / "last.safetensors").read_bytes() != (
        Path("whole") / "last.safetensors"
    ).read_bytes()
    wmr(*words, "part", "--resume")
    assert_identical("whole", "part")
    (record,) = json.loads(
        wmr(
            "evaluate",
            "whole",
            "--attack",
            "pgd:steps=10",
            "--metrics",
            "nat,rob",
            "--format",
            "json",
        )
    )
    assert record["a_nat"]["low"] > 0.5
    assert record["a_rob"]["low"] > 0.2  # a guess is right in one of ten
    assert record["checkpoint"]["defense"].startswith("awp")


def test_a_perturbation_changes_the_run_and_none_does_not(wmr: RunWmr) -> None:
    for defense, out in (("pgd", "base"), ("awp:gamma=0", "none"), ("awp:gamma=0.05", "some")):
        wmr(
            "train", *BRIEF, "--defense", defense, "--alpha", "1", "--out", out
        )  # the preset has another alpha for pgd
    assert_identical("base", "none")
    base, some = weights("base"), weights("some")
    assert not all(torch.equal(tensor, some[name]) for name, tensor in base.items())


def test_frozen_layers_are_not_perturbed(wmr: RunWmr) -> None:
    model = ("--model", "nets.py:Smooth")
    wmr("train", *BRIEF, *model, "--out", "start")
    method = ("--defense", "awp:base=(trades:beta=2),gamma=0.05", "--freeze", "backbone")
    wmr("train", *BRIEF, *model, *method, "--init", "start", "--out", "tuned")
    start, tuned = weights("start"), weights("tuned")
    assert torch.equal(tuned["1.weight"], start["1.weight"])
    assert torch.equal(tuned["1.bias"], start["1.bias"])
    assert not torch.equal(tuned["3.weight"], start["3.weight"])


def test_two_processes_learn_what_one_learns(wmr: RunWmr) -> None:
    words = (
        "train",
        *BRIEF,
        "--batch-size",
        "127",
        "--config",
        "sgd.toml",
        *L2,
        "--model",
        "nets.py:Smooth",
        "--alpha",
        "1",
    )
    for devices in ("1", "2"):
        wmr(
            *words,
            "--defense",
            "awp:base=(trades:beta=2),gamma=0.05",
            "--devices",
            devices,
            "--out",
            f"awp{devices}",
        )
    for defense, out in (("trades:beta=2", "base"), ("awp:base=(trades:beta=2),gamma=0", "none")):
        wmr(*words, "--defense", defense, "--devices", "2", "--out", out)
    one, two, base = weights("awp1"), weights("awp2"), weights("base")
    for name in one:
        torch.testing.assert_close(two[name], one[name], atol=1e-4, rtol=1e-3)
    assert (
        max(float((two[name] - base[name]).abs().max()) for name in two) > 1e-3
    )  # far more than what two processes may differ
    assert_identical("base", "none")


def test_a_base_that_does_not_fit_is_refused_in_one_line(wmr: RunWmr) -> None:
    words = [sys.executable, "-m", "wmr_cli", "train", "--defense", "awp:free", "--out", "run"]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "300"}
    )
    assert done.returncode == 2
    assert "`base` of awp cannot be free" in done.stderr
    assert not Path("run").exists()
