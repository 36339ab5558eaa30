"""Fine-tuning: start from given weights, find the head of a model, and freeze layers."""

import contextlib
import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from torch import Tensor, nn

from ..config import TrainConfig
from ..core.contexts import evaluating, model_device
from ..core.nn.hooks import find_output_layers
from ..core.nn.preprocessing import Normalized, unwrap_preprocessing
from ..core.protocols import DataSource
from ..errors import BadFile, BadInput, UnknownName, WmrError, did_you_mean
from ..reading import is_folder, open_regular
from ..registry import Registry
from ..runtime import components
from ..spec import Spec, read_path
from ..storage import checkpoints
from ..storage.checkpoints import Checkpoint
from ..storage.state_dicts import BATCH_COUNTER, drop_normalization, fit_weights
from ..storage.torch_files import ExternalWeights, read_weights

BACKBONE = "backbone"
"""The word in `freeze` for all layers except the head."""
SHOWN_NAMES = 4
"""Names of tensors that a message lists."""


@dataclass(frozen=True)
class InitialWeights:
    """What a run has taken over from the file that `init` names."""

    path: Path
    sha256: str
    """Content hash of a checkpoint of wmr, as in records; hash of the bytes of any other file."""
    matched: int
    new: tuple[str, ...]
    """Tensors with random initial values."""
    unused: tuple[str, ...]
    """Tensors of the file that the model does not have."""
    ignored: tuple[str, ...]
    """Other entries of the file that hold tensors."""
    head: frozenset[str]

    def describe(self) -> str:
        """Return what was taken over, and which tensors are new."""
        count = self.matched + len(self.new)
        text = f"{self.path}: {self.matched} of {count} tensors of the model"
        return f"{text}; new: {_join_first(self.new)}" if self.new else text

    def list_warnings(self) -> Iterator[str]:
        """Yield which layers before the head have random weights, and which were left out."""
        if random := [name for name in self.new if name not in self.head]:
            yield f"weights before the head are random: {_join_first(random)}"
            if self.unused:
                yield f"tensors of {self.path} that are not used: {_join_first(self.unused)}"
        if self.ignored:
            names = _join_first(self.ignored)
            yield f"{self.path} holds other weights, which were ignored: {names}"


def check_settings(config: TrainConfig) -> None:
    """Raise for settings of fine-tuning that contradict each other."""
    if config.init is None and config.init_match != TrainConfig().init_match:
        raise BadInput("`init_match` has no meaning without `init`", hint="set `init` as well")
    if config.init is not None and components.wants_pretrained(config.model):
        raise BadInput(
            f"`init` and `model={config.model}` both provide the initial weights",
            hint="leave out `init`, or pretrained=true",
        )


def needs_head(config: TrainConfig) -> bool:
    """Return whether a run treats the head of its model differently from other layers."""
    is_scaled = config.backbone_lr_scale != 1
    return config.init is not None or BACKBONE in config.freeze or is_scaled


def find_head(
    model: nn.Module, config: TrainConfig, registry: Registry, source: DataSource
) -> frozenset[str]:
    """Return the tensors of a model's head, by their names in its state dict.

    The head is all that depends on the number of classes: the tensors that have another shape in
    the same model for one class more. A model of a fixed number of classes is run instead: its
    head is the last layer of the forward pass. Empty if that layer does not compute the logits.
    """
    state = model.state_dict()
    other = _build_for_classes(source.num_classes + 1, config, registry, source)
    names = [name for name, own in state.items() if not _has_equal_shape(other, name, own)]
    if names and other:
        return frozenset(names)
    images = torch.zeros(2, *source.input_shape, device=model_device(model))
    with torch.no_grad(), evaluating(model):
        layers = find_output_layers(model, images, source.num_classes)
    return frozenset(
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        if module in layers
        for name in module.state_dict()
    )


