"""Weights from elsewhere as a checkpoint: fitted to the network that the user names, tried on a few images, saved or used."""

import re
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import torch
from torch import Tensor, nn

from ..config import EvaluateConfig, TrainConfig, resolve
from ..core.nn.preprocessing import Normalized, unwrap_preprocessing
from ..core.protocols import DataSource
from ..core.run_attack import check_batch, check_logits
from ..errors import BadInput
from ..events import Event, ImportDone, Message
from ..registry import Registry
from ..runtime import components
from ..spec import Spec
from ..storage import checkpoints
from ..storage.atomic import check_writable, resolve_output
from ..storage.checkpoints import Checkpoint
from ..storage.state_dicts import drop_normalization, match_weights
from ..storage.torch_files import ExternalWeights, read_weights

TRIED = 8
"""How many images a network must classify before its weights are believed to fit."""

Found = Generator[Event, None, tuple[Checkpoint, DataSource | None]]
"""Tells what the user should know, then gives the checkpoint, with its data where they had to be loaded for it."""


def import_weights(
    weights: Path,
    model: str,
    dataset: str | None,
    registry: Registry,
    *,
    data_dir: Path,
    match: str = "name",
    eps: float | None = None,
    out: Path | None = None,
    overwrite: bool = False,
) -> Iterator[Event]:
    """Save foreign weights as a checkpoint that knows its network, its data set and its threat model."""
    target = _target(weights, out, overwrite)
    _refuse_ours(weights)
    config = _config(registry, model, dataset, eps)
    found = read_weights(weights)
    check_writable(target)
    source = components.build_dataset(registry, config.dataset, data_dir, config.split_seed)
    checkpoint = yield from _from_weights(found, config, registry, source, match)
    checkpoints.save(target, checkpoint.tensors, config, source, alpha_train=None, epoch=0)
    yield ImportDone(target, checkpoint.dataset, checkpoint.norm, checkpoint.eps)


def open_checkpoint(
    path: Path | None, config: EvaluateConfig, registry: Registry, data_dir: Path
) -> Found:
    """What to evaluate: a checkpoint; with `config.model` foreign weights, or without a file that network as it is built.

    For a checkpoint of wmr whose model is a local class, `config.model` says where that class is found.
    """
    if config.model is None:
        if path is None:
            raise BadInput(
                "no CHECKPOINT is named",
                hint="name a checkpoint or run folder; or a network, with --model and --dataset",
            )
        return checkpoints.load(path), None
    if path is not None and checkpoints.is_checkpoint(path):
        return _with_local_class(
            checkpoints.load(path), registry.canonical_spec("model", config.model)
        ), None
    resolved = _config(registry, config.model, config.dataset)
    found = None if path is None else read_weights(path)
    source = components.build_dataset(registry, resolved.dataset, data_dir, resolved.split_seed)
    if found is None:
        return (yield from _as_built(resolved, registry, source, data_dir, config.seed)), source
    return (yield from _from_weights(found, resolved, registry, source, "name")), source


def _refuse_ours(weights: Path) -> None:
    if checkpoints.is_checkpoint(weights):
        problem = f"{weights} is a checkpoint of wmr already: it names its model and its dataset"
        raise BadInput(problem, hint=f"leave out --model: wmr evaluate {weights}")


def _with_local_class(checkpoint: Checkpoint, model: str) -> Checkpoint:
    """The checkpoint with its local class replaced by the one that the user names, which may be in another folder."""
    own, named = Spec.parse(checkpoint.model), Spec.parse(model)
    if not (own.is_local and named.is_local):
        _refuse_ours(checkpoint.path)
    if own.short != named.short:
        problem = f"the model of {checkpoint.path} is a class {own.short!r}, not {named.short!r}"
        raise BadInput(problem, hint=f"name the file that defines {own.short!r}")
    merged = Spec(named.name, named.value or own.value, {**own.params, **named.params})
    return replace(checkpoint, model=str(merged))


def _target(weights: Path, out: Path | None, overwrite: bool) -> Path:
    """Where the checkpoint goes: never over the weights it is made from, nor unasked over anything else."""
    if out is not None and out.suffix != ".safetensors":
        raise BadInput(
            f"--out: {out} does not end in .safetensors", hint="a checkpoint is a safetensors file"
        )
    target = resolve_output(out or Path(f"{weights.stem}.safetensors"))
    if target.exists() and weights.exists() and target.samefile(weights):
        if out is not None:
            raise BadInput(f"--out: {out} is the file to import", hint="choose another name")
        target = Path(f"{weights.stem}.wmr.safetensors")
    if target.exists() and not overwrite:
        raise BadInput(
            f"{target} is there already", hint="add --overwrite, or choose another name with --out"
        )
    return target


