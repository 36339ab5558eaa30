"""Fusion, memory formats, kept memory and shared passes do not change results."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from support.typed import not_none
from wmr_cli.builtins.attacks.pgd import Pgd
from wmr_cli.builtins.defenses.trades import Trades
from wmr_cli.builtins.kernels.exp import Exponential
from wmr_cli.config import EvaluateConfig, TrainConfig
from wmr_cli.core.losses import cross_entropy
from wmr_cli.core.nn.fusion import prepare_for_attack
from wmr_cli.core.norms import NORMS
from wmr_cli.core.protocols import AttackResult, Batch, Kernel, Objective
from wmr_cli.core.run_attack import ThreatModel, run_attack
from wmr_cli.core.traits import AttackTraits
from wmr_cli.evaluation.evaluator import Evaluator
from wmr_cli.evaluation.run import evaluate
from wmr_cli.events import EvaluationDone
from wmr_cli.registry import Registry
from wmr_cli.runtime import components, fabric
from wmr_cli.runtime.fabric import Hardware
from wmr_cli.storage.records import Record
from wmr_cli.training.learner import FabricLearner
from wmr_cli.training.optimization import StepSettings

EPS = 0.1


def batch(shape: tuple[int, int, int] = (3, 8, 8), size: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(0)
    return Batch(
        torch.rand(size, *shape, generator=generator), torch.arange(size) % 3, torch.arange(size)
    )


def train_briefly(fuse: bool, steps: int = 3) -> dict[str, Tensor]:
    """Return weights and statistics after a few steps of TRADES on a model with batch norm."""
    torch.manual_seed(0)
    layers = (
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(72, 3),
    )
    model = nn.Sequential(*layers)
    whole = batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = TrainConfig(eps=EPS)
    attack = Pgd(eps=EPS, steps=4, step=0.03)
    learner = FabricLearner(
        fabric.single_process("cpu"),
        config,
        model=model,
        optimizer=optimizer,
        attack=attack,
        kernel=Exponential(2.0),
        num_classes=3,
        attack_model=prepare_for_attack(model, whole.images, layout="contiguous", fuse=fuse),
    )
    for step in range(steps):
        learner.begin_step(0, step, StepSettings(0.1), len(whole.labels))
        Trades().step(learner, whole)
    assert learner.attack_model.num_fused == int(fuse)
    return model.state_dict()


def test_training_with_a_fused_model_differs_by_rounding_only() -> None:
    plain = train_briefly(fuse=False)
    fused = train_briefly(fuse=True)
    assert all(torch.allclose(plain[name], fused[name], atol=1e-4) for name in plain)
    assert not torch.equal(plain["0.weight"], train_briefly(fuse=False, steps=2)["0.weight"])


class PeakMemory(TorchDispatchMode):
    """Measure the peak of bytes in tensors that are made inside; views count as their base."""

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self)  # mypy takes super() for an untyped call
        self.live_storages: dict[str, Any] = {}
        self.peak = 0

    def __torch_dispatch__(
        self,
        function: torch._ops.OpOverload,
        types: tuple[type[Tensor]],
        args: tuple[object, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> bool | Tensor | tuple[Tensor | None, ...]:
        result: bool | Tensor | tuple[Tensor | None, ...] = function(*args, **(kwargs or {}))
        outputs = result if isinstance(result, tuple | list) else (result,)
        for tensor in outputs:
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                # a weak reference, so that measuring does not keep the memory
                reference = torch.multiprocessing.reductions.StorageWeakRef(storage)
                self.live_storages[storage._cdata] = (reference, storage.nbytes())
        self.live_storages = {
            key: (reference, size)
            for key, (reference, size) in self.live_storages.items()
            if not reference.expired()
        }
        self.peak = max(self.peak, sum(size for _, size in self.live_storages.values()))
        return result


def measure_peak_memory(work: Callable[..., Any]) -> int:
    with PeakMemory() as live:
        work()
    return int(live.peak)


@pytest.mark.parametrize("spec", ["small-cnn", "resnet20"])
@pytest.mark.parametrize("fuse", [False, True])
def test_an_attack_needs_no_more_memory_than_a_bare_pass(
    registry: Registry, spec: str, fuse: bool
) -> None:
    shape = (1, 28, 28) if spec == "small-cnn" else (3, 16, 16)
    model = components.build_model(registry, spec, 10, shape).eval()
    whole = batch(shape, size=64)

    def bare_pass() -> None:
        images = whole.images.clone().requires_grad_()
        torch.autograd.grad(cross_entropy(model(images), whole.labels).sum(), images)

    attacked = prepare_for_attack(model, whole.images, layout="contiguous", fuse=fuse).module
    attack = Pgd(eps=EPS, steps=3)
    threat = ThreatModel(NORMS["linf"], EPS, num_classes=10)
    attack_peak = measure_peak_memory(
        lambda: run_attack(attack, attacked, whole, cross_entropy, threat, seed=0)
    )
    assert attack_peak <= 1.2 * measure_peak_memory(bare_pass)


@pytest.mark.parametrize(("runs_weighted_attack", "attacks"), [(True, 4), (False, 1)])
def test_k_values_of_alpha_need_one_attack_and_k_more_for_a_tr(
    runs_weighted_attack: bool, attacks: int
) -> None:
    calls = []
    attack = Pgd(eps=EPS, steps=1)

    class CountedAttack:
        traits = AttackTraits()

        def __call__(
            self,
            model: nn.Module,
            batch: Batch,
            objective: Objective,
            *,
            seed: int,
            need_logits: bool = True,
        ) -> AttackResult:
            calls.append(1)
            return attack(model, batch, objective, seed=seed, need_logits=need_logits)

    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 3)).eval()
    kernels: dict[float | None, Kernel] = {alpha: Exponential(alpha) for alpha in (1.0, 1.5, 2.0)}
    Evaluator(
        model=model,
        attack=CountedAttack(),
        norm="linf",
        eps=EPS,
        num_classes=3,
        seed=0,
        kernels=kernels,
        runs_weighted_attack=runs_weighted_attack,
    ).evaluate_batch(batch())
    assert len(calls) == attacks


def test_attacks_of_one_evaluation_share_the_clean_pass(
    tiny_run: Path, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images_per_pass = []
    original = Evaluator.compute_clean_logits

    def count_pass(self: Evaluator, whole: Batch) -> Tensor:
        if whole.index.numpy().tobytes() not in not_none(self.clean_logits):
            images_per_pass.append(len(whole.labels))
        return original(self, whole)

    monkeypatch.setattr(Evaluator, "compute_clean_logits", count_pass)
    config = EvaluateConfig(
        attacks=("pgd", "fgsm"), eps=(0.05, 0.1), metrics=("nat", "rob"), limit=20
    )
    events = evaluate(
        tiny_run, config, registry, data_dir=tmp_path, hardware=Hardware("cpu"), out=tmp_path
    )
    found = [event.record.a_nat for event in events if isinstance(event, EvaluationDone)]
    assert len(found) == 6
    assert all(a_nat == found[0] for a_nat in found)
    assert sum(images_per_pass) == 20


@pytest.mark.parametrize("change", [{"fold": False}, {"layout": "contiguous"}])
def test_evaluation_does_not_depend_on_fusion_or_layout(
    change: dict[str, bool | str], tiny_run: Path, registry: Registry, tmp_path: Path
) -> None:
    def measure(folder: str, **settings: Any) -> Record:
        config = EvaluateConfig(limit=40, steps=3, **settings)
        events = evaluate(
            tiny_run,
            config,
            registry,
            data_dir=tmp_path,
            hardware=Hardware("cpu"),
            out=tmp_path / folder,
        )
        return next(event.record for event in events if isinstance(event, EvaluationDone))

    default = measure("default")
    changed = measure("changed", **change)
    assert default.id != changed.id
    assert not_none(default.a_rob).value == pytest.approx(not_none(changed.a_rob).value, abs=1e-6)
    assert not_none(default.by_alpha[0].a_tr).value == pytest.approx(
        not_none(changed.by_alpha[0].a_tr).value, abs=1e-4
    )


COUNT_PAGE_FAULTS = """
import resource, sys
import torch
from wmr_cli.runtime import fabric as devices

