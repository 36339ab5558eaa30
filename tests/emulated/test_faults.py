"""Faults that are seeded in `wmr`: the checks of this folder find each, with its file and line."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

import wmr_cli
from emulated.device import NAME
from emulated.measuring import (
    check_budget,
    check_resumed_run,
    make_config,
    measure_setting,
    save_images,
)
from emulated.runtime import emulation
from wmr_cli.builtins.kernels.exp import Exponential
from wmr_cli.core import losses, pgd, run_attack
from wmr_cli.core.data.splits import MemorySplit
from wmr_cli.core.protocols import Batch
from wmr_cli.evaluation.evaluator import Evaluator
from wmr_cli.registry import Registry
from wmr_cli.runtime.accelerators import HostCopy
from wmr_cli.testing import tiny_batch, tiny_model
from wmr_cli.training import batches, checkpointing, learner, loop, optimization

pytestmark = pytest.mark.emulated
SOURCE = Path(wmr_cli.__file__).parent


@dataclass(frozen=True)
class Edit:
    """A text in the source of a function, and what replaces it."""

    function: Callable[..., Any]
    before: str
    after: str


@dataclass(frozen=True)
class Fault:
    """Edits, the check that finds them, and the text in whose line it does."""

    edits: tuple[Edit, ...]
    found_by: str
    function: Callable[..., Any]
    text: str


def replace_once(function: Callable[..., Any], before: str, after: str, found_by: str) -> Fault:
    """Return a fault of one edit, which is found in its own line."""
    return Fault((Edit(function, before, after),), found_by, function, before)


FAULTS = {
    "a tensor stays on the CPU": replace_once(
        pgd.pgd_step,
        "steps_survived + (logits.argmax(dim=1) == labels)",
        "steps_survived.cpu() + (logits.argmax(dim=1) == labels)",
        "training",
    ),
    "labels of a kernel are on the CPU": Fault(
        (Edit(Exponential.__call__, "evidence.labels)", "evidence.labels.cpu())"),),
        "training",
        losses.margin,
        "true = scores.gather",
    ),
    "an index is on another device": replace_once(
        batches.TrainingBatches._load,
        "self._host_index[positions]",
        "self._host_index[positions.to(self._device)]",
        "training",
    ),
    "the state of the optimizer is not moved after a resume": Fault(
        (
            Edit(
                checkpointing._make_optimizer_state,
                "torch.empty_like(parameter).copy_(tensor)",
                "tensor.clone()",
            ),
            Edit(
                checkpointing.restore_state,
                "run.optimizer.load_state_dict(optimizer_state)",
                "run.optimizer.state.update(zip(run.optimizer.param_groups[0]['params'],"
                " optimizer_state['state'].values()))",
            ),
        ),
        "training",
        learner.FabricLearner.optimizer_step,
        "self._optimizer.step()",
    ),
    "the weight average is not moved after a resume": Fault(
        (
            Edit(
                optimization.WeightAverage.load_state,
                "load_state_dict(weights)",
                "load_state_dict(weights, assign=True)",
            ),
        ),
        "training",
        optimization.WeightAverage.update,
        "torch._foreach_lerp_(",
    ),
    "a tensor of the device is converted to NumPy": replace_once(
        Evaluator._evaluate_clean, "batch.index.cpu().numpy()", "batch.index.numpy()", "evaluation"
    ),
    "a margin is computed in float64": replace_once(
        losses.probability_margin,
        "margin(upcast_half(logits).softmax(dim=1), labels)",
        "margin(logits.double().softmax(dim=1), labels).float()",
        "training without float64",
    ),
    "the host waits in each PGD step": replace_once(
        pgd.pgd_step,
        "moved = images + step * norm.direction(gradient)",
        "moved = images + step * norm.direction(gradient); assert moved.isfinite().all()",
        "budget",
    ),
    "the host waits in each training step": replace_once(
        loop.train_step,
        "run.statistics.add(report, run.learner.attack_outcome)",
        "run.statistics.add(report, run.learner.attack_outcome); report.losses.mean().item()",
        "budget",
    ),
    "statistics are read in the step that computes them": Fault(
        (
            Edit(
                loop.train_step,
                "int(copies_without_blocking(run.runtime.device))",
                "0",
            ),
        ),
        "budget",
        HostCopy.wait,
        "self.arrival.synchronize()",
    ),
    "buffers are compared one by one": replace_once(
        run_attack.BufferSnapshot.list_changes,
        "masks = {",
        "[torch.equal(buffer, buffer) for buffer in buffers.values()]; masks = {",
        "budget with batch-norm",
    ),
    "positions are copied from memory that is not pinned": Fault(
        (
            Edit(
                batches.TrainingBatches._load,
                "positions = positions.pin_memory()",
                "pass",
            ),
        ),
        "budget",
        MemorySplit.stored_batch,
        "positions = positions.to",
    ),
    "images are copied from the host for each batch": Fault(
        (
            Edit(
                batches.fits_on_device,
                "if not is_accelerator(device):",
                "if True:",
            ),
        ),
        "budget",
        Batch.to,
        "part.to(device",
    ),
    "the average launches one kernel per tensor": replace_once(
        optimization.WeightAverage.update,
        "torch._foreach_lerp_(",
        "(lambda olds, news, by: [old.lerp_(new, by) for old, new in zip(olds, news)])(",
        "budget",
    ),
    "the optimizer is not fused": Fault(
        (Edit(optimization.make_optimizer, 'options["fused"] = True', "pass"),),
        "budget",
        learner.FabricLearner.optimizer_step,
        "self._optimizer.step()",
    ),
    "gradients are copied to the host one by one": replace_once(
        learner.FabricLearner.optimizer_step,
        "self._optimizer.zero_grad()",
        "[each.grad.cpu() for each in self.model.parameters()]; self._optimizer.zero_grad()",
        "budget",
    ),
}


def seed(edit: Edit, patch: pytest.MonkeyPatch) -> None:
    """Replace the code of a function, so that all modules that imported it have the fault."""
    function = inspect.unwrap(edit.function)
    assert isinstance(function, FunctionType)
    lines, first = inspect.getsourcelines(function)
    source = textwrap.dedent("".join(lines))
    assert source.count(edit.before) == 1, f"{edit.before!r} is not in {function.__qualname__} once"
    tree = ast.parse(source.replace(edit.before, edit.after))
    ast.increment_lineno(tree, first - 1)
    code = compile(tree, inspect.getfile(function), "exec", function.__code__.co_flags & 0x1FE0000)
    made = next(
        each
        for each in code.co_consts
        if isinstance(each, CodeType) and each.co_name == function.__name__
    )
    patch.setattr(function, "__code__", made)


def find_line(function: Callable[..., Any], text: str) -> str:
    """Return file and line of a text in a function."""
    function = inspect.unwrap(function)
    lines, first = inspect.getsourcelines(function)
    (offset,) = [number for number, line in enumerate(lines) if text in line]
    file = Path(inspect.getfile(function)).relative_to(SOURCE)
    return f"{file}:{first + offset}"


def train(folder: Path, registry: Registry) -> None:
    check_resumed_run(make_config(save_images(folder), optimizer="adam"), folder, registry)


def train_without_float64(folder: Path, registry: Registry) -> None:
    with emulation(like_mps=True):
        train(folder, registry)


def evaluate(folder: Path, registry: Registry) -> None:
    batch = tiny_batch(6)
    data = [(batch.images, batch.labels)]
    wmr_cli.evaluate(tiny_model(), data, eps=5 / 255, attack="fgsm", device=NAME)


def measure(folder: Path, registry: Registry) -> None:
    check_budget("small", measure_setting("small", folder, registry))


def measure_with_batch_norm(folder: Path, registry: Registry) -> None:
    check_budget("resnet20-pgd", measure_setting("resnet20-pgd", folder, registry))


CHECKS: dict[str, Callable[[Path, Registry], None]] = {
    "training": train,
    "training without float64": train_without_float64,
    "evaluation": evaluate,
    "budget": measure,
    "budget with batch-norm": measure_with_batch_norm,
}


@pytest.mark.usefixtures("cuda_like")
@pytest.mark.parametrize("check", CHECKS)
def test_the_checks_pass_without_a_fault(check: str, registry: Registry, tmp_path: Path) -> None:
    CHECKS[check](tmp_path, registry)


@pytest.mark.usefixtures("cuda_like")
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_with_its_place(
    name: str, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = FAULTS[name]
    place = find_line(fault.function, fault.text)
    for edit in fault.edits:
        seed(edit, monkeypatch)
    with pytest.raises((AssertionError, RuntimeError, TypeError)) as found:
        CHECKS[fault.found_by](tmp_path, registry)
    assert place in str(found.value)
