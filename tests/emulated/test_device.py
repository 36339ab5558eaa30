"""The emulated device has the rules of CUDA, and counts what CUDA would do."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from emulated.conftest import pytest_collection_modifyitems
from emulated.device import NAME, EmulatedTensor, Log, count_multi_tensor_launches, recorded
from emulated.runtime import emulation
from support.typed import mistyped
from wmr_cli.runtime.accelerators import HostCopy

TESTS = Path(__file__).parents[1]
pytestmark = [pytest.mark.emulated, pytest.mark.usefixtures("cuda_like")]


def on_device(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32).to(NAME)


def record(action: Callable[[], object]) -> Log:
    with recorded() as log:
        action()
    return log


@pytest.mark.parametrize(
    "operation",
    [
        lambda here, there: here + there,
        lambda here, there: torch.cat([here, there]),
        lambda here, there: here.copy_(there).add_(there.cpu()),
        lambda here, there: torch.where(here > 0, here, there),
        lambda here, there: there[here.long()],
        lambda here, there: there.gather(0, here.long()),
        lambda here, there: torch._foreach_add([here], [there]),
        lambda here, there: nn.functional.linear(here, there[None]),
    ],
)
def test_operands_of_two_devices_are_refused(
    operation: Callable[[Tensor, Tensor], object],
) -> None:
    with pytest.raises(RuntimeError, match=r"device|CPU"):
        operation(on_device(0, 1), torch.ones(2))


def test_what_cuda_accepts_is_accepted() -> None:
    values = on_device(1, 2)
    assert (values * torch.tensor(2.0)).tolist() == [2, 4]
    assert values[torch.tensor([1])].tolist() == [2]
    values.copy_(torch.zeros(2))
    assert values.tolist() == [0, 0]


@pytest.mark.parametrize("convert", [lambda tensor: tensor.numpy(), np.asarray])
def test_numpy_is_refused(convert: Callable[[Tensor], object]) -> None:
    with pytest.raises(TypeError, match="numpy"):
        convert(on_device(1))


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(2, dtype=torch.float64, device=NAME),
        lambda: torch.zeros(2, dtype=torch.float64).to(NAME),
        lambda: on_device(1).double(),
        lambda: on_device(1) + on_device(1).to(torch.float64),
    ],
)
def test_float64_can_be_forbidden(make: Callable[[], Tensor]) -> None:
    assert make().dtype == torch.float64
    with emulation(like_mps=True), pytest.raises(TypeError, match="float64"):
        make()


@pytest.mark.parametrize(
    ("action", "waits"),
    [
        (lambda: on_device(1, 2).sum(), 1),  # the copy to the device
        (lambda: on_device(1).item(), 2),
        (lambda: bool(on_device(1) > 0), 2),
        (lambda: on_device(1, 2).tolist(), 2),
        (lambda: on_device(1, 2).cpu(), 2),
        (lambda: on_device(1, 0).nonzero(), 2),
        (lambda: on_device(1, 0)[torch.zeros(2, device=NAME) > 0], 2),
        (lambda: on_device(1, 0)[torch.zeros(2, device=NAME).long()], 1),
        (lambda: on_device(1, 0)[torch.tensor([1])], 2),
        (lambda: torch.equal(on_device(1), torch.zeros(1, device=NAME)), 2),
        (lambda: torch.ones(2).pin_memory().to(NAME, non_blocking=True), 0),
        (lambda: torch.ones(2).pin_memory().to(NAME), 1),
        (lambda: torch.ones(2).to(NAME, non_blocking=True), 1),
        (lambda: torch.zeros(2, device=NAME) + 1, 0),
    ],
)
def test_waits_of_the_host_are_counted(action: Callable[[], object], waits: int) -> None:
    assert record(action).count("waits") == waits


@pytest.mark.parametrize(
    ("action", "launches"),
    [
        (lambda x: x + 1, 1),
        (lambda x: x.reshape(2, 1).detach()[:1].mT, 0),
        (lambda x: torch.empty_like(x), 0),
        (lambda x: torch.zeros_like(x), 1),
        (lambda x: torch._foreach_mul([x] * 110, 2.0), 2),
        (lambda x: torch._foreach_lerp_([x.clone()] * 10, [x] * 10, 0.5), 2),
    ],
)
def test_launches_are_counted(action: Callable[[Tensor], object], launches: int) -> None:
    x = on_device(1, 2)
    assert record(lambda: action(x)).count("launches") == launches


def test_a_backward_pass_of_a_convolution_launches_one_kernel_per_gradient() -> None:
    layer = nn.Conv2d(1, 2, 3).to(NAME)
    images = torch.rand(1, 1, 4, 4).to(NAME).requires_grad_()
    total = layer(images).sum()
    log = record(lambda: torch.autograd.grad(total, images, retain_graph=True))
    assert sum(n for (what, _), n in log.launches.items() if "convolution" in what) == 1
    log = record(total.backward)
    assert sum(n for (what, _), n in log.launches.items() if "convolution" in what) == 3


@pytest.mark.parametrize(
    ("sizes", "lists", "launches"),
    [([8] * 110, 1, 1), ([8] * 111, 1, 2), ([8] * 64, 2, 1), ([8] * 65, 2, 2), ([8] * 62, 3, 2)],
)
def test_foreach_operations_launch_one_kernel_per_group_of_tensors(
    sizes: list[int], lists: int, launches: int
) -> None:
    assert count_multi_tensor_launches([torch.empty(size) for size in sizes], lists) == launches


def test_a_large_tensor_needs_several_launches() -> None:
    tensor = torch.empty(320 * 65536, device="meta")
    assert count_multi_tensor_launches([tensor], 2) == 1
    assert count_multi_tensor_launches([tensor, tensor], 2) == 2


def test_a_copy_to_the_host_has_no_values_before_it_is_complete() -> None:
    copy = HostCopy.start(on_device(1, 2))
    assert copy.values.isnan().all()
    assert copy.wait().tolist() == [1, 2]


def test_waiting_for_the_last_copy_is_a_wait_unless_more_was_launched() -> None:
    values = on_device(1, 2)
    idle = HostCopy.start(values)
    assert record(idle.wait).count("waits") == 1
    busy = HostCopy.start(values)
    values.add_(1)
    assert record(busy.wait).count("waits") == 0
    assert busy.values.tolist() == [1, 2]


def test_autocast_rounds_a_weight_once() -> None:
    layer = nn.Linear(4, 2).to(NAME)
    images = torch.rand(3, 4).to(NAME)

    def run() -> Tensor:
        with torch.autocast(NAME, torch.bfloat16):
            layer(images)
            logits: Tensor = layer(images)
            assert logits.softmax(dim=1).dtype == torch.float32
            return logits

    log = record(lambda: run().dtype)
    assert run().dtype == torch.bfloat16
    # weight and bias once, the images twice, the logits before the softmax
    assert sum(n for (what, _), n in log.launches.items() if what == "_to_copy") == 5


def test_a_module_keeps_its_parameters_when_it_moves() -> None:
    layer = nn.Linear(2, 2)
    weight = layer.weight
    values = weight.detach().clone()
    layer.to(NAME)
    assert layer.weight is weight
    assert isinstance(weight, EmulatedTensor)
    assert weight.requires_grad
    layer.to("cpu")
    assert layer.weight is weight
    assert torch.equal(weight, values)


def test_importing_these_tests_does_not_register_the_device() -> None:
    modules = [f"emulated.{file.stem}" for file in sorted(Path(__file__).parent.glob("[!_]*.py"))]
    assert len(modules) > 5
    imports = "; ".join(f"import {module}" for module in modules)
    done = subprocess.run(
        [
            *(sys.executable, "-c"),
            f"{imports}; import torch; print(torch._C._get_privateuse1_backend_name())",
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.split() == ["privateuseone"]


def test_these_tests_do_not_run_beside_others() -> None:
    deselected: list[object] = []
    hook = SimpleNamespace(pytest_deselected=lambda items: deselected.extend(items))
    config = mistyped(SimpleNamespace(hook=hook))
    own = mistyped(SimpleNamespace(path=Path(__file__)))
    other = mistyped(SimpleNamespace(path=TESTS / "test_spec.py"))
    together = [own, other]
    pytest_collection_modifyitems(config, together)
    assert (together, deselected) == ([other], [own])
    alone = [own]
    pytest_collection_modifyitems(config, alone)
    assert alone == [own]
