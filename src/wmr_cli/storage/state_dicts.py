"""Match weights of a file with the state dict of a model, by name or by shape.

An imported model gets all its weights from the file. One that is trained further may have a new
head: `fit_weights`.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest

import torch
from torch import Tensor

from ..errors import BadFile
from .torch_files import ExternalWeights

BATCH_COUNTER = "num_batches_tracked"
"""Suffix of a buffer that evaluation never reads, and that old versions of torch do not save."""
MIN_FITTING_FRACTION = 0.5
"""Fraction of a model's values before the head that `match="partial"` has to find in a file."""
SHOWN_NAMES = 3
"""Names of a group that an error lists."""
FLOAT_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
NORMALIZER_NAME = re.compile(
    r"(?:.*\.)?(?:image_|pixel_|input_|data_|norm_|_)?(?:(?P<mean>mean|mu)|(?P<std>std|sigma))_?"
)
NORMALIZER_TOLERANCE = 1e-3
"""Means and deviations are usually written with three or four digits."""


@dataclass(frozen=True)
class MatchedWeights:
    """Weights under the model's own names."""

    tensors: dict[str, Tensor]
    matched: int
    """Tensors that come from the file."""
    prefix: str = ""
    """Prefix that was removed from the names of the file."""


@dataclass(frozen=True)
class FittedWeights:
    """Weights that fit a model, under its own names, and those that do not."""

    tensors: dict[str, Tensor]
    new: tuple[str, ...]
    """Tensors of the model that keep their initial values."""
    unused: tuple[str, ...]
    """Tensors of the file that the model does not have in this shape."""


@dataclass(frozen=True)
class Mismatch:
    """Names that only one side has, and names whose shapes differ. Empty lists: all match."""

    missing: list[str]
    unexpected: list[str]
    misshaped: list[str]

    @classmethod
    def of(cls, weights: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> "Mismatch":
        """Compare the weights of a file with the state dict of a model."""
        common = [name for name in weights if name in state]
        return cls(
            missing=[name for name in _without_counters(state) if name not in weights],
            unexpected=[name for name in weights if name not in state],
            misshaped=[name for name in common if weights[name].shape != state[name].shape],
        )

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.misshaped)

    def outside(self, head: Collection[str], state: Mapping[str, Tensor]) -> "Mismatch":
        """Return the part that does not concern the head, whose layers may have other tensors."""
        backbone = tuple(name for name in state if name not in head)
        layers = tuple(
            layer
            for layer in {f"{name.rpartition('.')[0]}." for name in head if "." in name}
            if not any(name.startswith(layer) for name in backbone)
        )
        return Mismatch(
            missing=[name for name in self.missing if name not in head],
            unexpected=[name for name in self.unexpected if not name.startswith(layers)],
            misshaped=[name for name in self.misshaped if name not in head],
        )


def match_weights(
    weights: ExternalWeights, state: Mapping[str, Tensor], match: str
) -> MatchedWeights:
    """Return the weights as a state dict of the model; raise BadFile if they do not fit.

    `match` is "name", or "shape": then the n-th tensor of the file becomes the n-th of the model.
    """
    if match == "shape":
        prefix = ""
        by_name = _match_by_shape(weights, state)
    else:
        by_name, prefix = _remove_prefix(weights.tensors, state)
        if mismatch := Mismatch.of(by_name, state):
            raise BadFile(
                f"{weights.path} does not fit the model: {_describe(mismatch, by_name, state)}",
                hint=_suggest(mismatch, by_name, state, weights),
            )
    tensors = {}
    for name, own in state.items():
        if name in by_name:
            tensors[name] = _convert(by_name[name], own, name, weights)
        else:
            # only counters of batches can be missing here
            tensors[name] = own.detach().clone()
    return MatchedWeights(tensors, len(by_name), prefix)


def fit_weights(
    weights: ExternalWeights,
    state: Mapping[str, Tensor],
    match: str,
    head: Collection[str],
    hint: str = "",
) -> FittedWeights:
    """Return the weights that start the training of a model; raise BadFile if they do not fit.

    `match` is "name" or "shape", where only the head may be new, or "partial", where all that fits
    by name is used. The head is used as a whole or not at all. `hint` replaces the usual one.
    """
    if match == "shape":
        by_name = _match_by_shape(weights, state, head)
    else:
        by_name, _ = _remove_prefix(weights.tensors, state)
        mismatch = Mismatch.of(by_name, state).outside(head, state)
        if mismatch and match == "name":
            raise BadFile(
                f"{weights.path} does not fit the model: {_describe(mismatch, by_name, state)}",
                hint=_suggest_match(mismatch, weights, state, head, by_name, hint),
            )
    fitting = {
        name
        for name, tensor in by_name.items()
        if name in state and tensor.shape == state[name].shape
    }
    if not fitting.issuperset(_without_counters({name: state[name] for name in head})):
        # a bias alone can have the right shape by chance
        fitting -= set(head)
    backbone = {name: own for name, own in _without_counters(state).items() if name not in head}
    values = sum(own.numel() for own in backbone.values())
    found = sum(own.numel() for name, own in backbone.items() if name in fitting)
    if not fitting or found < MIN_FITTING_FRACTION * values:
        percent = 100 * found // max(values, 1)
        raise BadFile(
            f"{weights.path} does not fit the model: "
            f"{percent} % of the values before its head are in the file, by name and shape",
            hint=hint or _suggest_model({}),
        )
    return FittedWeights(
        tensors={
            name: _convert(by_name[name], own, name, weights)
            for name, own in state.items()
            if name in fitting
        },
        new=tuple(name for name in _without_counters(state) if name not in fitting),
        unused=tuple(name for name in by_name if name not in fitting),
    )


