"""What an accelerator can do: its free memory, asynchronous copies, kernels and their launches."""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..core.contexts import is_accelerator

LAUNCHES = (
    "cudaLaunchKernel",
    "cuLaunchKernel",
    "cudaGraphLaunch",
    "cudaMemcpyAsync",
    "cudaMemset",
)
"""Beginnings of the names of calls that send work to a GPU."""
WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy")
"""Calls that return when the GPU has finished. `cudaDeviceSynchronize` ends each measurement."""
UNKNOWN_MEMORY = 4 * 2**30
"""Assumed free bytes of an accelerator that does not report them."""
ASYNCHRONOUS_DEVICES = ("cuda",)
"""Devices that copy from and to pinned memory while the host goes on."""


def free_memory(device: torch.device) -> int:
    """Return the free bytes of an accelerator, or a cautious guess where they are unknown."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    # since torch 2.5
    if device.type == "mps" and hasattr(torch.mps, "recommended_max_memory"):
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    return UNKNOWN_MEMORY


def find_peak_memory(device: torch.device) -> int | None:
    """Return the largest number of bytes that this process has used so far; None if not known.

    On the CPU it includes the program and the dataset, on an accelerator only tensors.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type != "cpu":
        return None
    # Windows does not have the module
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS counts bytes, Linux kibibytes
    return peak if sys.platform == "darwin" else 1024 * peak


def synchronize(device: torch.device) -> None:
    """Wait until a device has finished its queue; the CPU has none."""
    if is_accelerator(device):
        torch.get_device_module(device).synchronize()


def copies_without_blocking(device: torch.device) -> bool:
    """Whether the host goes on while pinned memory is copied to or from this device."""
    return device.type in ASYNCHRONOUS_DEVICES


def has_device_graphs(device: torch.device) -> bool:
    """Whether a compiled function can be launched as one graph of kernels."""
    return device.type == "cuda"


def has_fused_optimizer(device: torch.device) -> bool:
    """Whether one kernel should update all parameters.

    On the CPU it is not faster, and its rounding differs from that of earlier versions.
    """
    return device.type not in ("cpu", "mps")


class Waitable(Protocol):
    """An event of a device."""

    def synchronize(self) -> None:
        """Wait until the device has reached the event."""
        ...


@dataclass(frozen=True, eq=False)
class HostCopy:
    """A tensor on its way to the host."""

    values: Tensor
    arrival: Waitable | None = None
    """The event after the copy; None if the copy is complete."""

    @classmethod
    def start(cls, values: Tensor) -> "HostCopy":
        """Start to copy; the host goes on if the device allows it."""
        if not copies_without_blocking(values.device):
            return cls(values.cpu())
        # only a copy to pinned memory lets the host go on
        on_host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        on_host.copy_(values, non_blocking=True)
        arrival = torch.get_device_module(values.device).Event()
        arrival.record()
        return cls(on_host, arrival)

    def wait(self) -> Tensor:
        """Return the values on the host, once all of them have arrived."""
        if self.arrival is not None:
            self.arrival.synchronize()
        return self.values


@dataclass(frozen=True)
class DeviceCalls:
    """How often the host sends work to a device, and how often it waits for the device."""

    launches: int
    waits: int

    @classmethod
    def from_names(cls, names: Iterable[str]) -> "DeviceCalls":
        """Count calls of the CUDA runtime by their names."""
        called = list(names)
        return cls(
            launches=sum(name.startswith(LAUNCHES) for name in called),
            waits=sum(name in WAITS for name in called),
        )


def count_device_calls(work: Callable[[], object], device: torch.device) -> DeviceCalls | None:
    """Run some work and count its calls, or return None on a device that cannot be profiled."""
    if device.type != "cuda":
        return None
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        work()
        synchronize(device)
    return DeviceCalls.from_names(event.name for event in profile.events() or ())
