"""Main behaviour on an accelerator (`make test-gpu`); WMR_TEST_DEVICE=cpu runs it without one."""

import os
import subprocess
import sys
from collections.abc import Iterator
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
from wmr_cli.benchmarking import bench
from wmr_cli.benchmarking.results import Bench
from wmr_cli.config import EvaluateConfig, resolve
from wmr_cli.core import rng
from wmr_cli.core.contexts import tuned_convolutions
from wmr_cli.core.losses import cross_entropy
from wmr_cli.core.protocols import Batch
from wmr_cli.core.run_attack import BufferSnapshot
from wmr_cli.evaluation.evaluator import Evaluator
from wmr_cli.evaluation.run import evaluate
from wmr_cli.events import EpochDone, EvaluationDone, Event, StepDone
from wmr_cli.registry import Registry
from wmr_cli.runtime import components
from wmr_cli.runtime.fabric import Hardware, launch, single_process
from wmr_cli.storage import checkpoints, records
from wmr_cli.storage.records import Rows
from wmr_cli.training import batches
from wmr_cli.training.loop import train_step
from wmr_cli.training.optimization import settings_at
from wmr_cli.training.setup import TrainingSetup, set_up_training

pytestmark = pytest.mark.gpu
MAX_WAITS = 8
"""Waits of the host in a training step."""
MAX_LAUNCHES_PER_ATTACK_STEP = 250
"""Of ResNet-18, without compilation."""
MAX_LAUNCHES_OF_A_GRAPH = 40
"""The graph, and copies of its inputs and results."""
ATTACKS = (
    "pgd:steps=5",
    "pgd:steps=5,norm=l2,eps=1",
    "fgsm",
    "apgd-ce:steps=5",
    "apgd-t:steps=5",
    "fab-t:steps=5",
    "square:queries=20",
)


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
    # several GPUs exchange gradients by NCCL
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


@pytest.fixture
def images(tmp_path: Path) -> str:
    """Return a dataset of random colour images."""
    numbers = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for name, count in {"train": 256, "val": 32, "test": 600}.items():
        arrays[f"{name}_images"] = numbers.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        arrays[f"{name}_labels"] = np.arange(count) % 10
    np.savez(tmp_path / "images.npz", **arrays)
    return f"arrays:path={tmp_path / 'images.npz'}"


def set_up(
    registry: Registry, device: str, *, compile_model: bool = False, **settings: Any
) -> TrainingSetup:
    """Set up a training of a small residual network."""
    defaults: dict[str, Any] = {"model": "resnet20", "steps": 3, "batch_size": 64, "ema": 0.9}
    config = resolve(defaults | settings)
    runtime = launch(Hardware(device), config.precision)
    return set_up_training(config, registry, Path(), runtime, compile_model=compile_model)


def take_steps(run: TrainingSetup, count: int = 2) -> list[tuple[int, float]]:
    """Train for some steps, and return the losses that have arrived on the host."""
    arrived = []
    positions = [torch.arange(64) + 64 * (number % 4) for number in range(count)]
    with tuned_convolutions():
        for number, batch in enumerate(run.batches.read(positions, epoch=0)):
            settings = settings_at(run.schedule_config, number, 4)
            run.learner.begin_step(0, number, settings, 64, measure_success=False)
            arrived += train_step(run, batch)
    return arrived


def test_small_datasets_are_on_the_device(device: str, registry: Registry, images: str) -> None:
    run = set_up(registry, device, dataset=images)
    is_accelerator = device != "cpu"
    assert run.batches.on_device == is_accelerator
    batch = next(run.batches.read([torch.arange(8)], epoch=0))
    assert batch.images.device.type == device
    expected = run.split.batch(torch.arange(8))
    assert torch.equal(batch.images.cpu(), expected.images)