def drop_normalization(weights: ExternalWeights, spec: Mapping[str, Tensor]) -> ExternalWeights:
    """Return the weights without a mean and std that the model's spec sets as well.

    Raise BadFile if their values differ from those of the spec.
    """
    kept = {}
    for name, tensor in weights.tensors.items():
        kind = _normalizer_kind(name)
        # without a value in the spec, the tensor is unexpected, and the error suggests one
        if kind is None or kind not in spec:
            kept[name] = tensor
        elif not _agree(tensor.double().flatten(), spec[kind].double().flatten()):
            stored = _format_values(tensor)
            raise BadFile(
                f"{name!r} in {weights.path} is {stored}, "
                f"but the spec of the model has {kind}={_format_values(spec[kind])}",
                hint=f"write {kind}={stored}",
            )
    return replace(weights, tensors=kept)


def _normalizer_kind(name: str) -> str | None:
    """Return "mean" or "std" for the name of a buffer of a normalising layer, else None."""
    found = NORMALIZER_NAME.fullmatch(name)
    return found.lastgroup if found else None


def _agree(first: Tensor, second: Tensor) -> bool:
    """Return whether two means or deviations agree; one value stands for all channels."""
    # other numbers of values cannot be broadcast
    if first.numel() != second.numel() and 1 not in (first.numel(), second.numel()):
        return False
    return bool(((first - second).abs() < NORMALIZER_TOLERANCE).all())


def _format_values(tensor: Tensor) -> str:
    """Return values as a spec has them, such as `0.485:0.456:0.406`."""
    return ":".join(f"{value:.4g}" for value in tensor.double().flatten().tolist())


def _remove_prefix(
    tensors: Mapping[str, Tensor], state: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], str]:
    """Return the weights without a prefix that all names share, such as `module.`, and the prefix.

    Of all prefixes the one is removed after which most names are those of the model.
    """
    candidates = [(dict(tensors), "")]
    while True:
        names, prefix = candidates[-1]
        # a name without a dot has no prefix to remove
        words = {name.partition(".")[0] if "." in name else "" for name in names}
        if len(words) != 1 or "" in words:
            break
        shorter = {name.partition(".")[2]: tensor for name, tensor in names.items()}
        candidates.append((shorter, f"{prefix}{words.pop()}."))
    # max returns the first of equals, so that no more is removed than necessary
    return max(candidates, key=lambda candidate: len(candidate[0].keys() & state.keys()))


def _without_counters(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if not name.endswith(BATCH_COUNTER)}


def _match_by_shape(
    weights: ExternalWeights, state: Mapping[str, Tensor], head: Collection[str] = ()
) -> dict[str, Tensor]:
    """Return the weights by the model's names, in the order of both; the head may differ."""
    expected = _expect_in_order(weights, state, head)
    problem = _find_order_problem(weights, expected, head)
    if problem is not None:
        raise BadFile(
            f"{weights.path} does not fit the model by shape: {problem}",
            hint=_suggest_model(weights.tensors),
        )
    # without counters: files of old torch versions lack them, which would shift the order
    stored = _without_counters(weights.tensors).values()
    return dict(zip(expected, stored, strict=True))


def _expect_in_order(
    weights: ExternalWeights, state: Mapping[str, Tensor], head: Collection[str]
) -> dict[str, Tensor]:
    """Return the tensors of the model that a file may hold in order: without the head, or all."""
    expected = _without_counters(state)
    backbone = {name: own for name, own in expected.items() if name not in head}
    has_head = len(_without_counters(weights.tensors)) != len(backbone)
    return expected if has_head else backbone


def _find_order_problem(
    weights: ExternalWeights, state: Mapping[str, Tensor], head: Collection[str] = ()
) -> str | None:
    """Return where the shapes of both sides first differ in order, or None if they agree.

    Shapes of the head are not compared.
    """
    if not weights.keeps_order:
        return "safetensors files do not keep the order of layers"
    pairs = zip_longest(
        _without_counters(weights.tensors).items(),
        _without_counters(state).items(),
        fillvalue=("nothing", None),
    )
    for number, ((name, tensor), (own_name, own)) in enumerate(pairs, start=1):
        if own_name in head and tensor is not None:
            continue
        if tensor is None or own is None or tensor.shape != own.shape:
            stored = _describe_tensor(name, tensor)
            expected = _describe_tensor(own_name, own)
            return f"tensor {number} is {stored} in the file, {expected} in the model"
    return None


