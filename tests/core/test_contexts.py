"""Arithmetic without TF32, whichever settings of torch the caller has used."""

import subprocess
import sys
from pathlib import Path

FILE = Path(__file__).with_name("precision_per_operation.py")


def test_arithmetic_is_exact_whatever_precision_was_set() -> None:
    # a process of its own: torch cannot restore all combinations of its older and newer settings
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FILE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
