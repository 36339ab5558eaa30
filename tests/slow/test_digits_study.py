"""The paper's claim on the embedded data, over five seeds: weighting helps against an attacker who chooses."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean

import pytest

from support.typed import not_none
from wmr_cli.reporting.report import gather_records
from wmr_cli.storage import records

pytestmark = pytest.mark.slow
SEEDS = range(5)


def wmr(folder: Path, *words: object) -> None:
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-m", "wmr_cli", *map(str, words), "--quiet"],
        cwd=folder,
        env=one_thread,
        check=True,
    )


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> dict[float, list[records.Record]]:
    """The records of TRADES with alpha 0 and 2, each over five seeds, all settings but alpha and seed those of the preset."""
    folder = tmp_path_factory.mktemp("study")

    def run(case: tuple[int, int]) -> None:
        alpha, seed = case
        name = f"a{alpha}-s{seed}"
        wmr(
            folder,
            "train",
            "--defense",
            "trades",
            "--alpha",
            alpha,
            "--seed",
            seed,
            "--out",
            folder / "runs" / name,
        )
        wmr(folder, "evaluate", folder / "runs" / name, "--alpha-test", "2")

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(run, [(alpha, seed) for seed in SEEDS for alpha in (0, 2)]))
    found = gather_records([folder / "runs"]).records
    return {
        alpha: [record for record in found if record.checkpoint.alpha_train == alpha]
        for alpha in (0.0, 2.0)
    }


def test_every_run_keeps_its_natural_accuracy(study: dict[float, list[records.Record]]) -> None:
    assert [len(records) for records in study.values()] == [5, 5]
    assert min(record.a_nat.value for records in study.values() for record in records) >= 0.95


@pytest.mark.parametrize("metric", ["a_sa", "a_tr"])
def test_weighted_training_wins_against_the_attacker_who_chooses(
    study: dict[float, list[records.Record]], metric: str
) -> None:
    means = {
        alpha: mean(getattr(record.by_alpha[0], metric).value for record in records)
        for alpha, records in study.items()
    }
    assert means[2.0] > means[0.0]


def test_weighted_training_costs_no_robust_accuracy(
    study: dict[float, list[records.Record]],
) -> None:
    means = {
        alpha: mean(not_none(record.a_rob).value for record in records)
        for alpha, records in study.items()
    }
    assert means[2.0] > means[0.0] - 0.02