def _describe_tensor(name: str, tensor: Tensor | None) -> str:
    return name if tensor is None else f"{name} of shape {_format_shape(tensor)}"


def _describe(
    mismatch: Mismatch, weights: Mapping[str, Tensor], state: Mapping[str, Tensor]
) -> str:
    """Return every group of names with its size and its first names, on one line."""
    shapes = [
        f"{name}: {_format_shape(weights[name])} in the file, "
        f"{_format_shape(state[name])} in the model"
        for name in mismatch.misshaped
    ]
    groups = {
        "missing": mismatch.missing,
        "unexpected": mismatch.unexpected,
        "of another shape": shapes,
    }
    return ", ".join(
        f"{len(names)} {title} ({_join_first(names)})" for title, names in groups.items() if names
    )


def _join_first(names: list[str]) -> str:
    ending = "; …" if len(names) > SHOWN_NAMES else ""
    return "; ".join(names[:SHOWN_NAMES]) + ending


def _suggest(
    mismatch: Mismatch,
    own: Mapping[str, Tensor],
    state: Mapping[str, Tensor],
    weights: ExternalWeights,
) -> str:
    """Return a hint with the most likely remedy."""
    if outputs := _compare_outputs(mismatch, own, state):
        stored, expected = outputs
        return (
            f"the weights have {stored} outputs, the dataset has {expected} classes: "
            "set `dataset` to the one they were trained on"
        )
    if any(map(_normalizer_kind, mismatch.unexpected)):
        return _suggest_model({name: own[name] for name in mismatch.unexpected})
    if _find_order_problem(weights, state) is None:
        return (
            "all shapes agree in order: if the layers do too, "
            "`wmr import` accepts them with `match=shape`"
        )
    return _suggest_model({})


def _suggest_match(
    mismatch: Mismatch,
    weights: ExternalWeights,
    state: Mapping[str, Tensor],
    head: Collection[str],
    by_name: Mapping[str, Tensor],
    hint: str,
) -> str:
    """Return a hint for weights that do not fit the backbone by name."""
    if any(map(_normalizer_kind, mismatch.unexpected)):
        return _suggest_model({name: by_name[name] for name in mismatch.unexpected})
    if hint:
        return hint
    if _find_order_problem(weights, _expect_in_order(weights, state, head), head) is None:
        return "all shapes agree in order: if the layers do too, set `init_match=shape`"
    return f"{_suggest_model({})}; `init_match=partial` uses the tensors that fit"


def _suggest_model(unmatched: Mapping[str, Tensor]) -> str:
    """Return a hint on `model`: with a normalisation if unmatched tensors are one."""
    values = {}
    for name, tensor in unmatched.items():
        kind = _normalizer_kind(name)
        if kind is not None:
            values[kind] = _format_values(tensor)
    if values:
        params = ",".join(f"{kind}={text}" for kind, text in values.items())
        return f"the weights normalise their images: add {params} to the spec of the model"
    return (
        "set `model` to the one that they were saved from: a name of `wmr list models`, "
        "or file.py:Class"
    )


def _compare_outputs(
    mismatch: Mismatch, weights: Mapping[str, Tensor], state: Mapping[str, Tensor]
) -> tuple[int, int] | None:
    """Return the numbers of outputs of weights and model if nothing else differs, else None."""
    # the last layer of a classifier is the one whose shape depends on the number of classes
    last_layer = "".join([*state][-1:]).rpartition(".")[0]
    if mismatch.missing or mismatch.unexpected:
        return None
    if any(name.rpartition(".")[0] != last_layer for name in mismatch.misshaped):
        return None
    pairs = [(weights[name].shape, state[name].shape) for name in mismatch.misshaped]
    for stored, expected in pairs:
        if len(stored) != len(expected) or stored[1:] != expected[1:]:
            return None
    stored, expected = pairs[0]
    return stored[0], expected[0]


def _convert(tensor: Tensor, own: Tensor, name: str, weights: ExternalWeights) -> Tensor:
    """Return a copy in the model's own type; refuse types that lose meaning, and NaN."""
    # integers as weights are quantised: without their scale they have no meaning
    if own.is_floating_point():
        is_compatible = tensor.dtype in FLOAT_TYPES
    else:
        is_compatible = not (tensor.is_floating_point() or tensor.is_complex())
    if not is_compatible:
        raise BadFile(
            f"{name!r} in {weights.path} is {_format_dtype(tensor)}, "
            f"the model has {_format_dtype(own)}",
            hint="quantised weights are not supported: save them in float32",
        )
    # a copy even if the type is the same: tensors of a file may share memory
    converted = tensor.to(own.dtype, copy=True).contiguous()
    # after the conversion, because a float64 may overflow to infinity in float32
    if not converted.isfinite().all():
        raise BadFile(
            f"{name!r} in {weights.path} holds NaN or infinity",
            hint="the training that produced it diverged",
        )
    return converted


def _format_shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a single number"


def _format_dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
