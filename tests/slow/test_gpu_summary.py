"""The tests of an accelerator end with a summary for an issue; here they run on the CPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
FIRST_LINE = "copy from here into an issue"
LAST_LINE = "to here"


def run_gpu_tests(chosen: str, device: str) -> str:
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-k", chosen, "tests/gpu"]
    environment = {**os.environ, "WMR_TEST_DEVICE": device, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout


def read_summary(output: str) -> str:
    return output.partition(FIRST_LINE)[2].partition(LAST_LINE)[0]


def test_the_summary_names_the_machine_and_its_figures() -> None:
    summary = read_summary(run_gpu_tests("within_their_budgets and 32", "cpu"))
    for text in ("torch ", "device: cpu", "tests: 1 passed, 0 failed", "bench: resnet20 on cpu"):
        assert text in summary
    # a CPU launches no kernels
    assert "launches per attack step and training step: (None, None)" in summary


def test_the_summary_names_tests_that_fail() -> None:
    summary = read_summary(run_gpu_tests("noise_does_not_depend", "unknown"))
    assert "1 failed" in summary
    assert "failed: tests/gpu/test_accelerator.py::test_noise_does_not_depend" in summary
