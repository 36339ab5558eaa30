"""The device of these tests, and a summary of it that can be pasted into an issue."""

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator

import pytest
import torch
from _pytest.terminal import TerminalReporter

from wmr_cli.benchmarking.results import Bench

FIGURES = pytest.StashKey[list[Bench]]()
OUTCOMES = ("passed", "failed", "error", "skipped")


@pytest.fixture(scope="session")
def device() -> str:
    named = os.environ.get("WMR_TEST_DEVICE")
    if named:
        return named
    if torch.cuda.is_available():
        return "cuda"
    if torch.backends.mps.is_available():
        return "mps"
    pytest.skip("this machine has no accelerator")


@pytest.fixture
def cuda(device: str) -> torch.device:
    if device != "cuda":
        pytest.skip("this needs CUDA")
    return torch.device(device)


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> list[Bench]:
    """Measurements that the summary shows."""
    return request.config.stash.setdefault(FIGURES, [])


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    """Write the summary of the accelerator if its tests have run."""
    counts = {
        outcome: [
            report.nodeid
            for report in terminalreporter.getreports(outcome)
            if "gpu/" in report.nodeid
        ]
        for outcome in OUTCOMES
    }
    if not counts["passed"] + counts["failed"] + counts["error"]:
        return
    terminalreporter.section("copy from here into an issue")
    for line in describe_machine():
        terminalreporter.write_line(line)
    totals = [f"{len(names)} {outcome}" for outcome, names in counts.items()]
    terminalreporter.write_line(f"tests: {', '.join(totals)}")
    for name in counts["failed"] + counts["error"]:
        terminalreporter.write_line(f"failed: {name}")
    for found in config.stash.get(FIGURES, []):
        for line in describe_figures(found):
            terminalreporter.write_line(line)
    terminalreporter.section("to here")


def describe_machine() -> Iterator[str]:
    """Yield the versions and devices of this machine."""
    yield f"torch {torch.__version__}, Python {platform.python_version()}, {platform.platform()}"
    named = os.environ.get("WMR_TEST_DEVICE", "chosen automatically")
    yield f"device: {named}, CPU {platform.machine()}"
    if not torch.cuda.is_available():
        return
    yield f"CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"
    for number in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(number)
        yield f"GPU {number}: {facts.name}, {facts.total_memory / 2**30:.0f} GiB"
    if shutil.which("nvidia-smi"):
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        yield f"driver {done.stdout.strip().splitlines()[:1]}"


def describe_figures(found: Bench) -> Iterator[str]:
    """Yield what was measured."""
    yield (
        f"bench: {found.model} on {found.device}, precision {found.precision},"
        f" batch {found.batch_size}, {found.steps} steps"
    )
    rates = (found.attack.images_per_second, found.training.images_per_second)
    launches = (found.launches_per_attack_step, found.launches_per_step)
    waits = (found.waits_per_attack_step, found.waits_per_step)
    yield f"  images per second, attack and training: {rates}"
    yield f"  launches per attack step and training step: {launches}, host waits: {waits}"
    yield f"  fraction of bare passes {found.share_of_limit}, of roofline {found.share_of_roofline}"
