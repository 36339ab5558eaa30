"""Extra images: a second dataset that is part of every batch, with its own or predicted labels.

The positions of a batch are a pure function of (seed, epoch, step), as those without extra images.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from ..config import TrainConfig
from ..core.contexts import evaluating, exact_float32, prefer_determinism
from ..core.data.splits import JoinedSplit, read_ahead
from ..core.protocols import DataSource, HasIndex, Preparable, Split
from ..core.rng import derive_seed
from ..core.run_attack import check_logits, predictions
from ..errors import BadInput
from ..registry import Registry
from ..runtime import components, datasets
from ..runtime.fabric import Runtime
from ..spec import Spec
from ..storage import checkpoints
from ..storage.checkpoints import ExtraData
from .compatibility import divide_batch

LABELLING_BATCH = 256
"""Images that are labelled at once. It is fixed: rounding may depend on the size of a batch."""
READ_BATCH = 1024
"""Images that are read at once to find the indices of a split."""


@dataclass(frozen=True, eq=False)
class ExtraImages:
    """The images of a second dataset, with the labels and indices that training uses."""

    split: Split
    labels: Tensor
    offset: int
    """The index of the first extra image: larger than any index of the main dataset."""
    data: ExtraData
    """What checkpoints store about them."""

    def join(self, main: Split) -> JoinedSplit:
        """Return the split of all images, the extra ones after those of the training split."""
        return JoinedSplit(main, self.split, self.labels, self.offset)

    def describe(self, config: TrainConfig) -> str:
        """Return a line about these images for the user."""
        main, extra = divide_batch(config)
        labels = "" if self.data.labels is None else ", with predicted labels"
        return (
            f"{len(self.split):,} extra images of {self.data.dataset}{labels}:"
            f" {extra} of them and {main} training images per batch;"
            " training statistics cover both"
        )


def load_extra(
    config: TrainConfig,
    registry: Registry,
    data_dir: Path,
    runtime: Runtime,
    main: DataSource,
    threads: int | None,
) -> ExtraImages | None:
    """Load and check the extra images of a run, and predict their labels if so configured."""
    if config.extra is None:
        if config.extra_labels is not None:
            raise BadInput(
                "`extra_labels` needs extra images",
                hint="set `extra` to a dataset, or leave out `extra_labels`",
            )
        return None
    _, needed = divide_batch(config)
    check_other_images(config)
    source = datasets.build_dataset(
        registry, config.extra, data_dir, config.split_seed, threads=threads
    )
    check_matches(source, main, config)
    # files without splits have all images in `all`; a part of the main dataset stays that part
    name = "all" if "all" in source.splits and config.extra != config.dataset else "train"
    split = datasets.share_split(
        lambda: datasets.get_split(source, name), runtime.ranks, prepares=True
    )
    if isinstance(split, Preparable):
        split.prepare()
    split = datasets.share_hash(split, runtime.ranks)
    if len(split) < needed:
        raise BadInput(
            f"`extra` has {len(split)} images, and a batch needs {needed} of them",
            hint="set a smaller `batch_size` or `extra_fraction`",
        )
    labels = split.labels
    labelled_by: str | None = None
    if config.extra_labels is not None:
        model, labelled_by = load_labelling_model(config.extra_labels, registry, main)
        labels = predict_labels(model, split, runtime, main.num_classes)
    offset = find_free_index(main)
    digest = hashlib.sha256(f"{split.sha256} {offset}".encode() + labels.numpy().tobytes())
    data = ExtraData(
        dataset=config.extra,
        fraction=config.extra_fraction,
        sha256=digest.hexdigest(),
        labels=labelled_by,
    )
    return ExtraImages(split, labels, offset, data)


def check_other_images(config: TrainConfig) -> None:
    """Refuse another division of the main dataset: it could contain its validation images."""
    assert config.extra is not None
    main = Spec.parse(config.dataset)
    extra = Spec.parse(config.extra)
    places = [(each.name, each.params.get("path", each.value)) for each in (main, extra)]
    if places[0] == places[1] and main != extra:
        raise BadInput(
            f"`extra={config.extra}` is another division of the images of `dataset`,"
            " so it may contain validation and test images",
            hint=f"set `extra={config.dataset}` for its training images, or name other images",
        )


def check_matches(extra: DataSource, main: DataSource, config: TrainConfig) -> None:
    """Raise if the extra images have another shape or, with their own labels, other classes."""
    if tuple(extra.input_shape) != tuple(main.input_shape):
        found = "x".join(map(str, extra.input_shape))
        wanted = "x".join(map(str, main.input_shape))
        raise BadInput(
            f"images of `extra` are {found}, those of `dataset` are {wanted}",
            hint="convert them to this shape; a folder of images has size and channels for that",
        )
    # predicted labels replace the dataset's own, which may be meaningless
    if config.extra_labels is not None:
        return
    if extra.num_classes != main.num_classes:
        raise BadInput(
            f"`extra` has {extra.num_classes} classes, `dataset` has {main.num_classes}",
            hint="give it the same classes, or set `extra_labels` to a checkpoint",
        )
    if extra.class_names and main.class_names and extra.class_names != main.class_names:
        pairs = zip(extra.class_names, main.class_names, strict=True)
        other, own = next((other, own) for other, own in pairs if other != own)
        raise BadInput(
            f"`extra` has the class {other!r} where `dataset` has {own!r}",
            hint="name and order the classes as in `dataset`, or set `extra_labels`",
        )


def load_labelling_model(path: str, registry: Registry, main: DataSource) -> tuple[nn.Module, str]:
    """Return the model that labels the extra images, in eval mode, and its content hash."""
    checkpoint = checkpoints.load(Path(path))
    expected = (main.num_classes, tuple(main.input_shape))
    if (checkpoint.num_classes, tuple(checkpoint.input_shape)) != expected:
        raise BadInput(
            f"{checkpoint.path} has {checkpoint.num_classes} classes and images of shape"
            f" {checkpoint.input_shape}, the dataset has {main.num_classes} and {expected[1]}",
            hint="set `extra_labels` to a checkpoint of a model for this dataset",
        )
    names = main.class_names
    if checkpoint.class_names and names and checkpoint.class_names != names:
        raise BadInput(
            f"{checkpoint.path} was trained for classes of other names or in another order",
            hint="set `extra_labels` to a checkpoint of a model for this dataset",
        )
    return components.restore_model(registry, checkpoint), checkpoint.sha256


def predict_labels(model: nn.Module, split: Split, runtime: Runtime, num_classes: int) -> Tensor:
    """Return the predicted class of each clean image (N,), in float32 without TF32."""
    ranks = runtime.ranks
    model = model.to(runtime.device)
    # chunks do not depend on the number of ranks, so neither do the labels
    chunks = torch.arange(len(split)).split(LABELLING_BATCH)
    own = chunks[ranks.index :: ranks.count]
    found: list[Tensor] = []
    with torch.no_grad(), exact_float32(), prefer_determinism(set()), evaluating(model):
        for batch in read_ahead(split, own):
            logits = model(batch.to(runtime.device).images)
            check_logits(logits, batch.index, num_classes)
            found.append(predictions(logits).cpu())
    labels = torch.empty(len(split), dtype=torch.int64)
    for rank, parts in enumerate(ranks.gather_objects(found)):
        for positions, part in zip(chunks[rank :: ranks.count], parts, strict=True):
            labels[positions] = part
    return labels


def find_free_index(source: DataSource) -> int:
    """Return the first index after those of all splits of a dataset."""
    largest = -1
    for split in source.splits.values():
        if isinstance(split, HasIndex):
            parts = [split.index]
        else:
            chunks = torch.arange(len(split)).split(READ_BATCH)
            parts = [split.batch(positions).index for positions in chunks]
        largest = max(largest, *(int(part.max()) for part in parts))
    return largest + 1


def add_extra(
    batches: tuple[Tensor, ...], extra: ExtraImages, config: TrainConfig, main_size: int, epoch: int
) -> tuple[Tensor, ...]:
    """Add extra images to the batches of an epoch, as positions of the joined split.

    Every pass over the extra images has its own order. A pass ends when its rest does not fill a
    batch, so that no batch has an image twice.
    """
    main, largest = divide_batch(config)
    per_pass = len(extra.split) // largest
    mixed: list[Tensor] = []
    order = torch.empty(0)
    current = -1
    for number, positions in enumerate(batches):
        # over the whole run: epochs continue the pass of the epoch before
        pass_number, slot = divmod(epoch * len(batches) + number, per_pass)
        if pass_number != current:
            current = pass_number
            seed = derive_seed("extra order", config.seed, current)
            order = torch.randperm(len(extra.split), generator=torch.Generator().manual_seed(seed))
        # a smaller part of the training split gets fewer extra images, in the same proportion
        count = max(1, (2 * len(positions) * largest + main) // (2 * main))
        chosen = order[slot * largest : slot * largest + count]
        mixed.append(spread(positions, main_size + chosen))
    return tuple(mixed)


def spread(main: Tensor, extra: Tensor) -> Tensor:
    """Merge two vectors so that any contiguous part has its fraction of both, up to one element."""
    total = len(main) + len(extra)
    counts = torch.arange(total + 1) * len(extra) // total
    is_extra = counts.diff() > 0
    merged = main.new_empty(total)
    merged[is_extra] = extra
    merged[~is_extra] = main
    return merged
