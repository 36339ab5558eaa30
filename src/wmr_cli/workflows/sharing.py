"""One copy of a data set for all processes of a machine: the others map into their memory what the first has read."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
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
    splits = {name: shared_split(partial(source.splits.__getitem__, name), fabric) for name in source.splits}
    more = {name: getattr(source, name, None) for name in ("class_names", "drawn")}
    return Source(source.num_classes, source.input_shape, splits, **more)


def shared_split(made: Callable[[], Split], fabric: "Fabric") -> Split:
    """A split, whose pixels lie in memory once where it holds all of them there; any other is each process's own."""
    if fabric.world_size == 1:
        return made()
    split: Split | None = None
    with ExitStack() as held:
        file = ""
        with together(fabric):
            if fabric.local_rank == 0:
                split = made()
                if type(split) is MemorySplit:
                    file = held.enter_context(_written(split))
        files: list[tuple[int, str]] = [(0, "")] * fabric.world_size
        torch.distributed.all_gather_object(files, (fabric.node_rank, file))
        ours = next((file for node, file in files if node == fabric.node_rank and file), None)
        with together(fabric):
            if ours is not None:
                split = MemorySplit(**load_file(ours))
            elif split is None:
                split = made()
    assert split is not None
    return split


@contextmanager
def _written(split: MemorySplit) -> Iterator[str]:
    """A file that can be mapped; its name is empty where there is no room for one, and everybody reads for himself."""
    with ExitStack() as held:
        try:
            # a file that is mapped stays where it is when its name goes; on systems where it cannot, the name stays
            folder = held.enter_context(tempfile.TemporaryDirectory(prefix="wmr-", ignore_cleanup_errors=True))
            file = str(Path(folder) / "split.safetensors")
            save_file({name: getattr(split, name).contiguous() for name in PARTS}, file)
        except (OSError, SafetensorError):
            file = ""
        yield file
