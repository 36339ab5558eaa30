"""Several processes at one walk: they wait for each other, and a mistake of one is a mistake of all."""

import atexit
import importlib
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import BrokenContract, WmrError, out_of_memory
from . import devices as machine
from .jobs import hear_of_parents_end

if TYPE_CHECKING:
    from lightning_fabric import Fabric


RESUME = "--resume goes on"
PATIENCE = 20.0
"""So many seconds the first of several processes may take to say what went wrong for all."""
DAYS = timedelta(days=30)
"""In an evaluation one rank may wait for the chunks of another."""


@cache
def launched(
    device: str, devices: int | None = None, nodes: int | None = None, precision: str = "32", patience: timedelta = DAYS
) -> "Fabric":
    """Lightning Fabric with its processes started, once per program: each runs the same command from its beginning.

    A rank waits for another as long as its `patience` lasts.
    """
    importlib.import_module("lightning_fabric")  # sets the level of its logger, which the next line lowers
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # what it has to say is no news to the user
    fabric = machine.fabric(device, precision, devices, nodes, patience)
    if os.environ.get("LOCAL_RANK", "0") != "0" and not machine.processes() and sys.platform == "linux":
        # a rank without its first one has nobody to work for; one that waits for it hears nothing but this signal
        hear_of_parents_end(signal.SIGKILL)
    fabric.launch()
    if fabric.world_size > 1:
        atexit.register(torch.distributed.destroy_process_group)  # its threads must end before the interpreter does
    return fabric


def placed_on(fabric: "Fabric") -> str:
    """`cpu`, or `2 x cuda`."""
    return str(fabric.device) if fabric.world_size == 1 else f"{fabric.world_size} x {fabric.device.type}"


def share(positions: Tensor, fabric: "Fabric") -> Tensor:
    """This rank's part of these positions; the parts of all, one after the other, are the whole."""
    return positions.tensor_split(fabric.world_size)[fabric.global_rank]


def of_all(fabric: "Fabric", values: Tensor) -> Tensor:
    """The values of every rank, (ranks, ...)."""
    if fabric.world_size == 1:
        return values[None]
    mine = values.to(fabric.device)
    parts = [torch.empty_like(mine) for _ in range(fabric.world_size)]
    torch.distributed.all_gather(parts, mine)
    return torch.stack(parts).cpu()


def pooled(fabric: "Fabric", values: Tensor, count: int) -> Tensor:
    """Values (N, ...) of this rank's share of `count` images to those of all images, in the order of the whole."""
    if fabric.world_size == 1:
        return values
    sizes = [len(part) for part in torch.arange(count).tensor_split(fabric.world_size)]
    padded = torch.cat([values, values.new_zeros(max(sizes) - len(values), *values.shape[1:])])
    parts = [torch.empty_like(padded) for _ in sizes]
    torch.distributed.all_gather(parts, padded)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


def largest(fabric: "Fabric", value: int) -> int:
    """The largest of all ranks' numbers, known to each."""
    return value if fabric.world_size == 1 else int(of_all(fabric, torch.tensor(value)).max())


@contextmanager
def together(fabric: "Fabric") -> Iterator[None]:
    """What all ranks do inside. At the end they wait for each other; if one has failed, all fail with its error."""
    with failing_alike(fabric):
        yield
    meet(fabric)


@contextmanager
def failing_alike(fabric: "Fabric") -> Iterator[None]:
    """Who fails inside tells the others, who hear of it the next time that they `meet`."""
    try:
        yield
    except Exception as error:
        if fabric.world_size == 1 or getattr(error, "is_shared", False):
            raise
        told: Exception | None = error if isinstance(error, WmrError) else out_of_memory(error)
        meet(fabric, told or BrokenContract(f"process {fabric.global_rank} failed: {type(error).__name__}: {error}", RESUME))


def meet(fabric: "Fabric", problem: Exception | None = None) -> None:
    """All ranks come here; the problem of one is raised by all, so that nobody waits for a rank that is gone."""
    if largest(fabric, int(problem is not None)):
        problems: list[Exception | None] = [None] * fabric.world_size
        torch.distributed.all_gather_object(problems, problem)
        first = next(each for each in problems if each is not None)
        first.is_shared = True  # type: ignore[attr-defined]
        raise first


def leave_the_others(status: object) -> None:
    """One of several processes ends here, without the interpreter taking itself down; one that is alone goes on.

    Threads of torch's may still hold tensors of ours, and one that lets go of them meanwhile aborts the process.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
        if status:
            _let_the_first_speak()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status if isinstance(status, int) else 0)


def _let_the_first_speak() -> None:
    """A process that the first one started waits for its end: Fabric kills the first as soon as it sees another fail."""
    if os.environ.get("LOCAL_RANK", "0") == "0" or machine.processes() is not None:
        return
    first, latest = os.getppid(), time.monotonic() + PATIENCE
    while os.getppid() == first and time.monotonic() < latest:
        time.sleep(0.05)