def _build_for_classes(
    num_classes: int, config: TrainConfig, registry: Registry, source: DataSource
) -> dict[str, Tensor]:
    """Return the state dict of the model for other classes, or nothing if it cannot be built."""
    spec = components.spec_without_weights(registry, config.model)
    # the generator belongs to the run
    with contextlib.suppress(WmrError), torch.random.fork_rng(devices=()):
        model = components.build_model(registry, spec, num_classes, source.input_shape)
        state: dict[str, Tensor] = model.state_dict()
        return state
    return {}


def _has_equal_shape(tensors: dict[str, Tensor], name: str, own: Tensor) -> bool:
    return name in tensors and tensors[name].shape == own.shape


def load_initial_weights(
    model: nn.Module,
    config: TrainConfig,
    registry: Registry,
    head: frozenset[str],
) -> InitialWeights:
    """Load the weights that `init` names into a model; raise BadFile if they do not fit."""
    assert config.init is not None
    path = read_path(config.init)
    inner, prefix = unwrap_preprocessing(model)
    hint = ""
    if is_folder(path) or checkpoints.is_checkpoint(path):
        checkpoint = checkpoints.load(path)
        path, sha256 = checkpoint.path, checkpoint.sha256
        weights = ExternalWeights(path, checkpoint.tensors, keeps_order=False)
        _check_normalization(model, checkpoint, config, registry)
        if checkpoint.model != config.model:
            hint = f"set `model={checkpoint.model}`, the one of the checkpoint"
    else:
        weights = read_weights(path)
        sha256 = _hash_file(path)
        # weights of other programs are those of the model without our normalising layer
        if isinstance(model, Normalized):
            weights = drop_normalization(weights, {"mean": model.mean, "std": model.std})
    if config.init_sha256 not in (None, sha256):
        raise BadFile(
            f"{path} holds other weights than those of `init_sha256`: its hash is {sha256}",
            hint="restore the file, or leave out `init_sha256`",
        )
    inner_head = {name.removeprefix(prefix) for name in head}
    state = inner.state_dict()
    fitted = fit_weights(weights, state, config.init_match, inner_head, hint)
    inner.load_state_dict({**state, **fitted.tensors})
    return InitialWeights(
        path=path,
        sha256=sha256,
        matched=sum(not name.endswith(BATCH_COUNTER) for name in fitted.tensors),
        new=tuple(prefix + name for name in fitted.new),
        unused=fitted.unused,
        ignored=weights.ignored,
        head=head,
    )


