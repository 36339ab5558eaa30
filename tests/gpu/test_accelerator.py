"""Main behaviour on an accelerator (`make test-gpu`); WMR_TEST_DEVICE=cpu runs it without one."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

import wmr_cli
from support.training import train
from support.typed import not_none, stop
from wmr_cli import testing
from wmr_cli.config import EvaluateConfig, resolve
from wmr_cli.core import rng
from wmr_cli.core.losses import cross_entropy
from wmr_cli.core.protocols import Batch
from wmr_cli.evaluation.run import evaluate
from wmr_cli.events import EpochDone, EvaluationDone, StepDone
from wmr_cli.registry import Registry
from wmr_cli.runtime import components
from wmr_cli.runtime.fabric import Hardware
from wmr_cli.storage import checkpoints, records

pytestmark = pytest.mark.gpu
ATTACKS = (
    "pgd:steps=5",
    "pgd:steps=5,norm=l2,eps=1",
    "fgsm",
    "apgd-ce:steps=5",
    "apgd-t:steps=5",
    "fab-t:steps=5",
    "square:queries=20",
)


@pytest.fixture(scope="session")
def device() -> str:
    named = os.environ.get("WMR_TEST_DEVICE")
    if named:
        return named
    if torch.cuda.is_available():
        return "cuda"
    if torch.backends.mps.is_available():
        return "mps"
    pytest.skip("this machine has no accelerator")


@pytest.fixture(scope="module")
def run(device: str, registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gpu") / "run"
    config = resolve({"epochs": 10, "ema": 0.9, "eps_ramp": 0.4})
    list(train(config, path, registry, data_dir=Path(), device=device))
    return path


def test_training_learns(run: Path) -> None:
    log = (run / "log.jsonl").read_text().splitlines()
    last = msgspec.json.decode(log[-1])
    assert last["val_a_nat"] > 0.8
    assert last["val_a_nat"] >= last["val_a_rob"] >= last["val_a_sa"]


@pytest.mark.parametrize("precision", ["32", "bf16", "16"])
def test_every_precision_trains_and_resumes(
    precision: str, device: str, registry: Registry, tmp_path: Path
) -> None:
    if precision == "16" and device != "cuda":
        pytest.skip("half precision needs a GPU")
    config = resolve({"epochs": 2, "steps": 2, "validate_every": 0, "precision": precision})
    events_until_stop = train(
        config, tmp_path / "run", registry, data_dir=Path(), device=device, save_minutes=1e-9
    )
    steps = 0
    while steps < 12:
        steps += isinstance(next(events_until_stop), StepDone)
    stop(events_until_stop)
    events = list(
        train(config, tmp_path / "run", registry, data_dir=Path(), device=device, resume=True)
    )
    assert [event.epoch for event in events if isinstance(event, EpochDone)] == [2]
    list(train(config, tmp_path / "straight", registry, data_dir=Path(), device=device))
    resumed = checkpoints.load(tmp_path / "run").tensors
    straight = checkpoints.load(tmp_path / "straight").tensors
    for name, tensor in straight.items():
        torch.testing.assert_close(resumed[name], tensor, atol=2e-3, rtol=1e-2)


@pytest.mark.parametrize("spec", ATTACKS)
def test_attacks_meet_their_contract(spec: str, device: str, registry: Registry) -> None:
    batch = testing.tiny_batch().to(device)
    settings = {} if "eps" in spec else {"eps": 0.1}
    attack = registry.create("attack", spec, **settings)
    testing.check_attack(
        attack, testing.tiny_model().to(device), Batch(batch.images, batch.labels, batch.index)
    )


def test_noise_does_not_depend_on_the_device(device: str) -> None:
    index = torch.arange(5)
    images = torch.zeros(5, 1, 4, 4)
    here = rng.uniform(images.to(device), index.to(device), seed=3)
    assert torch.equal(here.cpu(), rng.uniform(images, index, seed=3))


def test_an_evaluation_agrees_with_that_on_the_cpu(
    run: Path, device: str, registry: Registry, tmp_path: Path
) -> None:
    results = {}
    for kind in {device, "cpu"}:
        config = EvaluateConfig(attacks=("pgd:steps=10",), alpha_test=(2.0,))
        events = evaluate(
            run, config, registry, data_dir=Path(), hardware=Hardware(kind), out=tmp_path / kind
        )
        (done,) = [event for event in events if isinstance(event, EvaluationDone)]
        results[kind] = (done.record, records.load_rows(done.rows))
    record, rows = results[device]
    cpu_record, cpu_rows = results["cpu"]
    assert record.id == cpu_record.id
    np.testing.assert_allclose(rows["clean/logits"], cpu_rows["clean/logits"], atol=1e-4)
    assert record.a_nat.value == pytest.approx(cpu_record.a_nat.value, abs=0.002)
    robust = not_none(record.a_rob).value
    assert robust == pytest.approx(not_none(cpu_record.a_rob).value, abs=0.01)


def test_a_checkpoint_can_be_loaded_on_any_device(
    run: Path, device: str, registry: Registry
) -> None:
    network = components.restore_model(registry, checkpoints.load(run))
    images = torch.rand(4, 1, 8, 8)
    labels = torch.arange(4)
    losses = cross_entropy(network.to(device)(images.to(device)), labels.to(device)).cpu()
    cpu_losses = cross_entropy(network.to("cpu")(images), labels)
    torch.testing.assert_close(losses, cpu_losses, atol=1e-4, rtol=1e-4)


def test_all_devices_share_a_batch(device: str, registry: Registry, tmp_path: Path) -> None:
    counts = {"cuda": torch.cuda.device_count(), "cpu": 2}
    count = counts.get(device, 1)
    if count < 2:
        pytest.skip("there is one device")
    flags = ["--device", device, "--devices", str(count), "--out", str(tmp_path / "run")]
    flags += ["--epochs", "1", "--steps", "2", "--quiet"]
    subprocess.run([sys.executable, "-m", "wmr_cli", "train", *flags], check=True, timeout=300)
    assert checkpoints.load(tmp_path / "run").epoch == 1


def test_the_python_api_evaluates_a_model_on_its_device(device: str) -> None:
    model = testing.tiny_model()
    batch = testing.tiny_batch(60)
    data = [(batch.images, batch.labels)]
    settings: dict[str, Any] = {"eps": 0.05, "attack": "pgd:steps=3", "alphas": (1.0,)}

    def parameter_addresses() -> dict[str, tuple[int, int]]:
        return {name: (id(one), one.data_ptr()) for name, one in model.named_parameters()}

    on_cpu = wmr_cli.evaluate(model, data, **settings)
    before = parameter_addresses()
    on_device = wmr_cli.evaluate(model, data, device=device, **settings)
    assert parameter_addresses() == before
    assert on_device.record.device == torch.device(device).type
    np.testing.assert_allclose(
        on_device.rows["clean/logits"], on_cpu.rows["clean/logits"], atol=1e-4
    )
    # without `device`, the evaluation runs where the model is
    moved = wmr_cli.evaluate(
        model.to(device), [(batch.images.to(device), batch.labels)], **settings
    )
    assert all(np.array_equal(moved.rows[name], on_device.rows[name]) for name in on_device.rows)
