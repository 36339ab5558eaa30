"""Build a dataset, check it, and share one copy of it between the ranks of a node."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..config import TrainConfig
from ..core.data.image_files import ImageFileSplit
from ..core.data.splits import MemorySplit, Source
from ..core.protocols import DataSource, Preparable, Split
from ..core.run_attack import check_batch
from ..core.traits import MIGRATION_PAGE
from ..errors import BadInput, BrokenContract, UnknownName, WmrError, did_you_mean
from ..registry import Registry
from ..spec import Spec
from .distributed import Ranks
from .processes import count_usable_cores

SPLIT_MEMBERS = ("__len__", "batch", "labels", "sha256")


def build_dataset(
    registry: Registry,
    spec: str,
    data_dir: Path,
    split_seed: int = 0,
    *,
    threads: int | None = None,
) -> DataSource:
    """Build a dataset.

    The seed selects its validation set, if the dataset has a random one. Image files are decoded
    by `threads` threads, or by one per core that this process may use.
    """
    parsed = Spec.parse(spec)
    injected: dict[str, object] = {"root": data_dir, "split_seed": split_seed}
    # `workers` in the spec has precedence
    if "workers" not in parsed.params and registry.declares("dataset", parsed.name, "workers"):
        injected["workers"] = threads or count_usable_cores()
    accepted = {
        name: value
        for name, value in injected.items()
        if registry.accepts("dataset", parsed.name, name)
    }
    source: DataSource = registry.create("dataset", parsed, **accepted)
    _check_source(source, parsed.name)
    return source


def _check_source(source: DataSource, name: str) -> None:
    """Raise if what a plugin has built is not a dataset."""
    hint = (
        "a dataset has splits (by name), num_classes, input_shape, class_names and "
        "random_split_sha256, the last two may be None; see docs/hooks.md"
    )
    # `dir`: a property of a plugin is found without running it
    if "drawn" in dir(source):
        raise BrokenContract(
            f"dataset {name!r} has the attribute `drawn` of wmr 0.1",
            hint=f"rename it to `random_split_sha256`; see {MIGRATION_PAGE}",
        )
    try:
        splits: object = source.splits
        num_classes: Any = source.num_classes
        input_shape: Any = source.input_shape
        class_names: object = source.class_names
        _ = source.random_split_sha256
    except WmrError:
        raise
    except Exception as error:  # properties of a plugin may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise BrokenContract(
            f"dataset {name!r} builds a {type(source).__name__} that cannot be used: {reason}",
            hint=hint,
        ) from error
    if not isinstance(splits, Mapping):
        raise BrokenContract(f"splits of dataset {name!r} is a {type(splits).__name__}", hint=hint)
    # NumPy's integers are accepted; True is an integer, but less than 2
    if not isinstance(num_classes, Integral) or num_classes < 2:
        raise BrokenContract(
            f"num_classes of dataset {name!r} is {num_classes!r}",
            hint="it is a whole number, 2 or more",
        )
    is_triple = isinstance(input_shape, tuple | list) and len(input_shape) == 3
    if not is_triple or not all(type(side) is int and side >= 1 for side in input_shape):
        raise BrokenContract(
            f"input_shape of dataset {name!r} is {input_shape!r}",
            hint="it is (channels, height, width), three whole numbers",
        )
    if class_names is None:
        return
    is_text = isinstance(class_names, tuple) and all(isinstance(each, str) for each in class_names)
    if not isinstance(class_names, tuple) or not is_text:
        raise BrokenContract(
            f"class_names of dataset {name!r} is not a tuple of text",
            hint="name the classes in their order",
        )
    if len(class_names) != num_classes:
        raise BrokenContract(
            f"dataset {name!r} names {len(class_names)} classes and has {num_classes}",
            hint="class_names has one name for each of num_classes, or is None",
        )


def get_split(source: DataSource, name: str) -> Split:
    """Return a split by name, after checking its first image."""
    split = _find_split(source, name)
    check_batch(split.batch(torch.arange(1)), source.num_classes)
    return split


def _find_split(source: DataSource, name: str) -> Split:
    """Return a split by name, without reading an image of it."""
    if name not in source.splits:
        hint = did_you_mean(name, source.splits)
        raise UnknownName(f"the dataset has no split {name!r}", hint=hint)
    split = source.splits[name]
    # `dir` first: `hasattr` alone would compute `sha256` from all images
    members = dir(split)
    for member in SPLIT_MEMBERS:
        if member not in members and not hasattr(split, member):
            raise BrokenContract(
                f"the split {name!r} of the dataset is a {type(split).__name__} without {member!r}",
                hint="a split has len(), labels, sha256 and batch(positions); see docs/hooks.md",
            )
    if not len(split):
        raise BadInput(
            f"the split {name!r} of the dataset is empty", hint="add images to this split"
        )
    return split


def check_splits(source: DataSource, config: TrainConfig) -> None:
    """Raise if a split that a run or its evaluation reads is missing or broken."""
    if config.validate_every and "val" not in source.splits:
        raise BadInput(
            "the dataset has no validation set",
            hint="set `validate_every=0`, or choose a dataset with a `val` split",
        )
    for name in ("train", "val", "test"):
        if name not in source.splits:
            continue
        split = _find_split(source, name)
        if isinstance(split, Preparable):
            split.prepare()
        # training must not depend on test images
        if name != "test":
            positions = torch.arange(min(len(split), config.batch_size))
            check_batch(split.batch(positions), source.num_classes)


def share_dataset(source: DataSource, ranks: Ranks) -> DataSource:
    """Return a dataset whose splits are in memory once per node, read and checked."""
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


def share_split(make: Callable[[], Split], ranks: Ranks, *, prepares: bool = False) -> Split:
    """Make a split on the first rank of each node, and map its images into the other ranks.

    A split that does not hold all its images in memory is made by every rank.
    """
    if ranks.count == 1:
        return make()
    split: Split | None = None
    with ExitStack() as stack:
        file = ""
        if ranks.is_first_of_node:
            split = make()
            if prepares and isinstance(split, Preparable):
                split.prepare()
            file = stack.enter_context(_temporary_file(_shareable_tensors(split)))
        files = ranks.gather_objects((ranks.node, file))
        shared = next((file for node, file in files if node == ranks.node and file), None)
        if shared is not None:
            # the first rank too: it then frees the copy that it has read
            split = _map_split(load_file(shared), make)
        elif split is None:
            split = make()
        # the file must exist until all ranks have mapped it
        ranks.barrier()
    assert split is not None
    return split


def share_hash(split: Split, ranks: Ranks) -> Split:
    """Return a split whose hash is known, computed on the first rank of each node.

    Other splits than image files, which are read for it, are returned as they are.
    """
    # not a subclass, which may be copied in another way
    if ranks.count == 1 or type(split) is not ImageFileSplit:
        return split
    found = split.sha256 if ranks.is_first_of_node else ""
    of_node = {node: sha256 for node, sha256 in ranks.gather_objects((ranks.node, found)) if sha256}
    return split.with_sha256(of_node[ranks.node])


def _shareable_tensors(split: Split) -> dict[str, Tensor]:
    """Return the tensors from which other ranks can make a split, or nothing."""
    # not a subclass, which may have more than these tensors
    if type(split) is MemorySplit:
        return {"images": split.images, "labels": split.labels, "index": split.index}
    pixels = split.pixels_in_memory if isinstance(split, ImageFileSplit) else None
    return {} if pixels is None else {"pixels": pixels}


def _map_split(tensors: dict[str, Tensor], make: Callable[[], Split]) -> Split:
    """Return the split of tensors that are mapped from a file."""
    if "pixels" not in tensors:
        return MemorySplit(**tensors)
    split = make()
    assert isinstance(split, ImageFileSplit)  # only such splits share decoded images
    return split.with_pixels(tensors["pixels"])


@contextmanager
def _temporary_file(tensors: dict[str, Tensor]) -> Iterator[str]:
    """Write tensors to a temporary file and return its path.

    Without tensors or without space the path is empty: each rank then reads by itself.
    """
    if not tensors:
        yield ""
        return
    with ExitStack() as stack:
        try:
            # Linux and macOS keep a mapped file until the last process ends, Windows refuses
            # to remove it
            folder = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="wmr-", ignore_cleanup_errors=True)
            )
            file = str(Path(folder) / "split.safetensors")
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file)
        except (OSError, SafetensorError):
            file = ""
        yield file