def _hash_file(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_normalization(
    model: nn.Module, checkpoint: Checkpoint, config: TrainConfig, registry: Registry
) -> None:
    """Raise if a checkpoint was trained on images that its own model normalised differently."""
    if checkpoint.model == config.model:
        return
    spec = Spec.parse(checkpoint.model)
    if spec.is_local or spec.name not in registry.names("model"):
        # code that only a file names is not run, so its spec has to suffice
        own = Spec.parse(config.model)
        is_equal = all(spec.params.get(key) == own.params.get(key) for key in ("mean", "std"))
    else:
        with torch.random.fork_rng(devices=()):
            trained = components.build_model(
                registry,
                components.spec_without_weights(registry, checkpoint.model),
                checkpoint.num_classes,
                checkpoint.input_shape,
            )
        pairs = zip(_read_normalization(model), _read_normalization(trained), strict=True)
        # one value stands for all channels
        is_equal = all(torch.allclose(*pair) for pair in pairs)
    if not is_equal:
        raise BadFile(
            f"{checkpoint.path} was trained as {checkpoint.model}, "
            f"which normalises images by another mean and std than {config.model}",
            hint=f"set `model={checkpoint.model}`, or give your model the same mean and std",
        )


def _read_normalization(model: nn.Module) -> tuple[Tensor, Tensor]:
    """Return mean and std of a model's normalising layer, per channel."""
    if isinstance(model, Normalized):
        return model.mean.flatten(), model.std.flatten()
    return torch.zeros(1), torch.ones(1)


@dataclass(frozen=True)
class FrozenLayers:
    """The part of a model that is not trained."""

    parameters: int = 0
    """Number of values."""
    modules: tuple[nn.Module, ...] = ()
    """Modules that keep their statistics, such as batch-norms."""


def freeze_layers(model: nn.Module, config: TrainConfig, head: Collection[str]) -> FrozenLayers:
    """Exclude the layers of `freeze` from training; raise if a name is unknown or nothing is left.

    A frozen parameter gets no gradient. A module with statistics is frozen if all its parameters
    are, or by its name if it has none.
    """
    patterns = config.freeze
    if not patterns and config.backbone_lr_scale == 1:
        return FrozenLayers()
    if not head and (BACKBONE in patterns or config.backbone_lr_scale != 1):
        raise BadInput(
            f"the head of model {config.model!r} was not found: its last layer with weights does "
            "not compute the logits",
            hint="name the layers to freeze: `freeze=PATTERN`; leave out `backbone_lr_scale`",
        )
    selection = _Selection(model, patterns, frozenset(head))
    parameters = dict(model.named_parameters(remove_duplicate=False))
    frozen = {each for name, each in parameters.items() if selection.includes(name)}
    if patterns and not frozen:
        raise BadInput("`freeze` selects no parameters", hint="leave it out, or name other layers")
    for parameter in frozen:
        parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise BadInput("all layers are frozen", hint="name fewer layers in `freeze`")
    if config.backbone_lr_scale != 1 and not any(
        parameter.requires_grad for name, parameter in parameters.items() if name not in head
    ):
        raise BadInput(
            "`backbone_lr_scale` has no effect: all layers except the head are frozen",
            hint="leave out one of `freeze` and `backbone_lr_scale`",
        )
    modules = [
        module
        for path, module in model.named_modules()
        if _has_statistics(module) and _is_frozen(path, module, frozen, selection)
    ]
    return FrozenLayers(sum(parameter.numel() for parameter in frozen), tuple(modules))


def _has_statistics(module: nn.Module) -> bool:
    """Whether a module may have values that a forward pass in train mode changes."""
    return any(buffer.is_floating_point() for buffer in module.buffers(recurse=False))


def _is_frozen(
    path: str, module: nn.Module, frozen: set[nn.Parameter], selection: "_Selection"
) -> bool:
    parameters = list(module.parameters(recurse=False))
    if parameters:
        return frozen.issuperset(parameters)
    names = [name for name, _ in module.named_buffers(recurse=False)]
    return all(selection.includes(f"{path}.{name}" if path else name) for name in names)


class _Selection:
    """The tensors of a model that patterns select, by the name of a tensor or a layer around it."""

    def __init__(self, model: nn.Module, patterns: tuple[str, ...], head: frozenset[str]) -> None:
        _, self._prefix = unwrap_preprocessing(model)
        self._patterns = [pattern for pattern in patterns if pattern != BACKBONE]
        self._head = head if BACKBONE in patterns else None
        names = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
        known = {layer for name in names for layer in self._list_names(name)}
        for pattern in self._patterns:
            if not any(fnmatchcase(name, pattern) for name in known):
                raise UnknownName(
                    f"`freeze`: no layer is called {pattern!r}",
                    hint=did_you_mean(pattern, {BACKBONE, *known}),
                )

    def includes(self, name: str) -> bool:
        """Return whether a parameter or buffer is selected."""
        if self._head is not None and name not in self._head:
            return True
        names = self._list_names(name)
        return any(fnmatchcase(each, pattern) for pattern in self._patterns for each in names)

    def _list_names(self, name: str) -> list[str]:
        """Return the name of a tensor and of the layers around it, as the network has them."""
        parts = name.removeprefix(self._prefix).split(".")
        return [".".join(parts[:length]) for length in range(1, len(parts) + 1)]


def _join_first(names: Collection[str]) -> str:
    shown = ", ".join([*names][:SHOWN_NAMES])
    return f"{shown} and {len(names) - SHOWN_NAMES} others" if len(names) > SHOWN_NAMES else shown
