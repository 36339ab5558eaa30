"""Race `wmr` against other libraries and against the machine, print ratios, write `results.json`: `make bench`."""

import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

os.environ.setdefault("GOMP_SPINCOUNT", "30000")  # as the program sets it, for all alike, before torch is there

import torch
import typer
from rich.console import Console

from wmr_cli.storage.files import write_text
from wmr_cli.workflows.timing import Spread

from . import ours, races, scaling, tables
from .cases import CASES
from .elsewhere import Elsewhere, elsewhere
from .races import BARE, OURS, PEAK, Effort, Race

WIDTH = 120
RESULTS = Path(__file__).parent / "results.json"


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds, steps and images: under two minutes.")] = False,
    only: Annotated[list[str] | None, typer.Option(help="Races whose names begin so, such as pgd/ or trades/small.")] = None,
    seconds: Annotated[float | None, typer.Option(help="About how long each race may take.")] = None,
    out: Annotated[Path, typer.Option(help="Where the ratios go.")] = RESULTS,
) -> None:
    """Race `wmr` against its peers and against the limit of this machine."""
    console, patience = Console(width=WIDTH), seconds or (5.0 if quick else 120.0)
    effort = Effort(quick, rounds=5 if quick else 9, seconds=patience)
    wanted, started, found = tuple(only or [""]), time.perf_counter(), dict[str, Spread]()
    console.print(f"torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    with tempfile.TemporaryDirectory() as folder, elsewhere() as others:
        for race, ratios in raced(Path(folder), effort, wanted, others):
            console.print(tables.race(race), "")
            found |= ratios
        if "scaling".startswith(wanted) and (only or not quick):
            for growth in scaling.growths(CASES["small-cnn"], Path(folder), effort):
                console.print(tables.growth(growth), "")
    bare = [found[name] for name in found if name.startswith("pgd/bare/")]
    if bare:
        found["pgd/bare"] = max(bare, key=lambda spread: spread.median)
    console.print(tables.ratios(found))
    console.print(f"{time.perf_counter() - started:.0f} s")
    write_text(out, json.dumps({name: round(value.median, 4) for name, value in found.items()}, indent=1) + "\n")


def raced(folder: Path, effort: Effort, wanted: tuple[str, ...], others: Elsewhere) -> Iterator[tuple[Race, dict[str, Spread]]]:
    """Every race that is wanted, each with the ratios that it settles."""
    for name, case in CASES.items():
        if f"pgd/{name}".startswith(wanted):
            short = ours.shortened(case, 5) if effort.is_quick and name == "resnet18" else case
            race = races.attacks(short, folder, effort, others)
            yield race, {f"pgd/{name}": against_fastest(race), f"pgd/bare/{name}": race.ratio(OURS, BARE)}
        if f"trades/{name}".startswith(wanted):
            race = races.trades(case, folder, effort, others)
            yield race, {f"trades/{name}": against_fastest(race)}
    case = CASES["small-cnn"]
    if "pgd-training/small-cnn".startswith(wanted):
        race = races.pgd_training(case, folder, effort, others)
        yield race, {"pgd-training/small-cnn": against_fastest(race)}
    if "evaluation/attacks".startswith(wanted):
        race = races.evaluation(case, folder, effort, images=1024)
        yield race, {"evaluation/attacks": race.ratio(races.WHOLE, races.ONE)}


def against_fastest(race: Race) -> Spread:
    """How many times as fast as the fastest peer we are."""
    return race.ratio(race.fastest(OURS, BARE, PEAK), OURS)


if __name__ == "__main__":
    typer.run(main)
