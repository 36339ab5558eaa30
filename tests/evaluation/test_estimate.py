"""`wmr evaluate --dry-run`: passes, bounds for attacks that stop early, and nothing is written."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from support.cli_runner import wmr
from wmr_cli.config import EvaluateConfig
from wmr_cli.evaluation import estimate
from wmr_cli.events import EvaluationEstimated
from wmr_cli.registry import Registry
from wmr_cli.reporting.costs import EvaluationCost
from wmr_cli.runtime.fabric import Hardware

SHORT_AUTOATTACK = "autoattack:steps=2,queries=3"


def measure_cost(run: Path, registry: Registry, **settings: Any) -> EvaluationCost:
    config = EvaluateConfig(**{"limit": 64, "batch_size": 16, **settings})
    events = estimate.estimate_evaluation(
        run, config, registry, data_dir=Path(), hardware=Hardware("cpu")
    )
    (done,) = [event for event in events if isinstance(event, EvaluationEstimated)]
    return done.cost


PASSES = [
    ({"metrics": ("nat",)}, (1, 0)),
    # the clean pass, a pass per step, and the final images
    ({"metrics": ("nat", "rob")}, (1 + 4, 3)),
    ({"metrics": ("nat", "rob"), "restarts": 2}, (1 + 2 * 4, 2 * 3)),
    # A_tr needs an attack per alpha, A_sa does not
    ({"metrics": ("nat", "rob", "sa"), "alpha_test": (1.0, 2.0)}, (1 + 4, 3)),
    ({"metrics": ("nat", "rob", "tr"), "alpha_test": (1.0, 2.0)}, (1 + 3 * 4, 3 * 3)),
]


@pytest.mark.parametrize(("settings", "passes"), PASSES)
def test_passes_per_image_are_those_of_the_attack(
    tiny_run: Path, registry: Registry, settings: dict[str, Any], passes: tuple[int, int]
) -> None:
    cost = measure_cost(tiny_run, registry, attacks=("pgd:steps=3",), **settings)
    (task,) = cost.tasks
    assert [task.forward, task.backward] == list(passes)
    assert [task.max_forward, task.max_backward] == list(passes)
    assert task.max_seconds > 0
    assert [task.seconds, cost.seconds] == [task.max_seconds] * 2
    assert cost.peak_memory


def test_repeats_and_radii_multiply_the_images(tiny_run: Path, registry: Registry) -> None:
    cost = measure_cost(tiny_run, registry, attacks=("fgsm",), eps=(0.1, 0.2), repeats=3)
    assert [(task.eps, task.images) for task in cost.tasks] == [(0.1, 192), (0.2, 192)]


def test_an_attack_that_stops_early_has_an_upper_bound(tiny_run: Path, registry: Registry) -> None:
    settings = {"attacks": (SHORT_AUTOATTACK,), "metrics": ("nat", "rob")}
    (task,) = measure_cost(tiny_run, registry, **settings, eps=(0.3,)).tasks
    assert task.measured_images == 64
    assert task.forward is not None
    assert task.seconds is not None
    # this network is not robust, so most images need only the first attack
    assert 1 < task.forward < task.max_forward
    assert 0 < task.seconds < task.max_seconds
    # images that withstand take all steps: in a tiny ball the correct ones do
    (harmless,) = measure_cost(tiny_run, registry, **settings, eps=(1e-6,)).tasks
    assert harmless.max_forward == task.max_forward
    assert harmless.forward is not None
    assert task.forward < harmless.forward <= harmless.max_forward


def test_a_batch_that_takes_too_long_is_abandoned(
    tiny_run: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "MAX_SECONDS", 0.0)
    attacks = ("pgd:steps=3", SHORT_AUTOATTACK)
    cost = measure_cost(tiny_run, registry, attacks=attacks, metrics=("nat", "rob"))
    pgd, autoattack = cost.tasks
    assert (pgd.measured_images, autoattack.measured_images) == (0, 0)
    # its passes are known without an attack
    assert (pgd.forward, pgd.backward) == (5, 3)
    assert pgd.seconds == pgd.max_seconds > 0
    assert (autoattack.forward, autoattack.seconds, cost.seconds) == (None, None, None)
    assert cost.max_seconds > autoattack.max_seconds > 0


def test_the_network_that_counts_passes_withstands(tiny_run: Path, registry: Registry) -> None:
    network = estimate.WithstandingNetwork(10)
    images = torch.rand(4, 1, 8, 8, requires_grad=True)
    logits = network(images)
    assert logits.argmax(dim=1).tolist() == [0] * 4
    loss = torch.nn.functional.cross_entropy(logits, logits.argmax(dim=1))
    (gradient,) = torch.autograd.grad(loss, images)
    assert (gradient != 0).all()


def test_the_command_writes_nothing_and_names_stored_records(
    tiny_run: Path, tmp_path: Path
) -> None:
    flags = ("--limit", "32", "--attack", "fgsm", "--metrics", "nat,rob", "--out", tmp_path / "out")
    result = wmr("evaluate", tiny_run, *flags, "--dry-run", "--format", "json")
    assert not (tmp_path / "out").exists()
    (cost,) = json.loads(result.stdout)
    assert cost["tasks"][0]["images"] == 32
    assert not cost["tasks"][0]["stored"]
    wmr("evaluate", tiny_run, *flags, "-q")
    before = sorted((tmp_path / "out").iterdir())
    table = wmr("evaluate", tiny_run, *flags, "--attack", SHORT_AUTOATTACK, "--dry-run")
    assert sorted((tmp_path / "out").iterdir()) == before
    # the run, which both rows share, is above the table
    fgsm, autoattack = (
        line
        for line in table.stdout.splitlines()
        if line.strip().startswith(("fgsm", "autoattack"))
    )
    assert "stored" in fgsm
    assert "≤" in autoattack
    text = wmr("evaluate", tiny_run, *flags, "--dry-run", "--format", "csv", "-q").stdout
    (row,) = csv.DictReader(text.splitlines())
    assert (row["images"], row["stored"], float(row["max_seconds"])) == ("0", "True", 0.0)


def test_a_dry_run_refuses_what_the_evaluation_would(tiny_run: Path) -> None:
    wmr("evaluate", tiny_run, "--metrics", "nat", "--require", "a_rob>=0", "--dry-run", status=2)
