"""Turn weights of another program into a checkpoint.

The weights are matched with the model that the user names, tried on a few images, and then saved
(`wmr import`) or evaluated (`wmr evaluate`, `wmr attack`).
"""

import re
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import torch
from torch import Tensor, nn

from ..config import EvaluateConfig, TrainConfig, resolve
from ..core.contexts import exact_float32
from ..core.nn.preprocessing import Normalized, unwrap_preprocessing
from ..core.protocols import DataSource
from ..core.run_attack import check_batch, check_logits
from ..errors import BadInput
from ..events import Event, ImportDone, Message
from ..registry import Registry
from ..runtime import components, datasets
from ..spec import Spec
from ..storage import checkpoints
from ..storage.atomic import check_writable, resolve_output
from ..storage.checkpoints import Checkpoint
from ..storage.state_dicts import drop_normalization, match_weights
from ..storage.torch_files import ExternalWeights, read_weights

NUM_TRIED_IMAGES = 8
"""Images that a model has to classify before its weights count as matched."""


@dataclass(frozen=True, kw_only=True)
class ImportRequest:
    """Arguments of `wmr import`."""

    weights: Path
    model: str
    dataset: str | None
    match: str = "name"
    """How tensors are matched: by "name", or by the order of their "shape"s."""
    eps: float | None = None
    """None takes eps of the dataset's preset."""
    out: Path | None = None
    overwrite: bool = False


def import_weights(request: ImportRequest, registry: Registry, data_dir: Path) -> Iterator[Event]:
    """Save weights of another program as a checkpoint."""
    # cheap checks first: a dataset may be downloaded, and a file of weights may be large
    target = _choose_target(request)
    _refuse_own_checkpoint(request.weights)
    config = _make_config(registry, request.model, request.dataset, request.eps)
    weights = read_weights(request.weights)
    check_writable(target)
    source = datasets.build_dataset(registry, config.dataset, data_dir, config.split_seed)
    checkpoint = yield from _match_with_model(weights, config, registry, source, request.match)
    checkpoints.save(target, checkpoint.tensors, config, source, alpha_train=None, epoch=0)
    yield ImportDone(target, checkpoint.dataset, checkpoint.norm, checkpoint.eps)


def open_checkpoint(
    path: Path | None,
    config: EvaluateConfig,
    registry: Registry,
    data_dir: Path,
    threads: int | None = None,
) -> Generator[Event, None, tuple[Checkpoint, DataSource | None]]:
    """Return the checkpoint to evaluate, and its dataset if that had to be loaded.

    Without `config.model`, the file is a checkpoint of wmr. With it, the file holds weights of
    another program; without a file, the model is evaluated as it is built. For a checkpoint of wmr
    whose model is a local class, `config.model` is where that class is now.
    """
    if config.model is None:
        if path is None:
            raise BadInput(
                "a checkpoint is required",
                hint="name a checkpoint or run folder, or set `model` and `dataset`",
            )
        return checkpoints.load(path), None
    if path is not None and checkpoints.is_checkpoint(path):
        model = registry.canonical_spec("model", config.model)
        return _replace_local_class(checkpoints.load(path), model), None
    train_config = _make_config(registry, config.model, config.dataset)
    # before the dataset, which may have to be downloaded
    weights = None if path is None else read_weights(path)
    source = datasets.build_dataset(
        registry, train_config.dataset, data_dir, train_config.split_seed, threads=threads
    )
    if weights is None:
        checkpoint = yield from _build_with_own_weights(
            train_config, registry, source, data_dir, config.seed
        )
    else:
        checkpoint = yield from _match_with_model(weights, train_config, registry, source, "name")
    return checkpoint, source


def _refuse_own_checkpoint(weights: Path) -> None:
    if checkpoints.is_checkpoint(weights):
        raise BadInput(
            f"{weights} is a checkpoint of wmr already: it names its model and its dataset",
            hint=f"leave out `model`: wmr evaluate {weights}",
        )


def _replace_local_class(checkpoint: Checkpoint, model: str) -> Checkpoint:
    """Return the checkpoint with its local class in the file that the user names."""
    own = Spec.parse(checkpoint.model)
    named = Spec.parse(model)
    if not (own.is_local and named.is_local):
        _refuse_own_checkpoint(checkpoint.path)
    if own.short != named.short:
        raise BadInput(
            f"the model of {checkpoint.path} is a class {own.short!r}, not {named.short!r}",
            hint=f"name the file that defines {own.short!r}",
        )
    # parameters of training are kept unless the user sets others
    merged = Spec(named.name, named.value or own.value, {**own.params, **named.params})
    return replace(checkpoint, model=str(merged))


def _choose_target(request: ImportRequest) -> Path:
    """Return the path of the checkpoint, which is never that of the weights."""
    weights = request.weights
    out = request.out
    if out is not None and out.suffix != ".safetensors":
        raise BadInput(
            f"`out`: {out} does not end in .safetensors", hint="a checkpoint is a safetensors file"
        )
    target = resolve_output(out or Path(f"{weights.stem}.safetensors"))
    # by file, not by path: a link or a relative path may lead to the weights
    if target.exists() and weights.exists() and target.samefile(weights):
        if out is not None:
            raise BadInput(f"`out`: {out} is the file to import", hint="choose another name")
        target = Path(f"{weights.stem}.wmr.safetensors")
    if target.exists() and not request.overwrite:
        raise BadInput(
            f"{target} already exists", hint="set `overwrite=True`, or choose another `out`"
        )
    return target


