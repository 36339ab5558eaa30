"""Measure how often the intervals hold the truth, on test sets drawn from stored records.

Usage: `python studies/interval_coverage.py [NAME ...]`, for all populations or the named ones.
`docs/generate.py` reads the result, `interval_coverage.json`.

The rows of a record are a population whose accuracies are known. Each test set is drawn from it
with replacement. The interval is the one that `wmr` prints: the formulas for an accuracy, paired
resamples for the difference between training with weights and without.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wmr_cli import measures
from wmr_cli.measures import MARGIN_KERNEL, Outcome
from wmr_cli.spec import Spec
from wmr_cli.storage import records
from wmr_cli.storage.atomic import write_text
from wmr_cli.storage.records import Rows

STUDIES = Path(__file__).parent
OUT = Path(__file__).with_suffix(".json")
POPULATIONS = {
    "digits": ("digits/digits-trades-a0-s0", "digits/digits-trades-a2-s0"),
    "mnist": ("mnist-cpu/mnist-trades-a0-s0", "mnist-cpu/mnist-trades-a2-s0"),
    "cifar10": ("cifar10-cpu/cifar10-trades-a0-s0", "cifar10-cpu/cifar10-trades-a2-s0"),
}
"""Two runs on the same test images: training without weights, and with them."""
SIZES = (250, 1000)
"""Numbers of images in a test set."""
TEST_SETS = 5000
TEST_SETS_PER_BLOCK = 50
"""Blocks bound the memory of the outcomes."""
ALPHAS = (1.0, 2.0)

Coverage = dict[str, float]
"""A fraction for each accuracy, and for each difference, such as `a_rob difference`."""


def load_pair(name: str) -> tuple[Rows, Rows]:
    """Return the rows of both runs under PGD at the eps of training."""
    first, second = (load_rows(STUDIES / "records" / run) for run in POPULATIONS[name])
    assert np.array_equal(first["index"], second["index"])
    return first, second


def load_rows(run: Path) -> Rows:
    """Return the rows of the record of PGD with the fewest steps, at the eps of training."""
    found = []
    for file in records.find_records(run):
        record = records.load(file)
        config = record.checkpoint.config or {}
        attack = Spec.parse(record.attack.spec)
        if attack.name == "pgd" and record.threat.eps == config.get("eps"):
            found.append((int(str(attack.params["steps"])), file, record))
    _, file, record = min(found, key=lambda one: one[0])
    return records.load_record_rows(file, record)


def list_outcomes(rows: Rows) -> Iterator[tuple[str, Outcome]]:
    """Yield every accuracy by its name, such as `a_sa(2)`."""
    calibration = measures.calibrate(rows)
    outcomes = {"a_rob": measures.plain_outcome(rows, "uniform")}
    for alpha in ALPHAS:
        outcomes |= {
            f"a_sa({alpha:g})": measures.sampled_outcome(rows, MARGIN_KERNEL, alpha),
            f"a_tr({alpha:g})": measures.crafted_outcome(rows, MARGIN_KERNEL, alpha),
            f"a_cal({alpha:g})": calibration.outcome(alpha),
        }
    for name, outcome in outcomes.items():
        assert outcome is not None
        yield name, outcome


def measure_coverage(name: str, images: int, test_sets: int = TEST_SETS) -> Coverage:
    """Return how often the intervals of a population hold the truth."""
    pair = load_pair(name)
    truths = [{key: one.estimate().value for key, one in list_outcomes(rows)} for rows in pair]
    # the seed of the resamples is that of every report
    resamples = measures.Resamples(images)
    rng = np.random.default_rng(images)
    draws = rng.integers(len(pair[0]["index"]), size=(test_sets, images))
    hits = dict.fromkeys([*truths[0], *(f"{key} difference" for key in truths[0])], 0)
    for block in np.array_split(draws, -(-test_sets // TEST_SETS_PER_BLOCK)):
        drawn = [draw_outcomes(pair, positions) for positions in block]
        for outcomes in drawn:
            for key, outcome in outcomes[0].items():
                found = outcome.estimate()
                hits[key] += found.low <= truths[0][key] <= found.high
        for key in truths[0]:
            # one product for all test sets of a block
            resampled = resamples.of([side[key] for outcomes in drawn for side in outcomes])
            for first, second in zip(resampled[::2], resampled[1::2], strict=True):
                gap = second.minus(first)
                hits[f"{key} difference"] += gap.low <= truths[1][key] - truths[0][key] <= gap.high
    return {key: number / test_sets for key, number in hits.items()}


def draw_outcomes(
    pair: tuple[Rows, Rows], positions: NDArray[np.int64]
) -> list[dict[str, Outcome]]:
    """Return the accuracies of both runs on a test set of the images at these positions."""
    return [
        dict(list_outcomes({key: values[positions] for key, values in rows.items()}))
        for rows in pair
    ]


def main() -> None:
    """Measure the populations and update the results."""
    for name in sys.argv[1:] or POPULATIONS:
        for images in SIZES:
            measured = measure_coverage(name, images)
            results = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
            results.setdefault(name, {})[str(images)] = measured
            write_text(OUT, json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
