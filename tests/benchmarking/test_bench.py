"""Rates, limits and advice: what is measured is what training does, and what is recommended is what was faster."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from wmr_cli.benchmarking import bench, results, roofline, timing
from wmr_cli.benchmarking.bench import BenchOptions, Workload
from wmr_cli.benchmarking.results import BenchDone, Trial
from wmr_cli.cli import app
from wmr_cli.config import resolve
from wmr_cli.core.protocols import Batch, StepReport
from wmr_cli.registry import Registry
from wmr_cli.runtime.fabric import LAYOUTS, Hardware, launch
from wmr_cli.training.learner import FabricLearner
from wmr_cli.training.setup import Assembly, assemble

SMALL = {"model": "digits-cnn", "steps": 1, "batch_size": 8}


@pytest.fixture(autouse=True)
def _small_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "MATRIX_SIDE", 64)


@pytest.fixture
def run(registry: Registry) -> Assembly:
    return assemble(resolve(SMALL), registry, Path(), launch(Hardware("cpu")))


def test_contestants_take_turns_and_none_is_always_first() -> None:
    order = []
    timing.time_alternately({name: lambda name=name: order.append(name) for name in "abc"}, 3)
    assert "".join(order) == "abcbcacab"


def test_no_round_begins_after_the_time() -> None:
    times = timing.time_alternately({"a": lambda: None}, 100, seconds=0)
    assert len(times["a"]) == 1


def test_a_ratio_is_taken_round_by_round() -> None:
    found = timing.time_ratio(
        [1.0, 20.0, 3.0], [1.0, 10.0, 1.0]
    )  # the machine was slow in the second round
    assert (found.low, found.median, found.high) == (1.5, 2.0, 2.5)


def test_operations_are_those_of_the_convolutions_and_products() -> None:
    network = nn.Sequential(
        nn.Conv2d(1, 2, 3, bias=False), nn.Flatten(), nn.Linear(2 * 4, 3, bias=False)
    )
    forward = 5 * (2 * 2 * 4 * 9 + 2 * 8 * 3)
    assert (
        roofline.count_flops(network.requires_grad_(False), torch.zeros(5, 1, 4, 4), steps=0)
        == forward
    )
    assert roofline.count_flops(network, torch.zeros(5, 1, 4, 4), steps=3) == 7 * forward


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_bare_network_computes_what_the_network_does(layout: str) -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
    network(torch.rand(8, 1, 4, 4))  # statistics of its own
    network.eval()
    images = torch.rand(5, 1, 4, 4)
    bare, inputs = roofline.make_bare_network(network, images, layout)
    torch.testing.assert_close(bare(inputs), network(images))
    assert (inputs.stride(1) == 1) == (layout == "channels-last")
    assert not any(parameter.requires_grad for parameter in bare.parameters())
    assert all(parameter.requires_grad for parameter in network.parameters())


def test_a_bench_takes_the_steps_of_training(
    run: Assembly, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Any] = []
    monkeypatch.setattr(type(run.defense), "step", _noting(type(run.defense).step, taken))
    found = bench.measure_rates(run, seconds=0)
    assert len(taken) == 2  # one to warm up
    assert all(len(batch.labels) == 8 for batch in taken)
    assert (found.batch_size, found.steps, found.devices) == (8, 1, 1)
    assert found.attack.images_per_second > 0


def _noting(step: Callable[..., Any], taken: list[Any]) -> Callable[..., Any]:
    def noted(self: object, learner: FabricLearner, batch: Batch) -> StepReport:
        taken.append(batch)
        result: StepReport = step(self, learner, batch)
        return result

    return noted


def test_the_limit_counts_the_same_steps(run: Assembly, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = set()
    run_passes = bench.run_bare_passes
    monkeypatch.setattr(
        bench,
        "run_bare_passes",
        lambda network, images, steps: counted.add(steps) or run_passes(network, images, steps),
    )
    found = bench.add_limits(bench.measure_rates(run, 0), run, 0)
    assert run.config.steps in counted
    assert found.layout in LAYOUTS
    assert found.share_of_limit > 0
    assert found.share_of_peak > 0
    assert found.peak_gflops > 0


def test_what_does_not_fit_into_memory_is_said_rather_than_raised(run: Assembly) -> None:
    def hungry() -> None:
        raise MemoryError

    assert bench.compare("--batch-size 9", Workload.make(run), hungry, 0) == Trial(
        "--batch-size 9", None, None
    )


def test_other_precisions_and_a_compiled_network_can_be_tried(
    run: Assembly, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = []
    monkeypatch.setattr(nn.Module, "compile", lambda self: compiled.append(self))
    found = list(bench.try_precisions(run, registry, Path(), BenchOptions(device="cpu", seconds=0)))
    assert [trial.setting for trial in found] == ["--precision bf16", "--compile"]
    assert all(trial.training > 0 for trial in found)
    assert len(compiled) == 1


def test_the_fastest_value_of_each_setting_is_recommended() -> None:
    tried = [
        Trial("--batch-size 32", 0.8, 0.9), Trial("--batch-size 128", 1.5, 1.2), Trial("--batch-size 256", 1.2, 1.3),
        Trial("OMP_NUM_THREADS=1", 1.06, 1.5), Trial("--devices 2", 1.1, 1.04), Trial("--devices 4", None, None),
    ]  # fmt: skip
    assert results.recommend_commands(
        {"--model": "a:b=1", "--batch-size": "64", "--seconds": "1"}, tried
    ) == [
        "OMP_NUM_THREADS=1 wmr train --model a:b=1 --batch-size 256",
        "wmr evaluate RUN --devices 2",
    ]


@pytest.mark.parametrize(
    ("processes", "kept"),
    [(1.4, "OMP_NUM_THREADS=1 wmr train --compile"), (1.6, "wmr train --devices 2 --compile")],
)
def test_processes_bring_their_own_threads_so_the_faster_of_the_two_is_kept(
    processes: float, kept: str
) -> None:
    tried = [
        Trial("OMP_NUM_THREADS=1", 1.5, 1.5),
        Trial("--devices 2", 1.1, processes),
        Trial("--compile", 1.0, 2.0),
    ]
    assert results.recommend_commands({}, tried)[0] == kept


def test_nothing_is_recommended_that_is_hardly_faster() -> None:
    tried = [Trial("--batch-size 32", 1.04, 1.04)]
    assert results.recommend_commands({"--steps": "3"}, tried) == [
        "wmr train --steps 3",
        "wmr evaluate RUN",
    ]


def test_the_walk_ends_with_all_that_was_found(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        bench, "try_processes", lambda single, flags: [Trial("--devices 2", 2.0, 2.0)]
    )
    options = BenchOptions(device="cpu", seconds=0, flags={"--steps": "1"})
    events = list(bench.bench(resolve(SMALL), registry, Path(), options))
    assert isinstance(events[-1], BenchDone)
    found = events[-1].found
    assert {"--batch-size 4", "--batch-size 16", "--batch-size 32", "--devices 2"} <= {
        trial.setting for trial in found.tried
    }
    assert "--devices 2" in found.recommended[0]


def test_the_command_prints_json_and_nothing_else() -> None:
    flags = [
        "--model",
        "digits-cnn",
        "--steps",
        "1",
        "--batch-size",
        "8",
        "--seconds",
        "0",
        "--only",
        "--format",
        "json",
    ]
    result = CliRunner().invoke(app, ["bench", *flags])
    found = json.loads(result.stdout)
    assert found["batch_size"] == 8
    assert (
        found["training"]["low"]
        <= found["training"]["images_per_second"]
        <= found["training"]["high"]
    )


@pytest.mark.slow
def test_two_processes_measure_together(tmp_path: Path) -> None:
    flags = [
        "--model",
        "digits-cnn",
        "--steps",
        "1",
        "--batch-size",
        "8",
        "--seconds",
        "0",
        "--devices",
        "2",
        "--only",
        "-q",
    ]
    command = [sys.executable, "-m", "wmr_cli", "bench", *flags, "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert json.loads(done.stdout)["devices"] == 2
