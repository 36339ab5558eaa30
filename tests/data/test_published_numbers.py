"""Networks of others have the errors that their authors printed, with commands alone."""

from pathlib import Path
from typing import Any

import pytest

import published_numbers
from support.real_data import CHECKPOINTS, needs_checkpoints, needs_data
from wmr_cli.spec import Spec

pytestmark = [pytest.mark.data, needs_checkpoints, needs_data]


@pytest.mark.parametrize(
    "network", published_numbers.list_networks(), ids=lambda network: network["name"]
)
def test_errors_are_those_that_were_printed(network: dict[str, Any], tmp_path: Path) -> None:
    measured = [record for record, _ in published_numbers.evaluate(network, CHECKPOINTS, tmp_path)]
    assert len(measured) == max(1, len(network["attacks"]))
    for record in measured:
        assert record.dataset.n == 10_000
        if network["clean"] is not None:
            check_error(record.a_nat.value, network["clean"])
    for attack, printed in network["attacks"].items():
        (record,) = (one for one in measured if Spec.parse(one.attack.spec) == Spec.parse(attack))
        assert record.a_rob is not None
        assert 100 * (1 - record.a_rob.value) <= float(network["proved"][1]) + 1e-9
        if printed is not None:
            check_error(record.a_rob.value, printed)


def check_error(accuracy: float, printed: str) -> None:
    """Check that an error rounds to the printed one, in percent."""
    digits = len(printed.partition(".")[2])
    assert f"{round(100 * (1 - accuracy), 6):.{digits}f}" == printed
