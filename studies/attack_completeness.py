"""Measure which fraction of the truly vulnerable images each attack finds, and at what cost.

Usage: `python studies/attack_completeness.py [CHECKPOINTS] [NAME ...]`, for all networks or the
named ones. Attacks whose results are in `attack_completeness.json` are not repeated: remove
them there first. `docs/generate.py` and `docs/draw.py` read that file.

The exact error is known: of the digits network in the package image by image, of four networks in
CHECKPOINTS (see `published_numbers.json`) in sum. Images that are misclassified without an attack
count in both errors, so that only the others are attacked. The cost is CPU time of one thread,
relative to `pgd:steps=40` on the same images.
"""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor, nn

import wmr_cli
from published_networks import Mlp
from published_numbers import list_networks
from wmr_cli.core.losses import get_objective
from wmr_cli.core.protocols import Batch
from wmr_cli.core.run_attack import predictions
from wmr_cli.numerics.reference import EPS, NUM_IMAGES, load_reference
from wmr_cli.storage.atomic import write_text

OUT = Path(__file__).with_suffix(".json")
UNIT_OF_COST = "pgd:steps=40"
BATCH_SIZE = 256

PGD = tuple(
    f"{name}:steps={steps},restarts={restarts}"
    for restarts in (1, 10)
    for steps in (10, 20, 40, 100, 400)
    for name in ("pgd", "pgd-margin")
)
APGD = tuple(
    f"{name}:steps={steps}" for steps in (20, 100, 400) for name in ("apgd-ce", "apgd-dlr")
)
TARGETED = ("apgd-t:steps=20", "apgd-t:steps=100", "fab-t:steps=20", "fab-t:steps=100")
SQUARE = ("square:queries=500,stops_early=true", "square:queries=5000,stops_early=true")
AUTOATTACK = (
    "autoattack:attacks=apgd-ce:apgd-t",
    "autoattack:steps=20,queries=500",
    "autoattack",
    "autoattack:attacks=apgd-ce:apgd-dlr:apgd-t:fab-t:square",
    "autoattack:steps=400",
)
MORE_RESTARTS = ("apgd-ce:restarts=10", "apgd-dlr:restarts=10", "apgd-t:restarts=5")
FULL_GRID = (*APGD, *TARGETED, *AUTOATTACK, *SQUARE, *MORE_RESTARTS, *PGD)
SMALL_GRID = (
    "pgd:steps=40,restarts=1",
    "pgd-margin:steps=40,restarts=1",
    "apgd-ce:steps=100",
    "apgd-dlr:steps=100",
    "apgd-t:steps=20",
    "autoattack",
)
"""For networks on 10,000 images."""
DETAILED = "LPD_MLP_B_0.4"
"""It classifies a third of the images correctly, so that a larger grid takes less time."""
LARGE_GRID = (
    *SMALL_GRID,
    "apgd-t:steps=20,restarts=5",
    "apgd-t:steps=100",
    "autoattack:steps=20,queries=500",
    "pgd:steps=100,restarts=1",
    "pgd-margin:steps=100,restarts=1",
    "pgd:steps=40,restarts=10",
    "pgd-margin:steps=40,restarts=10",
    "fab-t:steps=100",
)


@dataclass(frozen=True, eq=False)
class Target:
    """A network, the images that it classifies correctly, and how many of them are vulnerable."""

    name: str
    model: nn.Module
    correct: Batch
    eps: float
    vulnerable: int
    is_vulnerable: Tensor | None
    """By image (N,), if that is known."""
    attacks: tuple[str, ...]


def make_digits() -> Target:
    """Return the network in the package with its proved images."""
    reference = load_reference()
    correct, positions = select_correct(reference.network, "digits", NUM_IMAGES)
    is_vulnerable = reference.lowest_margins[positions] < 0
    number = int(is_vulnerable.sum())
    return Target("digits", reference.network, correct, EPS, number, is_vulnerable, FULL_GRID)


def list_published(checkpoints: Path) -> Iterator[Target]:
    """Yield the networks in a folder whose exact error is known."""
    for network in list_networks():
        low, high = network["proved"]
        if low is None or low != high:
            continue
        model = Mlp()
        model.load_state_dict(wmr_cli.read_saved(checkpoints / network["file"]))
        correct, _ = select_correct(model.eval().requires_grad_(False), network["dataset"])
        # percent of 10,000 images
        vulnerable = round(100 * (float(high) - float(network["clean"])))
        attacks: tuple[str, ...] = SMALL_GRID
        if network["name"] == DETAILED:
            attacks = LARGE_GRID
        yield Target(network["name"], model, correct, network["eps"], vulnerable, None, attacks)


def select_correct(
    model: nn.Module, dataset: str, images: int | None = None
) -> tuple[Batch, Tensor]:
    """Return which of the first test images a model classifies correctly, and their positions."""
    split = wmr_cli.create("dataset", dataset).splits["test"]
    batch = split.batch(torch.arange(len(split))[:images])
    with torch.no_grad():
        positions = (model(batch.images).argmax(dim=1) == batch.labels).nonzero().squeeze(1)
    return batch.select(positions), positions


def attack(target: Target, spec: str, images: int | None = None) -> tuple[Tensor, float]:
    """Return which images an attack turns into misclassified ones, and its CPU time per image."""
    component = wmr_cli.create("attack", spec, eps=target.eps)
    objective = get_objective(component.traits.objective)
    found = []
    started = time.process_time()
    for rows in torch.arange(len(target.correct.labels))[:images].split(BATCH_SIZE):
        batch = target.correct.select(rows)
        result = component(target.model, batch, objective, seed=0)
        found.append(predictions(result.require_logits()) != batch.labels)
    is_found = torch.cat(found)
    return is_found, (time.process_time() - started) / len(is_found)


def measure(target: Target, spec: str) -> dict[str, float]:
    """Return the number of images that an attack finds, and its relative cost."""
    # alternately, so that other load on the machine affects both
    _, unit = attack(target, UNIT_OF_COST, BATCH_SIZE)
    found, seconds = attack(target, spec)
    if target.is_vulnerable is not None:
        assert not (found & ~target.is_vulnerable).any(), "a proof or an attack is wrong"
    assert int(found.sum()) <= target.vulnerable
    return {"found": int(found.sum()), "cost": round(seconds / unit, 2)}


def main() -> None:
    """Measure the networks and update the results."""
    torch.set_num_threads(1)
    checkpoints = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    targets = chain([make_digits()], list_published(checkpoints) if checkpoints else ())
    for target in targets:
        if target.name in (sys.argv[2:] or [target.name]):
            # the first run of an attack imports modules
            attack(target, UNIT_OF_COST, BATCH_SIZE)
            for spec in target.attacks:
                store(target, spec)


def store(target: Target, spec: str) -> None:
    """Measure an attack, unless its result is stored."""
    results = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
    if spec in results.get(target.name, {}).get("attacks", {}):
        return
    measured = measure(target, spec)
    # another process may have stored results meanwhile
    results = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
    facts = {
        "eps": target.eps,
        "attacked": len(target.correct.labels),
        "vulnerable": target.vulnerable,
    }
    network = results.setdefault(target.name, {**facts, "attacks": {}})
    network["attacks"][spec] = measured
    write_text(OUT, json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
