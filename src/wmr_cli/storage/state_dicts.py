"""Weights from elsewhere, fitted to a network's state: by name or by shape, completely or not at all."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest

import torch
from torch import Tensor

from ..errors import BadFile
from .torch_files import ExternalWeights

COUNTER = "num_batches_tracked"
"""A count that evaluation never reads; old versions of torch do not save it."""
SHOWN = 3
"""How many names of a group an error lists."""
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
NORMALISER = re.compile(
    r"(?:.*\.)?(?:image_|pixel_|input_|data_|norm_|_)?(?:(?P<mean>mean|mu)|(?P<std>std|sigma))_?"
)
ROUNDING = 1e-3
"""Means and deviations are written with three digits or four."""


@dataclass(frozen=True)
class MatchedWeights:
    """Weights under the network's own names, how many of them the file has, and the prefix that its names had to lose."""

    tensors: dict[str, Tensor]
    matched: int
    prefix: str = ""


@dataclass(frozen=True)
class Mismatch:
    """Names that stand on one side only, and those whose shapes differ."""

    missing: list[str]
    unexpected: list[str]
    misshaped: list[str]

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.misshaped)


def match_weights(
    weights: ExternalWeights, state: Mapping[str, Tensor], match: str
) -> MatchedWeights:
    """The weights as a state of the network, or why they are none. `match` is "name" or "shape"."""
    if match == "shape":
        if problem := _order_problem(weights, state):
            raise BadFile(
                f"{weights.path} does not fit the network by shape: {problem}",
                hint=_general_hint(weights.tensors),
            )
        pairs, prefix = (
            dict(zip(_counted(state), _counted(weights.tensors).values(), strict=True)),
            "",
        )
    else:
        own, prefix = _without_prefix(weights.tensors, state)
        if mismatch := _compared(own, state):
            problem = f"{weights.path} does not fit the network: {_told(mismatch, own, state)}"
            raise BadFile(problem, hint=_hint(mismatch, own, state, weights))
        pairs = own
    tensors = {
        name: _like(pairs[name], tensor, name, weights)
        if name in pairs
        else tensor.detach().clone()
        for name, tensor in state.items()
    }
    return MatchedWeights(tensors, len(pairs), prefix)


def drop_normalization(weights: ExternalWeights, spec: Mapping[str, Tensor]) -> ExternalWeights:
    """The weights without a mean and std that the model's spec sets as well. Other values than those are refused."""
    kept = {}
    for name, tensor in weights.tensors.items():
        kind = _normaliser(name)
        if kind is None or kind not in spec:
            kept[name] = tensor
        elif not _agree(tensor.double().flatten(), spec[kind].double().flatten()):
            problem = f"{name!r} in {weights.path} is {_values(tensor)}, but the model's spec says {kind}={_values(spec[kind])}"
            raise BadFile(problem, hint=f"write {kind}={_values(tensor)}")
    return replace(weights, tensors=kept)


def _normaliser(name: str) -> str | None:
    """Whether a tensor is called like the `mean` or the `std` of a normalising layer."""
    found = NORMALISER.fullmatch(name)
    return found.lastgroup if found else None


def _agree(given: Tensor, said: Tensor) -> bool:
    """Whether two means, of all channels or one for all, are the same."""
    if given.numel() != said.numel() and 1 not in (given.numel(), said.numel()):
        return False
    return bool(((given - said).abs() < ROUNDING).all())


def _values(tensor: Tensor) -> str:
    """`0.485:0.456:0.406`, as a spec has it."""
    return ":".join(f"{value:.4g}" for value in tensor.double().flatten().tolist())


def _without_prefix(
    tensors: Mapping[str, Tensor], state: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], str]:
    """The weights without leading words that all their names share, such as `module.`, unless the network has them too."""
    forms = [(dict(tensors), "")]
    while True:
        names, prefix = forms[-1]
        words = {name.partition(".")[0] if "." in name else "" for name in names}
        if len(words) != 1 or "" in words:
            break
        forms.append(
            (
                {name.partition(".")[2]: tensor for name, tensor in names.items()},
                f"{prefix}{words.pop()}.",
            )
        )
    # of equals the first: nothing is dropped that need not be
    return max(forms, key=lambda form: len(form[0].keys() & state.keys()))


def _counted(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if not name.endswith(COUNTER)}