def test_batches_of_large_datasets_are_copied_from_pinned_memory(
    cuda: torch.device, registry: Registry, images: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "MAX_MEMORY_FRACTION", 0.0)
    run = set_up(registry, cuda.type, dataset=images)
    assert not run.batches.on_device
    split = batches.CheckedSplit(run.split, 10, pins=True)
    assert split.batch(torch.arange(8)).images.is_pinned()
    batch = next(run.batches.read([torch.arange(8)], epoch=0))
    assert torch.equal(batch.images.cpu(), run.split.batch(torch.arange(8)).images)


def test_statistics_of_a_step_arrive_during_the_next_one(
    device: str, registry: Registry, images: str
) -> None:
    run = set_up(registry, device, dataset=images)
    is_late = device == "cuda"
    assert [number for number, _ in take_steps(run, 3)] == list(range(2 if is_late else 3))
    run.statistics.collect()
    assert np.isfinite(run.statistics.summary()["loss"])


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_fused_optimizers_and_averages_match_the_cpu(
    optimizer: str, device: str, registry: Registry, images: str
) -> None:
    weights = {}
    averages = {}
    for kind in {device, "cpu"}:
        # clean training: an attack would amplify rounding
        run = set_up(registry, kind, dataset=images, optimizer=optimizer, steps=0, lr=1e-3)
        if kind == "cuda":
            assert all(group["fused"] for group in run.optimizer.param_groups)
        take_steps(run)
        weights[kind] = run.model.state_dict()
        averages[kind] = not_none(run.average).model.state_dict()
    for found in (weights, averages):
        for name, tensor in found["cpu"].items():
            # at most the length of two steps of Adam, whose first steps ignore the gradient's size
            torch.testing.assert_close(found[device][name].cpu(), tensor, atol=5e-3, rtol=1e-2)


def test_a_changed_buffer_is_found(device: str) -> None:
    model = testing.tiny_model().to(device)
    model.register_buffer("counter", torch.zeros(3, device=device))
    snapshot = BufferSnapshot.take(model)
    assert snapshot.list_changes(model) == []
    model.get_buffer("counter")[1] += 1
    assert snapshot.list_changes(model) == ["counter"]


@pytest.mark.parametrize("precision", ["32", "bf16"])
def test_models_see_images_that_are_not_rounded(precision: str, device: str) -> None:
    seen = []
    model = testing.tiny_model()
    runtime = single_process(device, precision)
    wrapped, _ = runtime.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    batch = testing.tiny_batch().to(device)
    assert wrapped(batch.images).dtype == torch.float32
    assert torch.equal(seen[0], batch.images)


def test_batch_norm_is_fused_with_tf32_allowed(
    device: str, registry: Registry, images: str
) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        run = set_up(registry, device, dataset=images)
    finally:
        torch.set_float32_matmul_precision(before)
    assert run.learner.attack_model.num_fused > 0


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*TensorFloat32.*:UserWarning")
@pytest.mark.parametrize("precision", ["32", "bf16"])
def test_compiled_steps_agree_with_eager_steps(
    precision: str, cuda: torch.device, registry: Registry, images: str
) -> None:
    found = {}
    for compile_model in (False, True):
        # L2: the sign of a gradient would amplify rounding
        settings = {"dataset": images, "norm": "l2", "eps": 0.5, "precision": precision}
        run = set_up(registry, cuda.type, compile_model=compile_model, **settings)
        # a graph is recorded in the second step and replayed from the third on
        take_steps(run, 4)
        if run.learner.compiler is not None:
            assert run.learner.compiler.take_problems() == []
        found[compile_model] = run.statistics
    eager, compiled = (found[key] for key in (False, True))
    eager.collect()
    compiled.collect()
    tolerance = {"32": 0.02, "bf16": 0.1}[precision]
    assert compiled.summary()["loss"] == pytest.approx(eager.summary()["loss"], rel=tolerance)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*TensorFloat32.*:UserWarning")
