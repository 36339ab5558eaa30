"""Several processes at one walk: they wait for each other, and a mistake of one is a mistake of all."""

import ctypes
import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

import torch

from ..errors import BrokenContract, WmrError
from . import parts

if TYPE_CHECKING:
    from lightning_fabric import Fabric


PR_SET_PDEATHSIG = 1


@cache
def launched(device: str, devices: int) -> "Fabric":
    """Lightning Fabric with its processes started, once per program: each runs the same command from its beginning."""
    fabric = parts.fabric(device, devices=devices)
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # what it has to say is no news to the user
    fabric.launch()
    if fabric.global_rank and sys.platform == "linux":  # a rank without its first one has nobody to work for
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    return fabric


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
