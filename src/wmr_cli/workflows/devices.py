"""Where a walk runs: the one place that knows the names of devices and who starts processes. The rest is Lightning Fabric's."""

import ctypes
import inspect
import os
import re
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from ..errors import BadInput

if TYPE_CHECKING:
    from lightning_fabric import Fabric

DEVICES = ("auto", "cpu", "cuda", "mps")
KEEP_MEMORY = "WMR_KEEP_MEMORY"
"""Set to 0 in the environment, memory goes back to the system as soon as it is free."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, LARGEST_BLOCKS = -1, -3, (2**30, 2**25)
"""Two settings of glibc's malloc, and what to ask for as the second: older versions grant no more than the last."""
PRECISIONS = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}


def fabric(
    device: str,
    precision: str = "32",
    devices: int | None = None,
    nodes: int | None = None,
    patience: timedelta = timedelta(hours=1),
) -> "Fabric":
    """Lightning Fabric on so many devices of a kind per node; where torchrun or Slurm starts the processes, on theirs."""
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments.lightning import LightningEnvironment
    from lightning_fabric.strategies.ddp import DDPStrategy

    kind, _, number = device.partition(":")
    if kind not in DEVICES or (number and (kind != "cuda" or not re.fullmatch("[0-9]{1,9}", number))):
        raise BadInput(f"there is no device {device!r}", hint="--device is auto, cpu, cuda, cuda:N or mps")
    if not _has(kind) or (number and int(number) >= torch.cuda.device_count()):
        raise BadInput(f"device {device!r} is not there", hint="`wmr doctor` lists the devices of this machine")
    if precision == "16" and not has_accelerator(kind):
        raise BadInput("precision 16 needs a GPU", hint="train with --precision bf16 or 32")

    if not has_accelerator(kind) and os.environ.get(KEEP_MEMORY) != "0":
        keep_memory()
    started = processes()
    devices, nodes = _agreed("--devices", devices, started and started[0]), _agreed("--nodes", nodes, started and started[1])
    if devices > 1 and number:
        raise BadInput(f"{device} is one device", hint=f"say --device {kind} --devices {devices}")
    present = torch.cuda.device_count() if _has("cuda") else 1
    if devices > present and has_accelerator(kind):
        raise BadInput(
            f"there is 1 GPU, not {devices}" if present == 1 else f"there are {present} GPUs, not {devices}",
            hint="`wmr doctor` lists the devices; --device cpu shares the work among processes",
        )
    if nodes > 1 and started is None and not {"MASTER_ADDR", "NODE_RANK"} <= os.environ.keys():
        raise BadInput(
            f"no launcher has started processes on {nodes} machines",
            hint="use torchrun or srun, or set MASTER_ADDR, MASTER_PORT and NODE_RANK and start the command on every machine",
        )
    # buffers are averaged by the learner, between steps
    options: dict[str, Any] = {"timeout": patience, _buffer_option(): False}
    ranks = DDPStrategy(**options)
    return Fabric(
        accelerator=kind,
        devices=[int(number)] if number else devices,
        num_nodes=nodes,
        strategy=ranks if devices * nodes > 1 else "auto",
        precision=PRECISIONS[precision],  # type: ignore[arg-type]
        # Without a cluster environment Fabric looks for one, and warns wherever `srun` is installed but not used.
        plugins=[] if started else [LightningEnvironment()],
    )


def _buffer_option() -> str:
    """How this torch calls the option to synchronise buffers before every forward pass."""
    from torch.nn.parallel import DistributedDataParallel

    names = inspect.signature(DistributedDataParallel).parameters
    return "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"


def processes() -> tuple[int, int] | None:
    """How many processes per node, on how many nodes, torchrun or Slurm has started; None where that is left to us."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        local = _from_environment("LOCAL_WORLD_SIZE")
        return local, _from_environment("WORLD_SIZE") // local
    is_interactive = os.environ.get("SLURM_JOB_NAME") in ("bash", "interactive")
    # without srun, in a batch script, there is no step and one process
    is_step = "SLURM_PROCID" in os.environ and "SLURM_STEP_ID" in os.environ
    if is_step and not is_interactive and _from_environment("SLURM_NTASKS", default="1") > 1:
        if "SLURM_NTASKS_PER_NODE" not in os.environ:
            raise BadInput("Slurm does not say how many processes a node has", hint="use --ntasks-per-node instead of --ntasks")
        return _from_environment("SLURM_NTASKS_PER_NODE"), _from_environment("SLURM_NNODES", default="1")
    return None


def _from_environment(name: str, default: str = "") -> int:
    """Return a count that torchrun or Slurm has set."""
    text = os.environ.get(name, default)
    if not re.fullmatch("0*[1-9][0-9]{0,8}", text):
        raise BadInput(f"{name} is {text!r} in the environment, not a count", hint="start with torchrun or srun, or unset it")
    return int(text)


def has_accelerator(device: str = "auto") -> bool:
    """Whether this device is anything faster than the processor itself."""
    kind = device.partition(":")[0]
    return _has("cuda") or _has("mps") if kind == "auto" else kind != "cpu" and _has(kind)


LAYOUTS = {"channels-last": torch.channels_last, "contiguous": torch.contiguous_format}


def memory_format(layout: str, device: torch.device, precision: str = "32") -> torch.memory_format:
    """The layout asked for; `auto` goes pixel by pixel where that is faster: on a processor, and in half precision."""
    is_faster = device.type == "cpu" or precision != "32"
    return LAYOUTS.get(layout, torch.channels_last if is_faster else torch.contiguous_format)


def keep_memory() -> bool:
    """Keep freed memory for the next pass; whether the system's malloc can be told so.

    Activations are large and live for one pass. As it is, glibc hands them back after every pass and takes them anew, page by
    page, which is a tenth to a quarter of the time of a small network.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return False
    return bool(any(mallopt(M_MMAP_THRESHOLD, size) for size in LARGEST_BLOCKS) and mallopt(M_TRIM_THRESHOLD, -1))


def settle(device: torch.device) -> None:
    """Wait until a device has done all that it was given; a processor has when it returns."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()


def _has(kind: str) -> bool:
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return available.get(kind, True)


def _agreed(flag: str, asked: int | None, started: int | None) -> int:
    """What the user asks for, where that is what has been started."""
    if asked is not None and started is not None and asked != started:
        raise BadInput(f"{flag} {asked}, but {started} were started", hint=f"leave out {flag}: what starts the processes says it")
    return asked or started or 1