def test_a_compiled_attack_step_is_one_graph_launch(
    cuda: torch.device, registry: Registry, images: str, figures: list[Bench]
) -> None:
    settings = {"dataset": images, "precision": "bf16", "batch_size": 128, "steps": 10}
    run = set_up(registry, cuda.type, compile_model=True, model="resnet18", **settings)
    found = bench.add_device_calls(bench.measure_rates(run, 2), run)
    figures.append(found)
    assert not_none(found.launches_per_attack_step) <= MAX_LAUNCHES_OF_A_GRAPH
    assert found.waits_per_attack_step == 0


@pytest.mark.parametrize("precision", ["32", "bf16"])
def test_launches_and_waits_are_within_their_budgets(
    precision: str, device: str, registry: Registry, images: str, figures: list[Bench]
) -> None:
    settings: dict[str, Any] = {"dataset": images, "precision": precision, "defense": "pgd"}
    if device == "cuda":
        settings |= {"model": "resnet18", "batch_size": 128, "steps": 10}
    run = set_up(registry, device, **settings)
    seconds = 2 if device == "cuda" else 0
    found = bench.add_device_calls(bench.measure_rates(run, seconds), run)
    found = bench.add_limits(found, run, seconds)
    figures.append(found)
    assert found.attack.images_per_second > 0
    assert (found.launches_per_step is None) == (device != "cuda")
    if device == "cuda":
        assert found.waits_per_attack_step == 0
        assert not_none(found.waits_per_step) <= MAX_WAITS
        assert not_none(found.launches_per_attack_step) <= MAX_LAUNCHES_PER_ATTACK_STEP


def test_rows_and_their_determinism_are_repeated_after_an_interruption(
    run: Path, device: str, registry: Registry, tmp_path: Path
) -> None:
    config = EvaluateConfig(attacks=("pgd:steps=3",), alpha_test=(2.0,), batch_size=300)

    def start(folder: Path, *, resume: bool = False) -> Iterator[Event]:
        return evaluate(
            run,
            config,
            registry,
            data_dir=Path(),
            hardware=Hardware(device),
            out=folder,
            resume=resume,
        )

    interrupted = start(tmp_path / "resumed")
    while not list((tmp_path / "resumed").rglob("*.safetensors")):
        next(interrupted)
    stop(interrupted)
    found = {}
    for name in ("straight", "resumed"):
        events = start(tmp_path / name, resume=name == "resumed")
        (found[name],) = [event for event in events if isinstance(event, EvaluationDone)]
    straight = found["straight"].record
    assert straight.deterministic == found["resumed"].record.deterministic
    rows = {name: records.load_rows(done.rows) for name, done in found.items()}
    for name, values in rows["straight"].items():
        if straight.deterministic:
            assert np.array_equal(rows["resumed"][name], values)


def test_large_batches_fill_the_device(
    run: Path, device: str, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    evaluate_batch = Evaluator.evaluate_batch

    def counting(self: Evaluator, batch: Batch) -> Rows:
        sizes.append(len(batch.labels))
        return evaluate_batch(self, batch)

    monkeypatch.setattr(Evaluator, "evaluate_batch", counting)
    config = EvaluateConfig(attacks=("fgsm",), alpha_test=(2.0,), batch_size=400, metrics=("rob",))
    list(
        evaluate(
            run, config, registry, data_dir=Path(), hardware=Hardware(device), out=tmp_path / "e"
        )
    )
    assert max(sizes) == (400 if device != "cpu" else 69)


def test_a_process_that_sees_one_gpu_uses_it(cuda: torch.device, tmp_path: Path) -> None:
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "0"}
    flags = ["--device", cuda.type, "--out", str(tmp_path / "run"), "--epochs", "1", "--quiet"]
    command = [sys.executable, "-m", "wmr_cli", "train", *flags, "--steps", "2"]
    subprocess.run(command, check=True, timeout=300, env=environment)
    assert checkpoints.load(tmp_path / "run").epoch == 1
