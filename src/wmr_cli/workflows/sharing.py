"""One copy of a data set for all processes of a machine: the first of them reads it, the others map what it has read."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ..core.contracts import DataSource, Split
from ..core.splits import MemorySplit, Source
from .ranks import together

if TYPE_CHECKING:
    from lightning_fabric import Fabric

PARTS = ("images", "labels", "index")


def shared(source: DataSource, fabric: "Fabric") -> DataSource:
    """The data set with every split shared."""
    if fabric.world_size == 1:
        return source
    splits = {name: shared_split(lambda name=name: source.splits[name], fabric) for name in source.splits}  # type: ignore[misc]
    more = {name: getattr(source, name, None) for name in ("class_names", "drawn")}
    return Source(source.num_classes, source.input_shape, splits, **more)


def shared_split(made: Callable[[], Split], fabric: "Fabric") -> Split:
    """A split, whose images lie in memory once where it holds them there; one that reads files is each process's own."""
    if fabric.world_size == 1:
        return made()
    # a file that is mapped stays where it is when its name goes; on systems where it cannot, the name stays
    with tempfile.TemporaryDirectory(prefix="wmr-", ignore_cleanup_errors=True) as folder:
        split: Split | None = None
        with together(fabric):
            if fabric.local_rank == 0:
                split = made()
                if type(split) is MemorySplit:
                    _write(split, _inside(folder))
        folders: list[tuple[int, str]] = [(0, "")] * fabric.world_size
        torch.distributed.all_gather_object(folders, (fabric.node_rank, folder))
        file = _inside(next(folder for node, folder in folders if node == fabric.node_rank))
        with together(fabric):
            if file.exists():
                split = MemorySplit(**load_file(file))
    return made() if split is None else split


def _write(split: MemorySplit, file: Path) -> None:
    """As a file that can be mapped; where there is no room for it there is none, and everybody reads for himself."""
    try:
        save_file({name: getattr(split, name).contiguous() for name in PARTS}, file)
    except (OSError, SafetensorError):
        file.unlink(missing_ok=True)


def _inside(folder: str) -> Path:
    return Path(folder) / "split.safetensors"
