"""Several processes at one walk: they wait for each other, and a mistake of one is a mistake of all."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

import torch

from ..errors import WmrError
from . import parts

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@cache
def launched(device: str, devices: int) -> "Fabric":
    """Lightning Fabric with its processes started, once per program: each runs the same command from its beginning."""
    fabric = parts.fabric(device, devices=devices)
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # what it has to say is no news to the user
    fabric.launch()
    return fabric


@contextmanager
def together(fabric: "Fabric") -> Iterator[None]:
    """What all ranks do inside. At the end they wait for each other; if one has failed, all fail with its error."""
    problem: WmrError | None = None
    try:
        yield
    except WmrError as error:
        problem = error
    problems: list[WmrError | None] = [problem]
    if fabric.world_size > 1:
        problems = [None] * fabric.world_size
        torch.distributed.all_gather_object(problems, problem)
    first = next((each for each in problems if each is not None), None)
    if first is not None:
        raise first
