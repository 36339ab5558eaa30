"""Devices, precision and the start of processes, on top of Lightning Fabric."""

import atexit
import ctypes
import importlib
import inspect
import logging
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from ..core.contexts import is_accelerator
from ..errors import BadInput
from .distributed import (
    Ranks,
    exchange_before_connection,
    leave_group,
    read_launcher,
    watch_failures,
)
from .failures import LOOPBACK, watch_child
from .processes import count_granted_cores, count_idle_cores, end_with_parent

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from lightning_fabric.accelerators.accelerator import Accelerator
    from lightning_fabric.plugins.precision.precision import Precision
    from lightning_fabric.strategies.strategy import Strategy

DEVICES = ("auto", "cpu", "cuda", "mps")
KEEP_MEMORY = "WMR_KEEP_MEMORY"
"""Environment variable: 0 returns freed memory to the system at once."""
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
MMAP_THRESHOLDS = (2**30, 2**25)
"""Bytes; older versions of glibc accept only the second."""
PRECISIONS: dict[str, Literal["bf16-mixed", "16-mixed"]] = {"bf16": "bf16-mixed", "16": "16-mixed"}
"""Fabric's names of the mixed precisions."""
DUPLICATE_GPU = "Duplicate GPU"
"""Text of NCCL's error if several processes use the same GPU."""
EVALUATION_TIMEOUT = timedelta(days=30)
"""In an evaluation a rank may wait for all chunks of another."""


@dataclass(frozen=True)
class Hardware:
    """Where to compute: a kind of device, how many of them per node, and how many nodes."""

    device: str = "auto"
    devices: int | None = None
    nodes: int | None = None
    threads: int | None = None
    """Threads of each process that compute on a CPU and decode images; None for the default."""

    def count_threads(self) -> int:
        """Return how many threads of each process decode images: its part of the granted cores."""
        if self.threads is not None:
            return self.threads
        return count_granted_cores(_count_devices_and_nodes(self)[0])


