"""What must stay fast, as a share of other work on the same processor."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from support import synthetic

pytestmark = pytest.mark.slow
TRIES = 3


def processor_seconds(*command: str) -> float:
    """Of a process, at its best."""
    found = []
    for _ in range(TRIES):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(found)


def test_help_costs_little_more_than_what_draws_it() -> None:
    needed = processor_seconds("-c", "import typer.main, typer.rich_utils")
    assert processor_seconds("-m", "wmr_cli", "--help") < 2 * needed


@pytest.fixture
def hundred(tmp_path: Path) -> Path:
    """A hundred records of 10,000 images each, with everything that an evaluation stores."""
    for number in range(100):
        rows = synthetic.rows(10_000, logits=True, skill=number / 100)
        record = synthetic.record(
            rows, f"mnist-trades-a2-s{number}", seed=number % 5, alpha_train=number // 5
        )
        synthetic.stored(tmp_path / "evaluations", record, rows)
    return tmp_path


@pytest.mark.parametrize(
    "flags",
    [[], ["--alpha-test", "0.5,3"], ["--format", "json"]],
    ids=["as stored", "other α", "json"],
)
def test_a_report_over_a_hundred_records_takes_a_few_sorts_of_ten_million_numbers(
    hundred: Path, flags: list[str]
) -> None:
    """Three where it takes two seconds and a half."""
    sort = processor_seconds(
        "-c", "import numpy as np; np.sort(np.random.default_rng(0).random(10**7))"
    )
    assert processor_seconds("-m", "wmr_cli", "report", str(hundred), *flags) < 6 * sort
