"""`wmr bench` times the attack and the steps of training, and recommends only what was faster."""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from wmr_cli.benchmarking import bench, results, timing
from wmr_cli.benchmarking.bench import BenchOptions, Workload
from wmr_cli.benchmarking.results import BenchDone, Trial
from wmr_cli.builtins.models.small_cnns import DigitsCnn
from wmr_cli.cli import app
from wmr_cli.cli.bench import make_rate_table
from wmr_cli.config import resolve
from wmr_cli.core.nn.compilation import Compiler
from wmr_cli.core.nn.fusion import MEMORY_FORMATS
from wmr_cli.core.protocols import Batch, Defense, StepReport
from wmr_cli.registry import Registry
from wmr_cli.runtime.accelerators import DeviceCalls
from wmr_cli.runtime.fabric import Hardware, launch
from wmr_cli.training.learner import FabricLearner
from wmr_cli.training.setup import TrainingSetup, set_up_training

SMALL_CONFIG = {"model": "digits-cnn", "steps": 1, "batch_size": 8}
SMALL_FLAGS = [
    *("--model", "digits-cnn"),
    *("--steps", "1"),
    *("--batch-size", "8"),
    *("--seconds", "0"),
]


@pytest.fixture(autouse=True)
def _small_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "MATRIX_SIDE", 64)


@pytest.fixture
def run(registry: Registry) -> TrainingSetup:
    return set_up_training(resolve(SMALL_CONFIG), registry, Path(), launch(Hardware("cpu")))


def test_functions_alternate_and_each_round_starts_with_another_one() -> None:
    order: list[str] = []
    timing.time_alternately({name: partial(order.append, name) for name in "abc"}, 3)
    assert "".join(order) == "abcbcacab"


def test_no_round_begins_after_the_time() -> None:
    times = timing.time_alternately({"a": lambda: None}, 100, seconds=0)
    assert len(times["a"]) == 1


def test_a_ratio_is_taken_round_by_round() -> None:
    # the machine was slow in the second round
    ratio = timing.time_ratio([1.0, 20.0, 3.0], [1.0, 10.0, 1.0])
    assert (ratio.low, ratio.median, ratio.high) == (1.5, 2.0, 2.5)


def test_operations_are_those_of_convolutions_and_matrix_products() -> None:
    network = nn.Sequential(
        nn.Conv2d(1, 2, 3, bias=False), nn.Flatten(), nn.Linear(2 * 4, 3, bias=False)
    )
    network.requires_grad_(False)
    images = torch.zeros(5, 1, 4, 4)
    forward = 5 * (2 * 2 * 4 * 9 + 2 * 8 * 3)
    assert timing.count_flops(network, images, steps=0) == forward
    # a backward pass to the input costs as much as a forward pass
    assert timing.count_flops(network, images, steps=3) == 7 * forward


@pytest.mark.parametrize("layout", MEMORY_FORMATS)
def test_the_bare_network_computes_the_same_logits(layout: str) -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
    network(torch.rand(8, 1, 4, 4))  # non-trivial running statistics
    network.eval()
    images = torch.rand(5, 1, 4, 4)
    bare, inputs = timing.make_bare_network(network, images, layout)
    torch.testing.assert_close(bare(inputs), network(images))
    assert (inputs.stride(1) == 1) == (layout == "channels-last")
    assert not any(parameter.requires_grad for parameter in bare.parameters())
    assert all(parameter.requires_grad for parameter in network.parameters())


