"""`--compile`: few graphs, steps of attacks in one graph, equal numbers, and what fails runs."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._dynamo.utils import counters

from support.training import train
from wmr_cli.builtins.attacks.pgd import Pgd
from wmr_cli.config import resolve
from wmr_cli.core.contexts import compiling_steps
from wmr_cli.core.losses import KlObjective, cross_entropy
from wmr_cli.core.nn import compilation
from wmr_cli.core.nn.compilation import Compiler
from wmr_cli.core.protocols import AttackResult, Batch, Objective
from wmr_cli.events import Event, Message
from wmr_cli.registry import Registry
from wmr_cli.storage import checkpoints

MAX_GRAPHS = 6
"""Two batch sizes of an attack step, and of clean and adversarial images in training."""
TRADES = {"defense": "trades", "alpha": 2.0}
SETTINGS = [
    {**TRADES, "precision": "bf16", "ema": 0.9},
    {**TRADES, "eps_ramp": 0.5, "alpha_ramp": 0.5},
    {"defense": "pgd", "attack_mode": "train", "norm": "l2"},
    {"defense": "iaat:steps=2,warmup=1"},
]


def run_without_compiler(graph: fx.GraphModule, inputs: Sequence[object]) -> Callable[..., Any]:
    """Return the operations of torch, one by one: compiling them would take a minute.

    Refuse sizes that are variables: such graphs are slower, and CUDA graphs cannot have them.
    """
    sizes = [size for each in inputs if isinstance(each, Tensor) for size in each.shape]
    if any(isinstance(each, torch.SymInt) for each in (*inputs, *sizes)):
        raise RuntimeError("the graph has variable sizes")
    return graph.forward


@pytest.fixture(autouse=True)
def _count_graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    monkeypatch.setattr(compilation, "BACKEND", run_without_compiler)
    yield
    torch._dynamo.reset()


def make_network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)]
    return nn.Sequential(*layers).eval()


def make_batch(count: int = 7) -> Batch:
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(count, 2, 8, 8, generator=generator)
    return Batch(images, torch.arange(count) % 3, torch.arange(count))


def run_attack(
    compiler: Compiler | None,
    objective: Objective = cross_entropy,
    network: nn.Module | None = None,
    batch: Batch | None = None,
    **settings: Any,
) -> AttackResult:
    attack = Pgd(**{"eps": 0.1, "step": 0.03, "steps": 4} | settings)
    with compiling_steps(compiler):
        return attack(network or make_network(), batch or make_batch(), objective, seed=3)


def count_graphs() -> int:
    return counters["stats"]["unique_graphs"]


def kl_objective() -> KlObjective:
    return KlObjective.from_logits(make_network()(make_batch().images))


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("make_objective", [lambda: cross_entropy, kl_objective])
def test_a_step_is_one_graph_with_equal_results(
    norm: str, make_objective: Callable[[], Objective]
) -> None:
    eager = run_attack(None, make_objective(), norm=norm)
    assert count_graphs() == 0
    compiler = Compiler()
    compiled = run_attack(compiler, make_objective(), norm=norm)
    assert count_graphs() == 1
    assert compiler.take_problems() == []
    assert torch.equal(compiled.images, eager.images)
    assert torch.equal(compiled.steps_survived, eager.steps_survived)
    assert torch.equal(compiled.require_logits(), eager.require_logits())


def test_other_numbers_and_weights_need_no_other_graph() -> None:
    compiler = Compiler()
    network = make_network()
    # also a radius that equals the step
    for eps in (0.02, 0.03, 0.05):
        with torch.no_grad():
            # in place, as an optimizer changes them
            next(network.parameters()).add_(0.1)
        compiled = run_attack(compiler, network=network, eps=eps)
        assert torch.equal(compiled.images, run_attack(None, network=network, eps=eps).images)
    assert count_graphs() == 1


def test_results_of_a_device_graph_are_copied() -> None:
    buffer = torch.zeros(7, 2, 8, 8)

    def step(network: nn.Module, images: Tensor) -> tuple[Tensor, ...]:
        return (buffer.copy_(images),)

    compiler = Compiler(uses_graphs=True)
    # a device graph returns the same memory after each launch
    compiler._compiled[step] = step
    (first,) = compiler.run_step(step, make_network(), torch.ones(7, 2, 8, 8))
    compiler.run_step(step, make_network(), torch.zeros(7, 2, 8, 8))
    assert bool((first == 1).all())


def test_an_objective_that_cannot_be_traced_still_has_a_compiled_network() -> None:
    def objective(logits: Tensor, labels: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return cross_entropy(logits, labels)

    compiler = Compiler()
    compiled = run_attack(compiler, objective)
    assert torch.equal(compiled.images, run_attack(None, objective).images)
    assert len(compiler.take_problems()) == 1
    assert count_graphs() == 1
    assert compiler.take_problems() == []


def test_older_versions_of_torch_compile_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "traces_gradients", lambda: False)
    compiler = Compiler()
    compiled = run_attack(compiler)
    assert torch.equal(compiled.images, run_attack(None).images)
    assert len(compiler.take_problems()) == 1
    assert count_graphs() == 1


def train_compiled(
    settings: dict[str, Any], registry: Registry, path: Path, *, compile_model: bool = True
) -> list[Event]:
    usual = {"epochs": 2, "steps": 2, "validate_every": 1, "batch_size": 120}
    config = resolve(usual | settings)
    return list(train(config, path, registry, compile_model=compile_model))


def list_warnings(events: list[Event]) -> list[Message]:
    return [event for event in events if isinstance(event, Message) and event.is_warning]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings["defense"])
def test_a_training_has_few_graphs_and_equal_weights(
    settings: dict[str, Any], registry: Registry, tmp_path: Path
) -> None:
    eager = train_compiled(settings, registry, tmp_path / "eager", compile_model=False)
    counters.clear()
    compiled = train_compiled(settings, registry, tmp_path / "compiled")
    assert 2 <= count_graphs() <= MAX_GRAPHS
    assert not counters["graph_break"]
    assert list_warnings(compiled) == list_warnings(eager)
    weights = checkpoints.load(tmp_path / "compiled").tensors
    for name, tensor in checkpoints.load(tmp_path / "eager").tensors.items():
        assert torch.equal(weights[name], tensor)


def test_a_backend_that_fails_leaves_an_eager_training_and_its_reason(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(graph: object, inputs: object) -> None:
        raise RuntimeError("there is no compiler")

    train_compiled(TRADES, registry, tmp_path / "eager", compile_model=False)
    monkeypatch.setattr(compilation, "BACKEND", failing)
    events = train_compiled(TRADES, registry, tmp_path / "failed")
    warnings = [event.text for event in list_warnings(events)]
    # one for the steps of attacks and one for the network, in the first step only
    assert sum("there is no compiler" in text for text in warnings) == 2
    weights = checkpoints.load(tmp_path / "failed").tensors
    for name, tensor in checkpoints.load(tmp_path / "eager").tensors.items():
        assert torch.equal(weights[name], tensor)


def test_a_reason_is_one_line() -> None:
    error = RuntimeError("\nthere is no compiler: \n\n  install one \nand more")
    assert compilation._shorten(error) == "RuntimeError: there is no compiler: install one"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_the_compiler_of_torch_agrees_up_to_rounding(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation, "BACKEND", "inductor")
    # L2 and SGD: the sign of a gradient, and Adam, amplify rounding
    settings = {**TRADES, "norm": "l2", "eps": 0.5, "epochs": 1, "optimizer": "sgd", "lr": 0.01}
    events = train_compiled(settings, registry, tmp_path / "compiled")
    eager = train_compiled(settings, registry, tmp_path / "eager", compile_model=False)
    assert list_warnings(events) == list_warnings(eager)
    weights = checkpoints.load(tmp_path / "compiled").tensors
    for name, tensor in checkpoints.load(tmp_path / "eager").tensors.items():
        torch.testing.assert_close(weights[name], tensor, atol=1e-5, rtol=1e-4)