def _order_problem(weights: ExternalWeights, state: Mapping[str, Tensor]) -> str | None:
    """Where the two orders of shapes part, if they do."""
    if not weights.keeps_order:
        return "safetensors files do not keep the order of layers"
    nothing = ("nothing", None)
    both = zip_longest(
        _counted(weights.tensors).items(), _counted(state).items(), fillvalue=nothing
    )
    for number, ((name, tensor), (own_name, own)) in enumerate(both, start=1):
        if tensor is None or own is None or tensor.shape != own.shape:
            found, wanted = (
                what if of is None else f"{what} of {_shape(of)}"
                for what, of in ((name, tensor), (own_name, own))
            )
            return f"as tensor {number} the file has {found}, the network has {wanted}"
    return None


def _compared(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> Mismatch:
    return Mismatch(
        missing=[name for name in _counted(state) if name not in own],
        unexpected=[name for name in own if name not in state],
        misshaped=[name for name in own if name in state and own[name].shape != state[name].shape],
    )


def _told(mismatch: Mismatch, own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> str:
    """Every group with its size and its first few names, on one line."""
    shapes = [
        f"{name}: {_shape(own[name])} in the file, {_shape(state[name])} in the network"
        for name in mismatch.misshaped
    ]
    groups = {
        "missing": mismatch.missing,
        "unexpected": mismatch.unexpected,
        "of another shape": shapes,
    }
    told = [
        f"{len(names)} {what} ({'; '.join(names[:SHOWN])}{'; …' if len(names) > SHOWN else ''})"
        for what, names in groups.items()
        if names
    ]
    return ", ".join(told)


def _hint(
    mismatch: Mismatch,
    own: Mapping[str, Tensor],
    state: Mapping[str, Tensor],
    weights: ExternalWeights,
) -> str:
    """The likeliest way to make them fit."""
    if outputs := _outputs(mismatch, own, state):
        return f"the weights have {outputs[0]} outputs, the data set has {outputs[1]} classes: name their own data set"
    if any(map(_normaliser, mismatch.unexpected)):
        return _general_hint({name: own[name] for name in mismatch.unexpected})
    if _order_problem(weights, state) is None:
        return "all shapes agree in order: if the layers do too, `wmr import` takes them with --match shape"
    return _general_hint({})


def _general_hint(unmatched: Mapping[str, Tensor]) -> str:
    """Which --model to name: one that normalises, where the weights tell how."""
    found = {
        kind: _values(tensor) for name, tensor in unmatched.items() if (kind := _normaliser(name))
    }
    if found:
        written = ",".join(f"{kind}={values}" for kind, values in found.items())
        return f"the weights normalise their images: put {written} into the model's spec"
    return "name the network that they were saved from with --model; `wmr list models`, or file.py:Class"


def _outputs(
    mismatch: Mismatch, own: Mapping[str, Tensor], state: Mapping[str, Tensor]
) -> tuple[int, int] | None:
    """How many classes weights and network have, if that is all they differ in."""
    last = "".join([*state][-1:]).rpartition(".")[0]
    if (
        mismatch.missing
        or mismatch.unexpected
        or any(name.rpartition(".")[0] != last for name in mismatch.misshaped)
    ):
        return None
    pairs = [(own[name].shape, state[name].shape) for name in mismatch.misshaped]
    if any(len(theirs) != len(ours) or theirs[1:] != ours[1:] for theirs, ours in pairs):
        return None
    return pairs[0][0][0], pairs[0][1][0]


def _like(tensor: Tensor, own: Tensor, name: str, weights: ExternalWeights) -> Tensor:
    """A copy in the network's own type; whole numbers are no weights, and neither is a NaN."""
    fits = (
        tensor.dtype in FLOATS
        if own.is_floating_point()
        else not (tensor.is_floating_point() or tensor.is_complex())
    )
    if not fits:
        problem = f"{name!r} in {weights.path} is {_dtype(tensor)}, the network has {_dtype(own)}"
        raise BadFile(problem, hint="quantised weights cannot be used: save them in float32")
    made = tensor.to(own.dtype, copy=True).contiguous()
    if not made.isfinite().all():
        raise BadFile(
            f"{name!r} in {weights.path} holds NaN or infinity",
            hint="the training that made it diverged",
        )
    return made


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a single number"


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
