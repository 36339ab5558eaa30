"""The numerics check passes on a CPU, and fails for each fault that is seeded here."""

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from exact_digits import read_layers
from exact_margins import find_exact_margin, margin_at
from support.cli_runner import wmr
from wmr_cli import create
from wmr_cli.builtins.attacks.autoattack import AutoAttack
from wmr_cli.core import rng
from wmr_cli.core.protocols import AttackResult, Batch
from wmr_cli.core.run_attack import predictions
from wmr_cli.numerics import checks
from wmr_cli.numerics.checks import Finding, check_numerics
from wmr_cli.numerics.reference import EPS, FILE, NUM_IMAGES, load_reference

CPU = torch.device("cpu")
TF32_DROPPED_BITS = 13
PRODUCTS = ((functional, "linear"), (functional, "conv2d"), (Tensor, "__matmul__"))


def test_a_cpu_passes() -> None:
    done = wmr("doctor", "--numerics", "--device", "cpu", "--format", "json")
    printed = json.loads(done.stdout)
    assert printed["problems"] == []
    assert printed["facts"]["numerics"] == "cpu"
    findings = printed["numerics"]
    assert [one["quantity"] for one in findings if not one["passed"]] == []
    # rounding stays far below the tolerances
    assert all(one["deviation"] <= one["tolerance"] / 10 for one in findings)
    assert len(findings) > 10


@contextmanager
def round_products() -> Iterator[None]:
    """Round the factors of float32 products like TF32."""

    def round_factors(product: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def rounded(left: Tensor, right: Tensor, *args: object) -> Tensor:
            return product(round_to_tf32(left), round_to_tf32(right), *args)

        return rounded

    with pytest.MonkeyPatch.context() as patch:
        for module, name in PRODUCTS:
            patch.setattr(module, name, round_factors(getattr(module, name)))
        yield


def round_to_tf32(values: Tensor) -> Tensor:
    if values.dtype != torch.float32:
        return values
    half = 1 << (TF32_DROPPED_BITS - 1)
    bits = values.detach().contiguous().view(torch.int32) + half
    rounded = (bits >> TF32_DROPPED_BITS << TF32_DROPPED_BITS).view(torch.float32)
    # the gradient is that of the identity
    return values + (rounded - values).detach()


@contextmanager
def perturb_a_weight() -> Iterator[None]:
    stored = load_reference()
    with torch.no_grad():
        weights = next(stored.network.parameters()).view(-1)
        # the precision of bfloat16
        weights[weights.abs().argmax()] *= 1 + 2**-8
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "load_reference", lambda: stored)
        yield


@contextmanager
def drop_a_philox_round() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rng, "_ROUNDS", 9)
        yield


@contextmanager
def attack_in_vain() -> Iterator[None]:
    def leave_clean(
        self: AutoAttack, model: torch.nn.Module, batch: Batch, *args: object, **kwargs: object
    ) -> AttackResult:
        survived = torch.zeros_like(batch.labels)
        return AttackResult(batch.images, survived, model(batch.images))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AutoAttack, "__call__", leave_clean)
        yield


@contextmanager
def leave_the_ball() -> Iterator[None]:
    stored = load_reference()
    # the proofs for a ball that is too small for the attack
    claimed = replace(stored, lowest_margins=stored.lowest_margins + 0.5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "load_reference", lambda: claimed)
        yield


FAULTS: dict[str, tuple[Callable[[], AbstractContextManager[Any]], set[str]]] = {
    "a weight": (perturb_a_weight, {"clean logits"}),
    "TF32": (
        round_products,
        {"wrong entries", "convolutions", "fused convolutions", "clean logits"},
    ),
    "random numbers": (drop_a_philox_round, {"random words"}),
    "an attack without effect": (attack_in_vain, {"AutoAttack: fraction"}),
    "an attack outside the ball": (leave_the_ball, {"PGD: margin", "AutoAttack: misclassified"}),
}


@pytest.mark.parametrize(("seed_fault", "named"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_found(
    seed_fault: Callable[[], AbstractContextManager[Any]], named: set[str]
) -> None:
    with seed_fault():
        failed = [one.quantity for one in check_numerics(CPU) if not one.passed]
    assert [name for name in named if not any(text.startswith(name) for text in failed)] == []


def test_a_value_that_is_not_a_number_fails() -> None:
    finding = Finding("logits", float("nan"), 0, tolerance=1)
    assert not finding.passed
    assert finding.to_builtins()["here"] is None


def test_the_command_fails_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = [
        Finding("logits", 0.5, 0, tolerance=0.1),
        Finding("margins", 0.5, 0.4, is_bound=True),
    ]
    monkeypatch.setattr(checks, "check_numerics", lambda device: findings)
    done = wmr("doctor", "--numerics", "--device", "cpu", status=1)
    assert "logits" in done.stderr
    assert "margins" not in done.stderr
    assert "TF32" in done.stderr
    assert done.stdout.count("failed") == 1


def test_a_device_without_numerics_is_refused() -> None:
    assert "--device" in wmr("doctor", "--device", "cpu", status=2).stderr


# ---- the reference ----


def test_some_images_are_proved_again() -> None:
    stored = load_reference()
    layers = read_layers(stored.network)
    batch = create("dataset", "digits").splits["test"].batch(torch.arange(NUM_IMAGES))
    for position in (2, 3, 4):
        pixels = batch.images[position].flatten().double().numpy()
        found = find_exact_margin(layers, pixels, int(batch.labels[position]), EPS)
        assert found.bound == pytest.approx(float(stored.lowest_margins[position]), abs=1e-6)
        assert found.attained == pytest.approx(found.bound, abs=1e-6)


def test_a_proof_agrees_with_all_images_of_a_grid() -> None:
    generator = np.random.default_rng(0)
    sizes = (2, 4, 3, 3)
    layers = [
        (generator.normal(size=(after, before)), generator.normal(size=after))
        for before, after in itertools.pairwise(sizes)
    ]
    image = np.array([0.45, 0.9])
    axes = [np.linspace(max(one - 0.2, 0), min(one + 0.2, 1), 101) for one in image]
    for label in range(3):
        found = find_exact_margin(layers, image, label, eps=0.2)
        on_grid = min(margin_at(layers, np.array([x, y]), label) for x in axes[0] for y in axes[1])
        assert found.bound - 1e-6 <= found.attained <= on_grid + 1e-9
        assert found.bound == pytest.approx(on_grid, abs=0.05)


def test_both_robust_and_vulnerable_images_are_proved() -> None:
    stored = load_reference()
    batch = create("dataset", "digits").splits["test"].batch(torch.arange(NUM_IMAGES))
    is_correct = predictions(stored.network(batch.images)) == batch.labels
    is_robust = stored.lowest_margins > 0
    assert is_robust.sum() > NUM_IMAGES / 4
    assert (is_correct & ~is_robust).sum() > NUM_IMAGES / 8
    assert not (is_robust & ~is_correct).any()


def test_the_file_is_small() -> None:
    assert Path(checks.__file__).with_name(FILE).stat().st_size < 100_000