def _config(
    registry: Registry, model: str, dataset: str | None, eps: float | None = None
) -> TrainConfig:
    """The settings of the data set's preset, for a network whose training nobody here has seen."""
    if dataset is None:
        raise BadInput(
            "weights do not know their data set",
            hint="say --dataset: the checkpoint must know what it classifies; `wmr list datasets`",
        )
    dataset, model = (
        registry.canonical_spec("dataset", dataset),
        registry.canonical_spec("model", model),
    )
    resolved = resolve({"dataset": dataset, "model": model, "eps": eps})
    return msgspec.structs.replace(
        resolved,
        defense=checkpoints.IMPORTED_DEFENSE,
        kernel=checkpoints.UNWEIGHTED_KERNEL,
        alpha=None,
    )


def _from_weights(
    found: ExternalWeights, config: TrainConfig, registry: Registry, source: DataSource, match: str
) -> Generator[Event, None, Checkpoint]:
    """Foreign weights under the names of the network they are for."""
    network = _network(registry, components.spec_without_weights(registry, config.model), source)
    inner, prefix = unwrap_preprocessing(network)
    if isinstance(network, Normalized):
        found = drop_normalization(found, {"mean": network.mean, "std": network.std})
    fit = match_weights(found, inner.state_dict(), match)
    checkpoint = checkpoints.describe_unsaved(
        found.path, {prefix + name: tensor for name, tensor in fit.tensors.items()}, config, source
    )
    _try(registry, checkpoint, source)
    facts = [f"{fit.matched} tensors, {_parameters(network):,} parameters, by {match}"]
    if fit.prefix:
        facts.append(f"prefix {fit.prefix!r} dropped")
    if found.wrappers:
        facts.append(f"from {'.'.join(found.wrappers)!r}")
    yield Message(f"{found.path}: {'; '.join(facts)}")
    if found.ignored:
        names = ", ".join(map(repr, found.ignored))
        yield Message(
            f"{found.path} holds other weights too, which were passed over: {names}", warns=True
        )
    return checkpoint


def _as_built(
    config: TrainConfig, registry: Registry, source: DataSource, data_dir: Path, seed: int
) -> Generator[Event, None, Checkpoint]:
    """The network with the weights it is built with; what differs between two builds is random."""
    state, other = (
        _built(config.model, registry, source, data_dir, start) for start in (seed, seed + 1)
    )
    random = [name for name in state if not torch.equal(state[name], other[name])]
    if random:
        problem = (
            f"{len(random)} of the {len(state)} tensors of {config.model}, {random[0]} for one"
        )
        yield Message(
            f"its weights are random: {problem}, differ from one build to the next", warns=True
        )
    checkpoint = checkpoints.describe_unsaved(Path(_short(config.model)), state, config, source)
    _try(registry, checkpoint, source)
    return checkpoint


def _built(
    model: str, registry: Registry, source: DataSource, data_dir: Path, seed: int
) -> Mapping[str, Tensor]:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        state: dict[str, Tensor] = _network(registry, model, source, data_dir).state_dict()
    return state


def _network(
    registry: Registry, model: str, source: DataSource, data_dir: Path | None = None
) -> nn.Module:
    """The network for these data, as it is built."""
    network = components.build_model(
        registry, model, source.num_classes, source.input_shape, data_dir
    )
    components.check_model_fits(network, model, source.num_classes, source.input_shape)
    return network


def _try(registry: Registry, checkpoint: Checkpoint, source: DataSource) -> None:
    """A few real images through the network: it must give one finite logit per class."""
    network = components.restore_model(registry, checkpoint)
    split = source.splits["test"] if "test" in source.splits else next(iter(source.splits.values()))
    batch = split.batch(torch.arange(min(TRIED, len(split))))
    check_batch(batch, source.num_classes)
    with torch.no_grad(), components.exact_float32():
        check_logits(network(batch.images), batch.index, source.num_classes)


def _parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def _short(model: str) -> str:
    """The model's name as the name of a file: `resnet18_a1_in1k` for `timm:resnet18.a1_in1k,pretrained=true`."""
    spec = Spec.parse(model)
    return re.sub(r"[^\w+-]+", "_", spec.value or spec.short)
