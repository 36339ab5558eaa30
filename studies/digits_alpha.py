"""Measure the effect of the training alpha on the embedded digits, over three seeds.

Usage: `python studies/digits_alpha.py [OUT]`.

Trains TRADES and PGD with their presets at several alpha. Writes statistics of the weights in the
last epoch, and accuracies on the test set, as JSON. `docs/generate.py` makes a table of the file
next to this one, `docs/draw.py` a figure.
"""

import json
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from digits_defenses import run_wmr
from wmr_cli import measures
from wmr_cli.reporting.report import gather_records
from wmr_cli.spec import format_number
from wmr_cli.storage import records
from wmr_cli.storage.runs import RunFolder

SEEDS = range(3)
ALPHAS = {"trades": (0, 1, 2, 5, 10), "pgd": (0, 0.5, 2, 5)}
ALPHA_TEST = 2.0
WEIGHT_STATISTICS = ("weight_mean", "weight_max", "weight_ess", "weight_on_wrong")
OUT = Path(__file__).with_suffix(".json")

Values = dict[str, float]
"""Quantities of one run, by name."""
Results = dict[str, dict[str, dict[str, list[float]]]]
"""By defense, alpha and quantity, one value per seed."""


def train_and_evaluate(folder: Path, defense: str, alpha: float, seed: int) -> Path:
    """Make a run, and evaluate it with its usual attack and with APGD-DLR.

    The loss of the second attack does not depend on the scale of the logits.
    """
    out = folder / f"{defense}-{format_number(alpha)}-{seed}"
    train_flags = ["--defense", defense, "--alpha", alpha, "--seed", seed, "--out", out]
    run_wmr(folder, "train", *train_flags)
    attacks = ["--attack", "pgd", "--attack", "apgd-dlr"]
    run_wmr(folder, "evaluate", out, "--alpha-test", ALPHA_TEST, *attacks)
    return out


def read_values(run: Path) -> Values:
    """Return the weight statistics of the last epoch and the accuracies.

    `a_rob_worst` is the accuracy under the worst case of both attacks.
    """
    by_attack = {
        record.attack.spec.partition(":")[0]: (file, record)
        for file, record in gather_records([run]).found
    }
    file, record = by_attack["pgd"]
    worst_record = by_attack["worst"][1]
    (row,) = record.by_alpha
    last_epoch = RunFolder(run).read_log()[-1]
    rows = records.load_record_rows(file, record)
    assert record.a_rob is not None
    assert worst_record.a_rob is not None
    assert row.a_sa is not None
    assert row.a_sa.ess is not None
    assert row.a_tr is not None
    return {
        **{name: last_epoch[name] for name in WEIGHT_STATISTICS},
        "a_nat": record.a_nat.value,
        "a_rob": record.a_rob.value,
        "a_rob_worst": worst_record.a_rob.value,
        "a_sa": row.a_sa.value,
        "a_sa_ess": row.a_sa.ess / record.dataset.n,
        "a_sa_calibrated": measures.calibrated_accuracy(rows, ALPHA_TEST).value,
        "a_tr": row.a_tr.value,
    }


def run_study(folder: Path) -> Results:
    """Train and evaluate every case, several at a time."""
    cases = [
        (defense, alpha, seed)
        for defense, alphas in ALPHAS.items()
        for alpha in alphas
        for seed in SEEDS
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = pool.map(lambda case: train_and_evaluate(folder, *case), cases)
        values = {case: read_values(run) for case, run in zip(cases, runs, strict=True)}
    results: Results = {}
    for defense, alphas in ALPHAS.items():
        results[defense] = {}
        for alpha in alphas:
            by_seed = [values[defense, alpha, seed] for seed in SEEDS]
            results[defense][format_number(alpha)] = {
                name: [each[name] for each in by_seed] for name in by_seed[0]
            }
    return results


def main() -> None:
    """Run the study and write its results."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    with tempfile.TemporaryDirectory() as folder:
        results = run_study(Path(folder))
    out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
