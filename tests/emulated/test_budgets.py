"""Launches, waits of the host and bytes from the host in one training step."""

import os
from pathlib import Path

import pytest

from emulated import measuring
from emulated.device import Log
from emulated.measuring import (
    SETTINGS,
    Measured,
    check_budget,
    measure_setting,
    write_budget,
)
from wmr_cli.registry import Registry

pytestmark = [pytest.mark.emulated, pytest.mark.usefixtures("cuda_like")]

MAX_WAITS = 8
MAX_LAUNCHES_PER_PGD_STEP = 110
MAX_LAUNCHES_OF_TRADES = 3300
MAX_BYTES_FROM_HOST = 10_000


@pytest.mark.parametrize("name", SETTINGS)
def test_a_training_step_stays_within_its_budget(
    name: str, registry: Registry, tmp_path: Path
) -> None:
    measured = measure_setting(name, tmp_path, registry)
    numbers = measured.numbers()
    assert numbers["launches_per_pgd_step"] > 0
    # limits that no budget may exceed
    assert numbers["waits"] <= MAX_WAITS, measured.step.list_places("waits")
    assert numbers["waits_per_pgd_step"] == 0, measured.pgd_step.list_places("waits")
    bytes_from_host = measured.step.list_places("bytes_from_host")
    assert 0 < numbers["bytes_from_host"] <= MAX_BYTES_FROM_HOST, bytes_from_host
    if name == "resnet18-pgd":
        assert numbers["launches_per_pgd_step"] <= MAX_LAUNCHES_PER_PGD_STEP
    if name == "resnet18-trades-bf16":
        assert numbers["launches"] <= MAX_LAUNCHES_OF_TRADES
    if os.environ.get("WMR_UPDATE_BUDGETS") == "1":
        write_budget(name, measured)
    check_budget(name, measured)


@pytest.mark.parametrize("kind", ["launches", "waits", "bytes_from_host"])
@pytest.mark.parametrize("number", [2, 4])
def test_a_changed_number_is_reported_with_its_place(
    number: int, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "BUDGETS", tmp_path / "budgets.json")

    def make_measured(number: int) -> Measured:
        measured = Measured(Log())
        measured.step.counter(kind)["add", "core/pgd.py:7"] = number
        return measured

    write_budget("one", make_measured(3))
    check_budget("one", make_measured(3))
    message = "core/pgd.py:7" if number > 3 else "lower"
    with pytest.raises(AssertionError, match=message) as found:
        check_budget("one", make_measured(number))
    assert f"{kind} is {number}, not 3" in str(found.value)