is_supported = sys.argv[1] == "kept" and devices.keep_memory()
torch.set_num_threads(1)
network = torch.nn.Sequential(
    torch.nn.Conv2d(1, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3), torch.nn.ReLU()
)
images = torch.rand(128, 1, 28, 28, requires_grad=True)
for number in range(6):
    if number == 3:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.autograd.grad(network(images).sum(), images)
print(int(is_supported), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_freed_memory_is_kept_for_the_next_pass() -> None:
    """In separate processes, because settings of malloc hold for a whole process."""

    def count_page_faults(memory: str) -> tuple[int, int]:
        """Return whether keeping memory is supported, and the page faults of three passes."""
        command = [sys.executable, "-c", COUNT_PAGE_FAULTS, memory]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        is_supported, faults = map(int, done.stdout.split())
        return is_supported, faults

    _, default_faults = count_page_faults("default")
    is_supported, kept_faults = count_page_faults("kept")
    if not is_supported or default_faults < 1000:
        pytest.skip("only glibc supports this, and large pages hide the effect")
    assert kept_faults < default_faults / 2


@pytest.mark.parametrize(("value", "calls"), [("1", 1), ("0", 0)])
def test_an_environment_variable_returns_memory_to_the_system(
    value: str, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls_made = []
    monkeypatch.setenv(fabric.KEEP_MEMORY, value)
    monkeypatch.setattr(fabric, "keep_memory", lambda: calls_made.append(1))
    fabric.single_process("cpu")
    assert len(calls_made) == calls
