"""What alpha of training does on the embedded digits, over three seeds: `python studies/digits_alpha.py [OUT]`.

TRADES and PGD training by their preset, at several alpha. Writes what the last epoch says of the weights, and what the test
images say of the network, as JSON; `docs/generate.py` turns the file beside this one into a table, `docs/draw.py` into a picture.
"""

import json
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from digits_defenses import wmr

from wmr_cli import measures
from wmr_cli.reporting.report import gather
from wmr_cli.spec import exact
from wmr_cli.storage import records
from wmr_cli.storage.runs import RunFolder

SEEDS = range(3)
ALPHAS = {"trades": (0, 1, 2, 5, 10), "pgd": (0, 0.5, 2, 5)}
ALPHA_TEST = 2.0
HEALTH = ("weight_mean", "weight_max", "weight_ess", "weight_on_wrong")
FOUND = Path(__file__).with_suffix(".json")


def train_and_evaluate(folder: Path, defense: str, alpha: float, seed: int) -> Path:
    """A run, measured under its usual attack and under one that does not depend on the scale of the logits."""
    out = folder / f"{defense}-{exact(alpha)}-{seed}"
    wmr(folder, "train", "--defense", defense, "--alpha", alpha, "--seed", seed, "--out", out)
    wmr(
        folder,
        "evaluate",
        out,
        "--alpha-test",
        ALPHA_TEST,
        "--attack",
        "pgd",
        "--attack",
        "apgd-dlr",
    )
    return out


def found_in(run: Path) -> dict[str, float]:
    """The health of its weights at the end of training, and its accuracies; `worst` is under both attacks."""
    by_attack = {
        record.attack.spec.partition(":")[0]: (file, record) for file, record in gather([run]).found
    }
    file, record = by_attack["pgd"]
    (chosen,) = record.by_alpha
    entry = RunFolder(run).read_log()[-1]
    return {
        **{name: entry[name] for name in HEALTH},
        "a_nat": record.a_nat.value,
        "a_rob": record.a_rob.value,
        "a_rob_worst": by_attack["worst"][1].a_rob.value,
        "a_sa": chosen.a_sa.value,
        "a_sa_ess": chosen.a_sa.ess / record.dataset.n,
        "a_sa_calibrated": measures.calibrated_accuracy(
            records.rows_of(file, record), ALPHA_TEST
        ).value,
        "a_tr": chosen.a_tr.value,
    }


def study(folder: Path) -> dict[str, dict[str, dict[str, list[float]]]]:
    """By defense, alpha and quantity, a value for each seed."""
    cases = [
        (defense, alpha, seed)
        for defense, alphas in ALPHAS.items()
        for alpha in alphas
        for seed in SEEDS
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = pool.map(lambda case: train_and_evaluate(folder, *case), cases)
        seen = {case: found_in(run) for case, run in zip(cases, runs, strict=True)}
    return {
        defense: {
            exact(alpha): {
                name: [seen[defense, alpha, seed][name] for seed in SEEDS]
                for name in seen[defense, alpha, 0]
            }
            for alpha in alphas
        }
        for defense, alphas in ALPHAS.items()
    }


if __name__ == "__main__":
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else FOUND
    with tempfile.TemporaryDirectory() as folder:
        found = study(Path(folder))
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
