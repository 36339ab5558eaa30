"""Compare `wmr` with other libraries and with the machine's limit: `make bench`.

Prints ratios and writes them to `results.json`.
"""

import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

# before torch is imported: the program sets it too, and all functions must run with the same value
os.environ.setdefault("GOMP_SPINCOUNT", "30000")

import torch
import typer
from rich.console import Console

from wmr_cli.benchmarking.timing import Quartiles
from wmr_cli.storage.atomic import write_text

from . import comparisons, scaling, tables, wmr_workloads
from .autoattack import AUTOATTACK_CASES, compare_autoattack, speedup_of_autoattack
from .cases import CASES
from .comparisons import BARE, PEAK, WMR, Comparison, Effort
from .peer_process import PeerProcess, start_peer_process

WIDTH = 120
RESULTS = Path(__file__).parent / "results.json"
SECONDS = 120.0
QUICK_SECONDS = 5.0
EVALUATION_IMAGES = 1024

Ratios = dict[str, Quartiles]


def main(
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer rounds, steps and images: under two minutes.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Comparisons whose names begin so, such as pgd/ or trades/small."),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Approximate time of each comparison.")
    ] = None,
    out: Annotated[Path, typer.Option(help="File for the ratios.")] = RESULTS,
) -> None:
    """Compare `wmr` with other libraries and with the limit of this machine."""
    console = Console(width=WIDTH)
    if quick:
        effort = Effort(is_quick=True, rounds=5, seconds=seconds or QUICK_SECONDS)
    else:
        effort = Effort(is_quick=False, rounds=9, seconds=seconds or SECONDS)
    prefixes = tuple(only or [""])
    started = time.perf_counter()
    ratios: Ratios = {}
    console.print(f"torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    with tempfile.TemporaryDirectory() as folder, start_peer_process() as peers:
        for comparison, new_ratios in run_comparisons(Path(folder), effort, prefixes, peers):
            console.print(tables.comparison_table(comparison), "")
            ratios |= new_ratios
        if "scaling".startswith(prefixes) and (only or not quick):
            for growth in scaling.measure_growth(CASES["small-cnn"], Path(folder), effort):
                console.print(tables.growth_table(growth), "")
    bare = [value for name, value in ratios.items() if name.startswith("pgd/bare/")]
    if bare:
        # the goal holds for every network
        ratios["pgd/bare"] = max(bare, key=lambda value: value.median)
    console.print(tables.ratio_table(ratios))
    console.print(f"{time.perf_counter() - started:.0f} s")
    medians = {name: round(value.median, 4) for name, value in ratios.items()}
    write_text(out, json.dumps(medians, indent=1) + "\n")


def run_comparisons(
    folder: Path, effort: Effort, prefixes: tuple[str, ...], peers: PeerProcess
) -> Iterator[tuple[Comparison, Ratios]]:
    """Yield every comparison whose name has one of the prefixes, with its ratios."""
    for name, case in CASES.items():
        if f"pgd/{name}".startswith(prefixes):
            attack_case = case
            if effort.is_quick and name == "resnet18":
                attack_case = wmr_workloads.with_steps(case, 5)
            found = comparisons.compare_attacks(attack_case, folder, effort, peers)
            yield (
                found,
                {
                    f"pgd/{name}": speedup_over_fastest(found),
                    f"pgd/bare/{name}": found.ratio(WMR, BARE),
                },
            )
        if f"trades/{name}".startswith(prefixes):
            found = comparisons.compare_trades(case, folder, effort, peers)
            yield found, {f"trades/{name}": speedup_over_fastest(found)}
    case = CASES["small-cnn"]
    if "pgd-training/small-cnn".startswith(prefixes):
        found = comparisons.compare_pgd_training(case, folder, effort, peers)
        yield found, {"pgd-training/small-cnn": speedup_over_fastest(found)}
    for name, autoattack_case in AUTOATTACK_CASES.items():
        if name.startswith(prefixes):
            found = compare_autoattack(autoattack_case, folder, effort)
            yield found, {name: speedup_of_autoattack(found)}
    if "evaluation/attacks".startswith(prefixes):
        found = comparisons.compare_evaluation(case, folder, effort, EVALUATION_IMAGES)
        ratio = found.ratio(comparisons.FULL_EVALUATION, comparisons.ONE_ATTACK)
        yield found, {"evaluation/attacks": ratio}


def speedup_over_fastest(comparison: Comparison) -> Quartiles:
    """Return how many times as fast as the fastest peer `wmr` is."""
    return comparison.ratio(comparison.fastest_except(WMR, BARE, PEAK), WMR)


if __name__ == "__main__":
    typer.run(main)