class Runtime:
    """The device, precision and ranks of a run: the part of Lightning Fabric that `wmr` uses."""

    def __init__(self, fabric: "Fabric", threads: int | None = None) -> None:
        self._fabric = fabric
        self._chosen_threads = threads
        self.device: torch.device = fabric.device
        self.ranks = Ranks(
            index=fabric.global_rank,
            count=fabric.world_size,
            local_index=fabric.local_rank,
            node=fabric.node_rank,
            device=fabric.device,
        )
        self.loss_scale = LossScale(fabric)

        self.use_threads(threads)

    @property
    def threads(self) -> int | None:
        """Threads of each process that compute; None on an accelerator.

        The order of sums depends on them, so they change the last bits of a training.
        """
        return None if is_accelerator(self.device) else torch.get_num_threads()

    def use_threads(self, threads: int | None) -> None:
        """Compute with this many threads per process, unless the user chose another number.

        On an accelerator the threads of the CPU have little to do.
        """
        threads = self._chosen_threads or threads
        if threads is not None and not is_accelerator(self.device):
            torch.set_num_threads(threads)

    def __str__(self) -> str:
        """`cpu`, or `2 x cuda`."""
        if self.ranks.count == 1:
            return str(self.device)
        return f"{self.ranks.count} x {self.device.type}"

    def setup(
        self, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Wrap model and optimizer for this precision and these ranks."""
        # a program may train several times with one runtime
        self.loss_scale.reset()
        wrapped_model, wrapped_optimizer = self._fabric.setup(model, optimizer)
        return wrapped_model, wrapped_optimizer

    def autocast(self) -> AbstractContextManager[None]:
        """Compute in the chosen precision inside."""
        return self._fabric.autocast()

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss, scaled in half precision, as the mean over all ranks."""
        self._fabric.backward(loss)

    def clip_gradients(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, max_norm: float
    ) -> None:
        """Clip the L2 norm of all gradients of a wrapped model."""
        self._fabric.clip_gradients(
            model,
            optimizer,
            max_norm=max_norm,
            # the loop reports a non-finite loss with its epoch and step
            error_if_nonfinite=False,
        )


class LossScale:
    """The loss scale of half precision, which checkpoints keep. Empty in other precisions."""

    def __init__(self, fabric: "Fabric") -> None:
        self._precision = fabric.strategy.precision
        self._initial = self._precision.state_dict()

    def reset(self) -> None:
        """Return to the scale of a new run."""
        self._precision.load_state_dict(self._initial)

    def state(self) -> dict[str, Tensor]:
        """Return the scale and its counters."""
        return {
            # safetensors stores tensors only; float64 holds scale and counters exactly
            name: torch.tensor(value, dtype=torch.float64)
            for name, value in self._precision.state_dict().items()
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        # the scaler needs Python numbers, and some of them as int
        types = {name: type(value) for name, value in self._precision.state_dict().items()}
        self._precision.load_state_dict(
            {name: types[name](value.item()) for name, value in state.items()}
        )


@cache
def launch(
    hardware: Hardware, precision: str = "32", timeout: timedelta = EVALUATION_TIMEOUT
) -> Runtime:
    """Start the processes once per program: each runs the same command from its beginning.

    A rank that waits for another longer than `timeout` fails.
    """
    # after the import, which sets the level itself; the start-up lines are noise for users
    importlib.import_module("lightning_fabric")
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    fabric = _make_fabric(hardware, precision, timeout)
    devices, nodes = _count_devices_and_nodes(hardware)
    if devices * nodes > 1 and not read_launcher() and "LOCAL_RANK" not in os.environ:
        _start_local_ranks(devices, nodes)
    try:
        fabric.launch()
    except RuntimeError as error:
        # some versions connect the GPUs at once
        if DUPLICATE_GPU in str(error):
            raise _too_few_gpus() from error
        raise
    # after the launch, which divides the cores among local processes
    runtime = Runtime(fabric, hardware.threads)
    if fabric.world_size > 1:
        _check_gpus(runtime.ranks)
        watch_failures(runtime.ranks)
        # the threads of the process group must end before the interpreter does
        atexit.register(leave_group)
    return runtime


def use_idle_cores(hardware: Hardware) -> None:
    """Use one thread for each core that other processes leave idle, unless the user chose.

    For work whose numbers do not depend on the number of threads.
    """
    threads = suggest_threads(hardware)
    if threads is not None:
        torch.set_num_threads(threads)


def suggest_threads(hardware: Hardware) -> int | None:
    """Return the number of idle cores if there are fewer than threads, unless the user chose.

    A thread that waits for a core stops all others at the end of each operation.
    """
    devices, nodes = _count_devices_and_nodes(hardware)
    is_chosen = hardware.threads is not None or "OMP_NUM_THREADS" in os.environ
    # several processes divide the threads among themselves;
    # beside an accelerator the threads of the CPU have little to do
    if is_chosen or devices * nodes > 1 or has_accelerator(hardware.device):
        return None
    idle = count_idle_cores()
    return idle if idle < torch.get_num_threads() else None


def _check_gpus(ranks: Ranks) -> None:
    """Raise if several processes of a machine use the same GPU."""
    if ranks.device.type != "cuda":
        return
    properties = torch.cuda.get_device_properties(ranks.device)
    if not hasattr(properties, "uuid"):  # older versions of torch
        return
    gpus = exchange_before_connection(ranks, f"{ranks.node} {properties.uuid}")
    if len(set(gpus)) < len(gpus):
        raise _too_few_gpus()


def _too_few_gpus() -> BadInput:
    return BadInput(
        "several processes use the same GPU",
        hint="start one process per GPU, or let Slurm give each process its own GPU",
    )


def _start_local_ranks(devices: int, nodes: int) -> None:
    """Start the other ranks of this machine; each runs the command of this process.

    Fabric would start them too. It would also kill this process, without a message, as soon as
    one of them ends with an error.
    """
    with socket.socket() as unused:
        unused.bind(("", 0))
        port = unused.getsockname()[1]
    os.environ.setdefault("MASTER_ADDR", LOOPBACK)
    os.environ.setdefault("MASTER_PORT", str(port))
    os.environ.setdefault("NODE_RANK", os.environ.get("GROUP_RANK", "0"))
    # with this variable Fabric starts no processes itself
    os.environ["LOCAL_RANK"] = "0"
    os.environ["WORLD_SIZE"] = str(devices * nodes)
    program = [str(Path(sys.argv[0]).absolute())]
    spec = vars(sys.modules["__main__"]).get("__spec__")
    if spec is not None:  # python -m
        program = ["-m", spec.name]
    for rank in range(1, devices):
        command = [sys.executable, *program, *sys.argv[1:]]
        child = subprocess.Popen(
            command,
            env={**os.environ, "LOCAL_RANK": str(rank)},
            # before the ranks are connected, a rank notices the end of rank 0 by nothing else
            preexec_fn=end_with_parent(signal.SIGKILL),
        )
        watch_child(child, rank)


def single_process(device: str = "auto", precision: str = "32") -> Runtime:
    """Return the runtime of this process alone on one device."""
    return Runtime(_make_fabric(Hardware(device), precision, EVALUATION_TIMEOUT))


def _make_fabric(hardware: Hardware, precision: str, timeout: timedelta) -> "Fabric":
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments.lightning import LightningEnvironment

    kind, number = _parse_device(hardware.device)
    if precision == "16" and not has_accelerator(kind):
        raise BadInput("precision 16 needs a GPU", hint="use `precision=bf16` or `precision=32`")
    # before the first large allocation
    if not has_accelerator(kind) and os.environ.get(KEEP_MEMORY) != "0":
        keep_memory()
    # before the first product: cuBLAS is deterministic only with workspaces of a fixed size
    if has_accelerator(kind):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    devices, nodes = _count_devices_and_nodes(hardware)
    is_bound = kind != "cpu" and _has_own_gpu(devices)
    return Fabric(
        accelerator=_make_own_gpu() if is_bound else kind,
        devices=devices if number is None else [number],
        num_nodes=nodes,
        strategy=_make_strategy(kind, devices * nodes, timeout),
        # without an environment Fabric looks for one, and warns if `srun` is installed but unused
        plugins=[
            _make_precision(precision, kind),
            *([] if read_launcher() else [LightningEnvironment()]),
        ],
    )


def _make_strategy(kind: str, count: int, timeout: timedelta) -> "Strategy | Literal['auto']":
    """Return Fabric's strategy for this many processes on this kind of device."""
    from lightning_fabric.strategies.ddp import DDPStrategy

    if count == 1:
        return "auto"
    # buffers are averaged by the learner after each step, not broadcast before each forward pass
    options: dict[str, Any] = {"timeout": timeout, _buffer_option(): False}
    return DDPStrategy(**options)


def _has_own_gpu(devices: int) -> bool:
    """Whether a launcher has started several processes and lets each see its GPU only."""
    return devices > 1 and read_launcher() is not None and torch.cuda.device_count() == 1


def _make_own_gpu() -> "Accelerator":
    """Return Fabric's accelerator with device 0 in every process, as `--gpus-per-task=1` needs."""
    from lightning_fabric.accelerators.cuda import CUDAAccelerator

    class OwnGpu(CUDAAccelerator):
        """The only visible GPU; Fabric would look for the one with the local rank as its index."""

        @staticmethod
        def parse_devices(devices: object) -> list[int]:
            return [0] * int(str(devices))

    return OwnGpu()


def _make_precision(precision: str, kind: str) -> "Precision":
    """Return Fabric's plugin for a precision, on this kind of device."""
    from lightning_fabric.plugins.precision.amp import MixedPrecision
    from lightning_fabric.plugins.precision.precision import Precision

    if precision == "32":
        return Precision()

    class Autocast(MixedPrecision):
        """Autocast that leaves the inputs of a model as they are.

        Fabric rounds them to half precision. Preprocessing layers would then see other images
        than those of the attack, outside the ε-ball.
        """

        def convert_input(self, data: Any) -> Any:  # noqa: ANN401 - any structure of tensors
            return data

    if kind == "auto":
        kind = next((name for name in ("cuda", "mps") if _has(name)), "cpu")
    return Autocast(PRECISIONS[precision], device=kind)


def _parse_device(device: str) -> tuple[str, int | None]:
    """Split `cuda:1` into kind and number; raise for devices that this machine does not have."""
    kind, _, text = device.partition(":")
    is_numbered = kind == "cuda" and re.fullmatch("[0-9]{1,9}", text)
    if kind not in DEVICES or (text and not is_numbered):
        raise BadInput(
            f"unknown device {device!r}", hint="`device` is auto, cpu, cuda, cuda:N or mps"
        )
    # limited to 9 digits above: Python refuses to convert thousands of digits
    number = int(text) if text else None
    if not _has(kind) or (number is not None and number >= torch.cuda.device_count()):
        raise BadInput(
            f"device {device!r} is not available",
            hint="`wmr doctor` lists the devices of this machine",
        )
    return kind, number


def _count_devices_and_nodes(hardware: Hardware) -> tuple[int, int]:
    """Return devices per node and nodes, as requested or as torchrun or Slurm has started them."""
    launcher = read_launcher()
    started_devices, started_nodes = launcher or (None, None)
    devices = _check_started("devices", hardware.devices, started_devices)
    nodes = _check_started("nodes", hardware.nodes, started_nodes)
    kind, number = _parse_device(hardware.device)
    if devices > 1 and number is not None:
        raise BadInput(
            f"{hardware.device} is one device", hint=f"use `device={kind}` and `devices={devices}`"
        )
    # processes on a CPU share its cores, so their number has no limit
    present = torch.cuda.device_count() if _has("cuda") else 1
    if devices > present and has_accelerator(kind) and not _has_own_gpu(devices):
        gpus = "there is 1 GPU" if present == 1 else f"there are {present} GPUs"
        raise BadInput(
            f"{gpus}, not {devices}",
            hint="`wmr doctor` lists the devices; `device=cpu` allows several processes",
        )
    # without a launcher, the user may start the command on every machine
    has_rendezvous = {"MASTER_ADDR", "NODE_RANK"} <= os.environ.keys()
    if nodes > 1 and launcher is None and not has_rendezvous:
        raise BadInput(
            f"no launcher has started processes on {nodes} machines",
            hint="use torchrun or srun, or set MASTER_ADDR, MASTER_PORT and NODE_RANK"
            " and start the command on every machine",
        )
    return devices, nodes


def _check_started(setting: str, requested: int | None, started: int | None) -> int:
    """Return the requested count; raise if a launcher has started another one."""
    if requested is not None and started is not None and requested != started:
        raise BadInput(
            f"{setting} is {requested}, but {started} were started",
            hint=f"leave out `{setting}`: the launcher sets it",
        )
    return requested or started or 1


def _buffer_option() -> str:
    """Return this torch version's name of the option that broadcasts buffers."""
    from torch.nn.parallel import DistributedDataParallel

    names = inspect.signature(DistributedDataParallel).parameters
    return "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"


def has_accelerator(device: str = "auto") -> bool:
    """Whether this device is faster than the CPU."""
    kind = device.partition(":")[0]
    if kind == "auto":
        return _has("cuda") or _has("mps")
    return kind != "cpu" and _has(kind)


def _has(kind: str) -> bool:
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return available.get(kind, True)


def keep_memory() -> bool:
    """Make glibc keep freed memory for the next pass; return whether it accepted.

    Activations are large and live for one pass. By default glibc returns them to the system
    after every pass and faults them in again, which costs small models 10 to 25 % of their time.
    """
    # musl has no mallopt
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return False
    # large blocks from the heap instead of mmap, and a heap that is never trimmed
    accepts_threshold = any(mallopt(M_MMAP_THRESHOLD, size) for size in MMAP_THRESHOLDS)
    return bool(accepts_threshold and mallopt(M_TRIM_THRESHOLD, -1))
