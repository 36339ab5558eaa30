"""Upper bounds of processor time, relative to other work on the same machine."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from support import synthetic

pytestmark = pytest.mark.slow
ATTEMPTS = 3
RECORDS = 100
IMAGES = 10_000


def processor_seconds(*command: str) -> float:
    """Return the processor time of a Python process: the minimum of several attempts."""
    seconds = []
    for _ in range(ATTEMPTS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(seconds)


def test_help_takes_little_more_than_importing_typer() -> None:
    imports = processor_seconds("-c", "import typer.main, typer.rich_utils")
    # 2.0 to 2.2 in the environment of developers, where rich imports attrs, too
    assert processor_seconds("-m", "wmr_cli", "--help") < 2.5 * imports


@pytest.fixture(scope="module")
def many_records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return records with all the rows that an evaluation stores."""
    folder = tmp_path_factory.mktemp("records")
    for number in range(RECORDS):
        rows = synthetic.make_rows(IMAGES, logits=True, skill=number / RECORDS)
        record = synthetic.make_record(
            rows, f"mnist-trades-a2-s{number}", seed=number % 5, alpha_train=number // 5
        )
        synthetic.save_record(folder / "evaluations", record, rows)
    return folder


@pytest.fixture(scope="module")
def sort_seconds() -> float:
    """Return the time to sort ten million numbers."""
    # stable: the default algorithm is several times as fast on processors with AVX-512
    numbers = "np.random.default_rng(0).random(10**7)"
    return processor_seconds("-c", f"import numpy as np; np.sort({numbers}, kind='stable')")


@pytest.mark.parametrize(
    "flags",
    [[], ["--alpha-test", "0.5,3"], ["--format", "json"]],
    ids=["stored", "other-alpha", "json"],
)
def test_a_report_of_a_hundred_records_takes_less_than_five_sorts_of_ten_million_numbers(
    many_records: Path, sort_seconds: float, flags: list[str]
) -> None:
    # measured: about two sorts
    seconds = processor_seconds("-m", "wmr_cli", "report", str(many_records), *flags)
    assert seconds < 5 * sort_seconds
