"""The paper's claim on the digits: weighting raises A_sa and A_tr, and does not lower A_rob.

Differences between alpha 0 and 2 are at least four times their standard error over three seeds.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from statistics import mean

import pytest

from wmr_cli.measures import Estimate
from wmr_cli.reporting.report import gather_records
from wmr_cli.storage.records import Record

pytestmark = pytest.mark.slow
ALPHAS = (0, 2)
SEEDS = range(3)

Records = dict[float, list[Record]]
"""By alpha of training, one record per seed."""


def run_wmr(*words: object) -> None:
    subprocess.run(
        [sys.executable, "-m", "wmr_cli", *map(str, words), "--quiet"],
        # several commands run at a time
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
    )


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Records:
    """Return records of TRADES; all settings but alpha and seed are those of the preset."""
    folder = tmp_path_factory.mktemp("study")

    def run(case: tuple[int, int]) -> None:
        alpha, seed = case
        out = folder / f"a{alpha}-s{seed}"
        flags = ["--defense", "trades", "--alpha", alpha, "--seed", seed, "--out", out]
        run_wmr("train", *flags)
        run_wmr("evaluate", out, "--alpha-test", "2")

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(run, [(alpha, seed) for seed in SEEDS for alpha in ALPHAS]))
    found = gather_records([folder]).records
    return {
        alpha: [record for record in found if record.checkpoint.alpha_train == alpha]
        for alpha in ALPHAS
    }


def value(estimate: Estimate | None) -> float:
    assert estimate is not None
    return estimate.value


def test_every_run_keeps_its_natural_accuracy(records: Records) -> None:
    for by_seed in records.values():
        assert len(by_seed) == len(SEEDS)
        assert min(value(record.a_nat) for record in by_seed) >= 0.95


def test_weighted_training_raises_a_sa(records: Records) -> None:
    a_sa = {
        alpha: mean(value(record.by_alpha[0].a_sa) for record in by_seed)
        for alpha, by_seed in records.items()
    }
    assert a_sa[2] > a_sa[0]


def test_weighted_training_raises_a_tr(records: Records) -> None:
    a_tr = {
        alpha: mean(value(record.by_alpha[0].a_tr) for record in by_seed)
        for alpha, by_seed in records.items()
    }
    assert a_tr[2] > a_tr[0]


def test_weighted_training_does_not_lower_robust_accuracy(records: Records) -> None:
    a_rob = {
        alpha: mean(value(record.a_rob) for record in by_seed) for alpha, by_seed in records.items()
    }
    assert a_rob[2] > a_rob[0] - 0.02