def _make_config(
    registry: Registry, model: str, dataset: str | None, eps: float | None = None
) -> TrainConfig:
    """Return the preset of the dataset, for a model whose training is not known."""
    if dataset is None:
        raise BadInput(
            "weights do not contain the name of their dataset",
            hint="set `dataset`; `wmr list datasets` lists all names",
        )
    given = {
        "dataset": registry.canonical_spec("dataset", dataset),
        "model": registry.canonical_spec("model", model),
        "eps": eps,
    }
    return msgspec.structs.replace(
        resolve(given),
        defense=checkpoints.IMPORTED_DEFENSE,
        kernel=checkpoints.UNWEIGHTED_KERNEL,
        alpha=None,
    )


def _match_with_model(
    weights: ExternalWeights,
    config: TrainConfig,
    registry: Registry,
    source: DataSource,
    match: str,
) -> Generator[Event, None, Checkpoint]:
    """Return imported weights under the names of their model, tried on a few images."""
    # without pretrained weights, which would be downloaded only to be replaced
    spec = components.spec_without_weights(registry, config.model)
    model = _build_model(registry, spec, source)
    # weights of other programs are those of the model without our normalising layer
    inner, prefix = unwrap_preprocessing(model)
    if isinstance(model, Normalized):
        weights = drop_normalization(weights, {"mean": model.mean, "std": model.std})
    matched = match_weights(weights, inner.state_dict(), match)
    tensors = {prefix + name: tensor for name, tensor in matched.tensors.items()}
    checkpoint = checkpoints.describe_unsaved(weights.path, tensors, config, source)
    # shapes can match although layers do not: NaN and other shapes of logits appear here
    _try_on_images(registry, checkpoint, source)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    facts = [f"{matched.matched} tensors, {parameters:,} parameters, by {match}"]
    if matched.prefix:
        facts.append(f"prefix {matched.prefix!r} removed")
    if weights.wrappers:
        facts.append(f"from {'.'.join(weights.wrappers)!r}")
    yield Message(f"{weights.path}: {'; '.join(facts)}")
    if weights.ignored:
        names = ", ".join(map(repr, weights.ignored))
        yield Message(
            f"{weights.path} holds other weights, which were ignored: {names}", is_warning=True
        )
    return checkpoint


def _build_with_own_weights(
    config: TrainConfig, registry: Registry, source: DataSource, data_dir: Path, seed: int
) -> Generator[Event, None, Checkpoint]:
    """Return a model as it is built, such as one with pretrained weights; warn if it is random."""
    # weights that differ between two seeds are random initialisations
    state = _build_state(config.model, registry, source, data_dir, seed)
    other = _build_state(config.model, registry, source, data_dir, seed + 1)
    random = [name for name in state if not torch.equal(state[name], other[name])]
    if random:
        yield Message(
            f"its weights are random: {len(random)} of the {len(state)} tensors of {config.model}, "
            f"such as {random[0]}, differ from one build to the next",
            is_warning=True,
        )
    checkpoint = checkpoints.describe_unsaved(
        Path(_file_name_of(config.model)), state, config, source
    )
    _try_on_images(registry, checkpoint, source)
    return checkpoint


def _build_state(
    model: str, registry: Registry, source: DataSource, data_dir: Path, seed: int
) -> Mapping[str, Tensor]:
    """Build a model with a seed, without a change of the global random generator."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        state: dict[str, Tensor] = _build_model(registry, model, source, data_dir).state_dict()
    return state


def _build_model(
    registry: Registry, spec: str, source: DataSource, data_dir: Path | None = None
) -> nn.Module:
    """Build a model for the classes and image shape of a dataset."""
    model = components.build_model(registry, spec, source.num_classes, source.input_shape, data_dir)
    components.check_model_fits(model, spec, source.num_classes, source.input_shape)
    return model


def _try_on_images(registry: Registry, checkpoint: Checkpoint, source: DataSource) -> None:
    """Check that the model returns one finite logit per class for a few images."""
    model = components.restore_model(registry, checkpoint)
    # a dataset without a test split is evaluated with `split=all`
    name = "test" if "test" in source.splits else next(iter(source.splits))
    split = source.splits[name]
    batch = split.batch(torch.arange(min(NUM_TRIED_IMAGES, len(split))))
    check_batch(batch, source.num_classes)
    with torch.no_grad(), exact_float32():
        check_logits(model(batch.images), batch.index, source.num_classes)


def _file_name_of(model: str) -> str:
    """Return a spec as a file name: `resnet18_a1_in1k` for `timm:resnet18.a1_in1k`."""
    spec = Spec.parse(model)
    # a model that is read from a file or folder is called like it
    path = spec.params.get("path")
    name = spec.value or (spec.short if path is None else Path(str(path)).stem)
    return re.sub(r"[^\w+-]+", "_", name)
