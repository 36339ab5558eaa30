"""Evaluations on the emulated device have the rows of those on the CPU."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import wmr_cli
from emulated.device import NAME, recorded
from emulated.measuring import make_config, save_images
from emulated.runtime import emulation
from support.builtin_names import list_builtins
from support.cli_runner import wmr
from support.training import train
from wmr_cli.config import EvaluateConfig
from wmr_cli.core.nn import fusion
from wmr_cli.evaluation import sanity_checks
from wmr_cli.evaluation.run import evaluate
from wmr_cli.events import EvaluationDone
from wmr_cli.numerics.checks import check_numerics
from wmr_cli.registry import Registry
from wmr_cli.runtime.fabric import Hardware
from wmr_cli.storage import records
from wmr_cli.storage.records import Rows
from wmr_cli.testing import tiny_batch, tiny_model

pytestmark = pytest.mark.emulated

SPECS = {
    "authors-eval": "authors-eval:steps=2,restarts=2",
    "autoattack": "autoattack:steps=3,queries=10",
    "noise": "noise",
    "fgsm": "fgsm",
    "square": "square:queries=20",
}
"""Attacks with fewer steps than their defaults; the others have the parameter `steps`."""


def spec_of(attack: str) -> str:
    return SPECS.get(attack, f"{attack}:steps=3")


def check_equal(found: Rows, expected: Rows) -> None:
    """Compare bit by bit: the emulated device computes with the kernels of the CPU."""
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


@pytest.fixture
def _one_memory_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use contiguous images on both devices: another format has another rounding."""
    monkeypatch.setattr(fusion, "preferred_memory_format", lambda *given: torch.contiguous_format)


@pytest.mark.usefixtures("_one_memory_format")
@pytest.mark.parametrize(
    ("like_mps", "norm", "eps"), [(False, "linf", 0.05), (True, "l2", 0.1)], ids=["cuda", "mps"]
)
@pytest.mark.parametrize("attack", list_builtins("attack"))
def test_every_attack_has_the_rows_of_the_cpu(
    attack: str, norm: str, eps: float, *, like_mps: bool
) -> None:
    model = tiny_model()
    batch = tiny_batch(30)
    data = [(batch.images, batch.labels)]
    before = {name: (id(each), each.data_ptr()) for name, each in model.named_parameters()}
    settings: dict[str, Any] = {"eps": eps, "norm": norm, "attack": spec_of(attack)}
    with emulation(like_mps=like_mps):
        results = [
            wmr_cli.evaluate(model, data, **settings, alphas=(1.0,), device=device)
            for device in ("cpu", NAME)
        ]
    assert results[1].record.device == NAME
    check_equal(results[1].rows, results[0].rows)
    # the model is back on the CPU, with its own tensors
    after = {name: (id(each), each.data_ptr()) for name, each in model.named_parameters()}
    assert after == before


@pytest.mark.usefixtures("any_device")
def test_a_checkpoint_has_the_rows_of_the_cpu(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    black_box = {**sanity_checks.WEAKER_ATTACKS, "a black box does not win": "square:queries=10"}
    monkeypatch.setattr(sanity_checks, "WEAKER_ATTACKS", black_box)
    dataset = save_images(tmp_path)
    list(train(make_config(dataset), tmp_path / "run", registry, device="cpu"))
    found = {}
    for device in ("cpu", NAME):
        config = EvaluateConfig(
            attacks=("pgd:steps=3",), alpha_test=(2.0,), layout="contiguous", checks=True
        )
        events = evaluate(
            tmp_path / "run",
            config,
            registry,
            data_dir=Path(),
            hardware=Hardware(device),
            out=tmp_path / device,
        )
        (done,) = [event for event in events if isinstance(event, EvaluationDone)]
        found[device] = (done.record, records.load_rows(done.rows))
    assert found[NAME][0].id == found["cpu"][0].id
    check_equal(found[NAME][1], found["cpu"][1])


@pytest.mark.usefixtures("cuda_like")
def test_the_host_does_not_wait_for_each_step_of_an_evaluation() -> None:
    model = tiny_model()
    batch = tiny_batch(30)
    waits = []
    for steps in (3, 7):
        with recorded() as log:
            wmr_cli.evaluate(
                model,
                [(batch.images, batch.labels)],
                eps=0.05,
                attack=f"pgd:steps={steps}",
                alphas=(1.0,),
                device=NAME,
            )
        waits.append(log.count("waits"))
    assert waits[0] == waits[1], log.list_places("waits")


@pytest.mark.usefixtures("cuda_like", "_one_memory_format")
def test_a_model_on_the_device_is_evaluated_there() -> None:
    batch = tiny_batch(30)
    settings: dict[str, Any] = {"eps": 0.05, "attack": "pgd:steps=3"}
    expected = wmr_cli.evaluate(tiny_model(), [(batch.images, batch.labels)], **settings)
    images, labels = batch.images.to(NAME), batch.labels.to(NAME)
    found = wmr_cli.evaluate(tiny_model().to(NAME), [(images, labels)], **settings)
    assert found.record.device == NAME
    check_equal(found.rows, expected.rows)


@pytest.mark.usefixtures("any_device", "_one_memory_format")
def test_saved_adversarial_images_are_those_of_the_cpu(registry: Registry, tmp_path: Path) -> None:
    list(train(make_config(save_images(tmp_path)), tmp_path / "run", registry, device="cpu"))
    for device in ("cpu", NAME):
        attack = ("attack", tmp_path / "run", "--attack", "pgd", "--steps", 2)
        save = ("--save", tmp_path / f"{device}.safetensors", "--save-uint8")
        wmr(*attack, "--device", device, *save)
    found = load_file(tmp_path / f"{NAME}.safetensors")
    for name, values in load_file(tmp_path / "cpu.safetensors").items():
        assert torch.equal(found[name], values), name


def test_the_arithmetic_of_the_device_is_right(any_device: torch.device) -> None:
    findings = list(check_numerics(any_device))
    assert [finding for finding in findings if not finding.passed] == []