def test_the_training_rate_is_measured_with_training_steps(
    run: TrainingSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[Batch] = []
    defense = type(run.defense)
    original_step = defense.step

    def recording_step(self: Defense, learner: FabricLearner, batch: Batch) -> StepReport:
        batches.append(batch)
        return original_step(self, learner, batch)

    monkeypatch.setattr(defense, "step", recording_step)
    found = bench.measure_rates(run, seconds=0)
    # one to warm up, one to measure
    assert [len(batch.labels) for batch in batches] == [8, 8]
    assert (found.batch_size, found.steps, found.devices) == (8, 1, 1)
    assert found.attack.images_per_second > 0


def test_the_limit_has_as_many_steps_as_the_attack(
    run: TrainingSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps_run: set[int] = set()
    run_bare_passes = timing.run_bare_passes

    def recording_passes(network: nn.Module, images: Tensor, steps: int) -> None:
        steps_run.add(steps)
        run_bare_passes(network, images, steps)

    monkeypatch.setattr(bench, "run_bare_passes", recording_passes)
    found = bench.add_limits(bench.measure_rates(run, 0), run, 0)
    assert steps_run == {run.config.steps}
    assert found.layout in MEMORY_FORMATS
    for value in (found.share_of_limit, found.share_of_peak, found.peak_gflops):
        assert value is not None
        assert value > 0


def test_a_setting_that_does_not_fit_into_memory_has_no_speedup(run: TrainingSetup) -> None:
    def run_out_of_memory() -> Workload:
        raise MemoryError

    trial = bench.compare("--batch-size 9", Workload.make(run), run_out_of_memory, 0)
    assert trial == Trial("--batch-size 9", attack=None, training=None)


def test_bfloat16_and_a_compiled_network_are_tried(
    run: TrainingSetup, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[nn.Module] = []

    def record(self: Compiler, network: nn.Module) -> nn.Module:
        compiled.append(network)
        return network

    monkeypatch.setattr(Compiler, "compile_network", record)
    monkeypatch.setattr(Compiler, "run_step", lambda self, step, *args: step(*args))
    options = BenchOptions(device="cpu", seconds=0)
    trials = list(bench.try_precisions(run, registry, Path(), options))
    assert [trial.setting for trial in trials] == ["--precision bf16", "--compile"]
    assert all(trial.training for trial in trials)
    assert len(compiled) == 1


def test_only_settings_that_keep_the_training_are_recommended() -> None:
    smaller, larger, largest = (
        Trial("--batch-size 32", attack=0.8, training=0.9),
        Trial("--batch-size 128", attack=1.5, training=1.3),
        Trial("--batch-size 256", attack=1.2, training=1.2),
    )
    bf16 = Trial("--precision bf16", attack=2.0, training=2.0)
    processes = Trial("--devices 2", attack=1.1, training=1.4)
    trials = [
        *(smaller, larger, largest, bf16),
        Trial("--threads 1", attack=1.06, training=1.5),
        Trial("--threads 4", attack=1.02, training=1.2),
        Trial("--compile", attack=1.0, training=2.0),
        processes,
        Trial("--devices 4", attack=None, training=None),
    ]
    flags = {"--model": "a:b=1", "--batch-size": "64", "--seconds": "1"}
    assert results.recommend_commands(flags, trials) == [
        "wmr train --model a:b=1 --batch-size 64 --threads 1 --compile",
        "wmr evaluate RUN --devices 2",
    ]
    assert results.find_other_trainings(trials) == [larger, processes, bf16]


@pytest.mark.parametrize(
    ("speedup_of_processes", "command"),
    [(1.4, "wmr evaluate RUN --threads 1"), (1.6, "wmr evaluate RUN --devices 2")],
)
def test_only_the_faster_one_of_threads_and_processes_is_recommended(
    speedup_of_processes: float, command: str
) -> None:
    trials = [
        Trial("--threads 1", attack=1.5, training=1.0),
        Trial("--devices 2", attack=speedup_of_processes, training=1.0),
    ]
    assert results.recommend_commands({}, trials)[1] == command


def test_a_setting_that_is_hardly_faster_is_not_recommended() -> None:
    trials = [Trial(setting, 1.04, 1.04) for setting in ("--threads 1", "--batch-size 32")]
    assert not results.find_other_trainings(trials)
    assert results.recommend_commands({"--steps": "3"}, trials) == [
        "wmr train --steps 3",
        "wmr evaluate RUN",
    ]


def test_the_last_event_has_all_trials_and_the_recommended_commands(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_processes = Trial("--devices 2", attack=2.0, training=2.0)
    monkeypatch.setattr(bench, "try_processes", lambda single, flags: [two_processes])
    options = BenchOptions(device="cpu", seconds=0, flags={"--steps": "1"})
    events = list(bench.bench(resolve(SMALL_CONFIG), registry, Path(), options))
    assert isinstance(events[-1], BenchDone)
    found = events[-1].found
    settings = {trial.setting for trial in found.tried}
    assert {"--batch-size 4", "--batch-size 16", "--batch-size 32", "--devices 2"} <= settings
    assert "--devices 2" in found.recommended[1]
    assert two_processes in found.other_trainings


def test_the_command_prints_json_and_nothing_else() -> None:
    result = CliRunner().invoke(app, ["bench", *SMALL_FLAGS, "--only", "--format", "json"])
    found = json.loads(result.stdout)
    assert found["batch_size"] == 8
    training = found["training"]
    assert training["low"] <= training["images_per_second"] <= training["high"]


@pytest.mark.slow
def test_two_processes_measure_together(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "wmr_cli", "bench", *SMALL_FLAGS, "--devices", "2"]
    command += ["--only", "--quiet", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert json.loads(done.stdout)["devices"] == 2


@pytest.mark.parametrize(("precision", "dtype"), [("32", torch.float32), ("bf16", torch.bfloat16)])
def test_the_limit_has_the_precision_of_the_attack(
    precision: str, dtype: torch.dtype, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = resolve({**SMALL_CONFIG, "precision": precision})
    run = set_up_training(config, registry, Path(), launch(Hardware("cpu"), precision))
    seen: set[torch.dtype] = set()
    multiply = timing.multiply
    run_bare_passes = timing.run_bare_passes

    def recording_passes(network: nn.Module, images: Tensor, steps: int) -> None:
        seen.add(network(images).dtype)
        run_bare_passes(network, images, steps)

    def recording_product(left: Tensor, right: Tensor) -> None:
        seen.add(left.dtype)
        multiply(left, right)

    monkeypatch.setattr(bench, "run_bare_passes", recording_passes)
    monkeypatch.setattr(bench, "multiply", recording_product)
    bench.add_limits(bench.measure_rates(run, 0), run, 0)
    assert seen == {dtype}


def count_steps_as_calls(work: Callable[[], object], device: torch.device) -> DeviceCalls:
    """Count forward passes of the network instead of launches."""
    forward = DigitsCnn.forward
    passes = 0

    def counting_forward(self: DigitsCnn, images: Tensor) -> Tensor:
        nonlocal passes
        passes += 1
        return forward(self, images)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(DigitsCnn, "forward", counting_forward)
        work()
    return DeviceCalls(launches=passes, waits=2 * passes)


def test_calls_are_counted_per_step_of_the_attack_and_of_training(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "count_device_calls", count_steps_as_calls)
    # in train mode attacks use the module itself, whose passes are counted
    config = resolve({**SMALL_CONFIG, "steps": 3, "defense": "pgd", "attack_mode": "train"})
    run = set_up_training(config, registry, Path(), launch(Hardware("cpu")))
    found = bench.add_device_calls(bench.measure_rates(run, 0), run)
    assert (found.launches_per_attack_step, found.waits_per_attack_step) == (1, 2)
    # three of the attack and one to train
    assert (found.launches_per_step, found.waits_per_step) == (4, 8)


def test_calls_of_the_cuda_runtime_are_counted_by_name() -> None:
    names = [
        *("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernelEx", "cudaGraphLaunch"),
        *("cudaMemcpyAsync", "cudaMemsetAsync", "cudaStreamSynchronize", "cudaEventSynchronize"),
        *("aten::add", "cudaDeviceSynchronize", "cudaStreamIsCapturing", "cudaEventRecord"),
    ]
    assert DeviceCalls.from_names(names) == DeviceCalls(launches=6, waits=2)


def test_a_cpu_has_no_calls_and_no_roofline(run: TrainingSetup) -> None:
    rates = bench.measure_rates(run, 0)
    found = bench.add_limits(bench.add_device_calls(rates, run), run, 0)
    for value in (found.launches_per_step, found.waits_per_step, found.share_of_roofline):
        assert value is None


def test_an_accelerator_has_a_roofline(run: TrainingSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "is_accelerator", lambda device: True)
    monkeypatch.setattr(bench, "BLOCK_BYTES", 2**20)
    found = bench.add_limits(bench.measure_rates(run, 0), run, 0)
    assert found.share_of_roofline is not None
    assert 0 < found.share_of_roofline < 10


@pytest.mark.parametrize(
    ("flops_per_second", "bytes_per_second", "seconds"),
    [
        # 5 x 8 by 8 x 3, forward three times and backward to the input twice
        (1.0, 1e9, 5 * 2 * 5 * 8 * 3),
        (1e9, 1.0, 5 * 4 * (5 * 8 + 8 * 3 + 5 * 3)),
    ],
)
def test_the_roofline_is_the_slower_one_of_computing_and_memory(
    flops_per_second: float, bytes_per_second: float, seconds: float
) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(8, 3, bias=False), nn.ReLU())
    network.requires_grad_(False)
    found = timing.estimate_roofline(
        network,
        torch.zeros(5, 2, 2, 2),
        2,
        flops_per_second=flops_per_second,
        bytes_per_second=bytes_per_second,
    )
    assert found == pytest.approx(seconds)


def test_the_table_has_rows_of_an_accelerator_only_there(
    run: TrainingSetup,
) -> None:
    rates = bench.measure_rates(run, 0)
    on_gpu = msgspec.structs.replace(
        rates, launches_per_attack_step=82, launches_per_step=2470, waits_per_step=8
    )
    assert make_rate_table(on_gpu).row_count == make_rate_table(rates).row_count + 2
