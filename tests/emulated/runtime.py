"""Lightning Fabric on the emulated device, and autocast for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from emulated.device import (
    NAME,
    STATE,
    DeviceMode,
    EmulatedTensor,
    is_pinned,
    pin,
    register_device,
)
from wmr_cli.core.losses import widest_float_dtype
from wmr_cli.runtime import accelerators, fabric

LOWERED = ("conv1d", "conv2d", "conv3d", "_convolution", "linear", "matmul", "mm", "bmm", "addmm")
"""Operations that autocast computes in half precision on CUDA."""
RAISED = (
    *("exp", "log", "softmax.int", "log_softmax.int", "softplus", "sum", "sum.dim_IntList"),
    *("nll_loss", "cross_entropy_loss", "kl_div", "prod", "cumsum", "rsqrt"),
)
"""Operations that autocast computes in float32 on CUDA."""

_libraries: list[torch.library.Library] = []
"""Kept alive: torch forgets a kernel with its library."""


class CastCache:
    """Rounded weights, each kept until the outermost autocast ends, as on CUDA."""

    def __init__(self) -> None:
        self._rounded: dict[int, tuple[Tensor, Tensor]] = {}

    def lower(self, tensor: Tensor) -> Tensor:
        """Return a float32 tensor in the dtype of autocast."""
        dtype = torch.get_autocast_dtype(NAME)
        is_weight = tensor.requires_grad and tensor.is_leaf and tensor._base is None
        if not (is_weight and torch.is_autocast_cache_enabled()):
            return tensor.to(dtype)
        if id(tensor) not in self._rounded:
            # with the tensor itself: the number of one that is gone may be used again
            self._rounded[id(tensor)] = (tensor, tensor.to(dtype))
        return self._rounded[id(tensor)][1]

    def clear(self) -> None:
        self._rounded.clear()


@cache
def register_autocast() -> CastCache:
    """Register autocast for the device, once per process."""
    register_device()
    rounded = CastCache()
    fallback = torch.library.Library("_", "IMPL")
    fallback.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    library = torch.library.Library("aten", "IMPL")
    _libraries.extend((fallback, library))

    def lower(tensor: Tensor) -> Tensor:
        return rounded.lower(tensor) if tensor.dtype == torch.float32 else tensor

    def to_float32(tensor: Tensor) -> Tensor:
        return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor

    for names, cast in ((LOWERED, lower), (RAISED, to_float32)):
        for name in names:
            _register(library, name, cast)
    clear = torch.clear_autocast_cache

    def clear_autocast_cache() -> None:
        clear()
        rounded.clear()

    torch.clear_autocast_cache = clear_autocast_cache
    return rounded


def _register(library: torch.library.Library, name: str, cast: Any) -> None:
    packet, _, overload = name.partition(".")
    operation = getattr(getattr(torch.ops.aten, packet), overload or "default")

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(NAME, enabled=False):
            cast_args, cast_kwargs = pytree.tree_map_only(EmulatedTensor, cast, (args, kwargs))
            return operation(*cast_args, **cast_kwargs)

    library.impl(name, run, "AutocastPrivateUse1")


@cache
def register_accelerator() -> None:
    """Make Fabric accept the device, once per process."""
    from lightning_fabric.accelerators import ACCELERATOR_REGISTRY
    from lightning_fabric.accelerators.accelerator import Accelerator

    class EmulatedAccelerator(Accelerator):
        def setup_device(self, device: torch.device) -> None:
            pass

        def teardown(self) -> None:
            pass

        @staticmethod
        def parse_devices(devices: Any) -> Any:
            return devices

        @staticmethod
        def get_parallel_devices(devices: Any) -> Any:
            return [register_device()]

        @staticmethod
        def auto_device_count() -> int:
            return 1

        @staticmethod
        def is_available() -> bool:
            return True

        @staticmethod
        def name() -> str:
            return NAME

    ACCELERATOR_REGISTRY.register(NAME, EmulatedAccelerator)


@contextmanager
def emulation(*, like_mps: bool = False) -> Iterator[torch.device]:
    """Let `wmr` use the device `emu` inside.

    It behaves as CUDA does, or as MPS: without float64 and without asynchronous copies.
    """
    from lightning_fabric.strategies.single_device import SingleDeviceStrategy

    device = register_device()
    register_autocast()
    register_accelerator()
    make_strategy = fabric._make_strategy
    asynchronous = accelerators.ASYNCHRONOUS_DEVICES

    def make_emulated_strategy(kind: str, *args: Any, **kwargs: Any) -> Any:
        if kind == NAME:
            return SingleDeviceStrategy(device)
        return make_strategy(kind, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch, DeviceMode():  # type: ignore[no-untyped-call]
        patch.setattr(fabric, "DEVICES", (*fabric.DEVICES, NAME))
        patch.setattr(fabric, "_make_strategy", make_emulated_strategy)
        patch.setattr(STATE, "has_float64", not like_mps)
        patch.setattr(STATE, "is_asynchronous", not like_mps)
        if not like_mps:
            patch.setattr(accelerators, "ASYNCHRONOUS_DEVICES", (*asynchronous, NAME))
        # the mode acts in this thread only, and batches are pinned in others
        patch.setattr(torch.Tensor, "pin_memory", pin)
        patch.setattr(torch.Tensor, "is_pinned", is_pinned)
        # answers that were given for another emulation
        widest_float_dtype.cache_clear()
        fabric.launch.cache_clear()
        yield device
