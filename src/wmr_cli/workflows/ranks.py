"""Several processes at one walk: they wait for each other, and a mistake of one is a mistake of all."""

import atexit
import ctypes
import importlib
import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import BrokenContract, WmrError
from . import devices as machine

if TYPE_CHECKING:
    from lightning_fabric import Fabric


PR_SET_PDEATHSIG = 1


@cache
def launched(device: str, devices: int | None = None, nodes: int | None = None, precision: str = "32") -> "Fabric":
    """Lightning Fabric with its processes started, once per program: each runs the same command from its beginning."""
    importlib.import_module("lightning_fabric")  # sets the level of its logger, which the next line lowers
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # what it has to say is no news to the user
    fabric = machine.fabric(device, precision, devices, nodes)
    fabric.launch()
    if fabric.world_size > 1:
        atexit.register(torch.distributed.destroy_process_group)  # its threads must end before the interpreter does
    if fabric.local_rank and not machine.processes() and sys.platform == "linux":
        # a rank without its first one has nobody to work for
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
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


def largest(fabric: "Fabric", value: int) -> int:
    """The largest of all ranks' numbers, known to each."""
    return value if fabric.world_size == 1 else int(of_all(fabric, torch.tensor(value)).max())


@contextmanager
def together(fabric: "Fabric") -> Iterator[None]:
    """What all ranks do inside. At the end they wait for each other; if one has failed, all fail with its error."""
    if fabric.world_size == 1:
        yield
        return
    mine: Exception | None = None
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever it is, the others wait for this rank
        mine = error
    told = mine
    if mine is not None and not isinstance(mine, WmrError):
        told = BrokenContract(f"process {fabric.global_rank} failed: {type(mine).__name__}: {mine}", hint="--resume goes on")
    problems: list[Exception | None] = [None] * fabric.world_size
    torch.distributed.all_gather_object(problems, told)
    first = next((each for each in problems if each is not None), None)
    if first is not None:
        raise first from mine
