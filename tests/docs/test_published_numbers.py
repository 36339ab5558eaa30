"""The committed records agree with the errors that others printed, and with their own rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import published
from wmr_cli.storage import records

COMPARISONS = list(published.list_comparisons())
ATTACKED = [one for one in COMPARISONS if one[1]]


def name_case(value: object) -> str | None:
    return str(value["name"]) if isinstance(value, dict) else None


@pytest.mark.parametrize(
    ("network", "attack", "printed", "here"),
    [one for one in COMPARISONS if one[2] is not None],
    ids=name_case,
)
def test_a_measured_error_rounds_to_the_printed_one(
    network: dict[str, Any], attack: str, printed: str, here: float
) -> None:
    digits = len(printed.partition(".")[2])
    assert f"{here:.{digits}f}" == printed


@pytest.mark.parametrize(("network", "attack", "printed", "here"), ATTACKED, ids=name_case)
def test_an_attack_stays_below_the_proved_error(
    network: dict[str, Any], attack: str, printed: str | None, here: float
) -> None:
    assert here <= float(network["proved"][1])


@pytest.mark.parametrize("file", sorted(published.RECORDS.rglob("*.json")), ids=lambda f: f.stem)
def test_a_record_follows_from_its_rows(file: Path) -> None:
    record = records.load(file)
    rows = records.load_record_rows(file, record)
    assert record.dataset.n == 10_000
    assert record.a_nat.value == np.mean(rows["clean/prediction"] == rows["label"])
    if record.a_rob is not None:
        assert record.a_rob.value == np.mean(rows["uniform/prediction"] == rows["label"])
    assert "/" not in record.checkpoint.path


def test_the_records_are_small() -> None:
    size = sum(file.stat().st_size for file in published.RECORDS.rglob("*"))
    assert size < 2_000_000
