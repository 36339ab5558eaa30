"""One copy of a data set for all processes of a machine: the others map into their memory what the first has read."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..core.data.image_files import ImageFileSplit
from ..core.data.splits import MemorySplit, Source
from ..core.protocols import DataSource, Preparable, Split
from .distributed import Ranks


def share_dataset(source: DataSource, ranks: Ranks) -> DataSource:
    """The data set with every split shared, and all that will be kept in memory read."""
    if ranks.count == 1:
        return source
    splits = {
        name: share_split(partial(source.splits.__getitem__, name), ranks, prepares=True)
        for name in source.splits
    }
    return Source(
        source.num_classes,
        source.input_shape,
        splits,
        class_names=source.class_names,
        random_split_sha256=source.random_split_sha256,
    )


def share_split(made: Callable[[], Split], ranks: Ranks, *, prepares: bool = False) -> Split:
    """A split, whose pixels lie in memory once where it holds all of them there; any other is each process's own."""
    if ranks.count == 1:
        return made()
    split: Split | None = None
    with ExitStack() as held:
        file = ""
        with ranks.collective():
            if ranks.is_first_of_node:
                split = made()
                if prepares and isinstance(split, Preparable):
                    split.prepare()
                file = held.enter_context(_written(_tensors(split)))
        files = ranks.gather_objects((ranks.node, file))
        ours = next((file for node, file in files if node == ranks.node and file), None)
        with ranks.collective():
            if ours is not None:
                split = _mapped(load_file(ours), made)
            elif split is None:
                split = made()
    assert split is not None
    return split


def _tensors(split: Split) -> dict[str, Tensor]:
    """What processes can share of a split: all that one in memory is, the pixels of pictures that are all decoded, or nothing."""
    if type(split) is MemorySplit:
        return {"images": split.images, "labels": split.labels, "index": split.index}
    kept = split.pixels_in_memory if isinstance(split, ImageFileSplit) else None
    return {} if kept is None else {"kept": kept}


def _mapped(tensors: dict[str, Tensor], made: Callable[[], Split]) -> Split:
    """The split of these tensors."""
    if "kept" not in tensors:
        return MemorySplit(**tensors)
    split = made()
    assert isinstance(split, ImageFileSplit)  # only such splits share decoded images
    return split.with_pixels(tensors["kept"])


@contextmanager
def _written(tensors: dict[str, Tensor]) -> Iterator[str]:
    """A file that can be mapped; its name is empty where there is nothing to share, or no room for it: everybody reads alone."""
    if not tensors:
        yield ""
        return
    with ExitStack() as held:
        try:
            # a file that is mapped stays where it is when its name goes; on systems where it cannot, the name stays
            folder = held.enter_context(
                tempfile.TemporaryDirectory(prefix="wmr-", ignore_cleanup_errors=True)
            )
            file = str(Path(folder) / "split.safetensors")
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file)
        except (OSError, SafetensorError):
            file = ""
        yield file
