"""Build models, attacks, kernels and defenses from their specs, and check what they return."""

import copy
import dataclasses
import inspect
import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.contexts import evaluating, return_logits
from ..core.losses import cross_entropy, get_objective
from ..core.nn.preprocessing import Normalized
from ..core.norms import NORMS
from ..core.protocols import (
    Attack,
    CountsWeightedImages,
    Defense,
    Evidence,
    HasIndex,
    HasNote,
    HasRemarks,
    Kernel,
    Split,
    Verifier,
)
from ..core.run_attack import check_log_weights
from ..core.traits import (
    AttackTraits,
    DefenseTraits,
    KernelTraits,
    VerifierTraits,
    read_parameter,
    read_traits,
)
from ..errors import BadFile, BadInput, BrokenContract, UnknownName, did_you_mean
from ..registry import OWN_DISTRIBUTION, SHARED_PARAMS, Registry
from ..spec import Spec, format_number, read_value
from ..storage.checkpoints import Checkpoint

MAX_ROUNDING = 5e-4
"""An eps within this distance of a multiple of 1/255 was probably meant to be that multiple."""
RECORD_FIELDS = ("norm", "eps", "restarts")
"""Parameters of an attack that a record stores in fields of their own."""
RECORDED_PACKAGES = (
    "torch",
    "torchvision",
    "timm",
    "lightning-fabric",
    "numpy",
    "safetensors",
)


def build_model(
    registry: Registry,
    spec: str,
    num_classes: int | None = None,
    input_shape: tuple[int, int, int] | None = None,
    data_dir: Path | None = None,
    **options: object,
) -> nn.Module:
    """Build a model for these classes and images.

    Parameters `mean` and `std` of the spec become a normalisation layer before the model. A model
    with a parameter `root` gets `data_dir`, for weights that it reads from there.
    """
    own_spec, normalisation = registry.split_shared("model", Spec.parse(spec))
    # the Python API passes shared parameters as keywords
    for key in SHARED_PARAMS["model"]:
        if key in options and not registry.accepts("model", own_spec.name, key):
            if key in normalisation:
                raise BadInput(f"{key} of model {spec!r} is set twice", hint="keep one of the two")
            value = options.pop(key)
            normalisation[key] = value if isinstance(value, tuple | list) else (value,)
    injected = _injected_params(registry, own_spec.name, num_classes, input_shape)
    # an explicit root in the spec has precedence
    has_root = "root" not in own_spec.params and registry.declares("model", own_spec.name, "root")
    if data_dir is not None and has_root:
        injected["root"] = data_dir
    try:
        model: nn.Module = registry.create("model", own_spec, **injected, **options)
    except (RuntimeError, MemoryError) as error:
        # torch raises RuntimeError for impossible sizes, and for those that do not fit into memory
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise BadInput(
            f"model {spec!r} cannot be built: {reason}", hint="check its sizes"
        ) from error
    if not isinstance(model, nn.Module):
        raise BrokenContract(
            f"model {spec!r} is a {type(model).__name__}", hint="a model is a torch.nn.Module"
        )
    if normalisation:
        if input_shape is None:
            raise BadInput(
                f"model {spec!r} normalises its input, which needs input_shape",
                hint="give input_shape=(channels, height, width)",
            )
        mean = normalisation.get("mean", (0.0,))
        std = normalisation.get("std", (1.0,))
        model = Normalized(model, mean, std, input_shape[0])
    # built-in models return logits
    if own_spec.is_local or registry.find("model", own_spec.name).owner != OWN_DISTRIBUTION:
        return_logits(model)
    return model


def _injected_params(
    registry: Registry,
    name: str,
    num_classes: int | None,
    input_shape: tuple[int, int, int] | None,
) -> dict[str, Any]:
    """Return the properties of the data that a model accepts as parameters."""
    target = registry.target("model", name)
    # a local class may have fixed layers; nn.Module.__init__ itself accepts and rejects anything
    if inspect.isclass(target) and target.__init__ is nn.Module.__init__:
        return {}
    known: dict[str, Any] = {"num_classes": num_classes, "input_shape": input_shape}
    return {
        key: value
        for key, value in known.items()
        if value is not None and registry.accepts("model", name, key)
    }


def spec_without_weights(registry: Registry, spec: str) -> str:
    """Return the spec of the same model without pretrained weights, which need not be loaded."""
    bare = Spec.parse(spec).without("pretrained")
    if registry.declares("model", bare.name, "pretrained"):
        bare = bare.with_params(pretrained="false")
    return str(bare)


def wants_pretrained(spec: str) -> bool:
    """Return whether a spec itself requests pretrained weights."""
    text = Spec.parse(spec).params.get("pretrained")
    return isinstance(text, str) and bool(read_value(text, bool))


def restore_model(registry: Registry, checkpoint: Checkpoint) -> nn.Module:
    """Build the model of a checkpoint with its weights, in eval mode."""
    spec = spec_without_weights(registry, checkpoint.model)
    model = build_model(registry, spec, checkpoint.num_classes, checkpoint.input_shape)
    try:
        model.load_state_dict(dict(checkpoint.tensors))
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise BadFile(
            f"the weights of {checkpoint.path} do not fit model {checkpoint.model!r}: {reason}",
            hint="evaluate it with the code that it was trained with, or train again",
        ) from None
    return model.eval()


def check_model_fits(
    model: nn.Module, spec: str, num_classes: int, input_shape: tuple[int, int, int]
) -> None:
    """Raise if a model does not return logits (N, num_classes) for images (N, C, H, W)."""
    outputs = count_outputs(model, spec, input_shape)
    if outputs != num_classes:
        raise BadInput(
            f"model {spec!r} has {outputs} outputs, the dataset has {num_classes} classes",
            hint="a class that takes num_classes can build its last layer for the data",
        )


def count_outputs(model: nn.Module, spec: str, input_shape: tuple[int, int, int]) -> int:
    """Return the number of logits for an image of this shape, by running the model."""
    device = next(model.parameters(), torch.empty(0)).device
    try:
        with torch.no_grad(), evaluating(model):
            logits = model(torch.zeros(2, *input_shape, device=device))
    except (Exception, SystemExit) as error:  # the forward pass of a local model may raise anything
        raise _explain_failure(model, spec, input_shape, error) from error
    hint = "a model returns logits (images, classes), or an object that holds them as 'logits'"
    if not isinstance(logits, torch.Tensor):
        raise BadInput(f"model {spec!r} returns a {type(logits).__name__}", hint=hint)
    if logits.ndim != 2 or len(logits) != 2:
        shape = tuple(logits.shape)
        raise BadInput(f"model {spec!r} returns the shape {shape} for 2 images", hint=hint)
    if not logits.is_floating_point():
        raise BadInput(f"model {spec!r} returns values of type {logits.dtype}", hint=hint)
    return logits.shape[1]


def _explain_failure(
    model: nn.Module, spec: str, input_shape: tuple[int, int, int], error: BaseException
) -> BadInput:
    """Return the error of a model that fails for images of this shape."""
    channels, height, width = input_shape
    convolutions = (module for module in model.modules() if isinstance(module, nn.Conv2d))
    first = next(convolutions, None)
    # the most frequent cause: a model for colour images on grey ones
    if first is not None and first.in_channels != channels:
        return BadInput(
            f"model {spec!r} needs images of {first.in_channels} channels,"
            f" those of the dataset have {channels}",
            hint="a class that takes input_shape=(C, H, W) can build its first layer for the data",
        )
    reason = f"{type(error).__name__}: {error}"
    if isinstance(error, RuntimeError):
        # of torch's own errors the first line is enough, further lines show its internals
        reason = (str(error).strip().splitlines() or [""])[0]
    return BadInput(
        f"model {spec!r} fails for images of {channels}x{height}x{width}: {reason}",
        hint="a class that takes input_shape=(C, H, W) can build its layers for the data",
    )


def build_attack(  # noqa: PLR0913 - a keyword for each setting of attacks
    registry: Registry,
    spec: Spec,
    *,
    norm: str,
    eps: float,
    steps: int | None = None,
    step_size: float | None = None,
    restarts: int | None = None,
    eot: int | None = None,
) -> Attack:
    """Build an attack in this ε-ball. Raise if it does not have a parameter that is set."""
    if norm not in NORMS:
        raise UnknownName(f"unknown norm {norm!r}", hint=did_you_mean(norm, NORMS))
    # some attacks have a fixed norm or no eps, such as those of other libraries
    params: dict[str, Any] = {
        key: value
        for key, value in {"norm": norm, "eps": eps}.items()
        if registry.accepts("attack", spec.name, key)
    }
    settings = {"steps": steps, "step_size": step_size, "restarts": restarts, "eot": eot}
    for setting, value in settings.items():
        if value is None:
            continue
        key = "step" if setting == "step_size" else setting
        if not registry.accepts("attack", spec.name, key):
            raise BadInput(
                f"attack {spec.name!r} does not have the setting `{setting}`",
                hint=f"leave out `{setting}`",
            )
        if key in spec.params:
            raise BadInput(f"{key} of {spec} is set twice", hint="keep one of the two")
        params[key] = value
    attack: Attack = registry.create("attack", spec, **params)
    what = f"attack {spec.name!r}"
    _check_callable(attack, what, ("model", "batch", "objective"), ("seed", "need_logits"))
    check_attack_traits(attack, what, norm)
    return attack


TRAITS_OF_KIND: dict[str, type[Any]] = {
    "attack": AttackTraits,
    "kernel": KernelTraits,
    "defense": DefenseTraits,
    "verifier": VerifierTraits,
}


def check_traits(kind: str, component: object, spec: str) -> None:
    """Refuse an attack, kernel, defense or verifier without traits."""
    if kind in TRAITS_OF_KIND:
        read_traits(component, TRAITS_OF_KIND[kind], f"{kind} {spec!r}")


def check_attack_traits(attack: Attack, what: str, norm: str) -> None:
    """Raise for an attack without traits, with an unknown objective, or for other norms."""
    traits = read_traits(attack, AttackTraits, what)
    get_objective(traits.objective)
    if norm not in traits.norms:
        raise BadInput(
            f"{what} does not support the norm {norm}",
            hint=f"`norm` is one of {', '.join(sorted(traits.norms))}",
        )


def build_verifier(registry: Registry, spec: str, norm: str) -> Verifier:
    """Build a verifier for ε-balls of this norm."""
    parsed = Spec.parse(spec)
    verifier: Verifier = registry.create("verifier", parsed)
    what = f"verifier {parsed.name!r}"
    _check_callable(verifier, what, ("model", "batch"), ("norm", "eps", "num_classes"))
    traits = read_traits(verifier, VerifierTraits, what)
    if norm not in traits.norms:
        raise BadInput(
            f"{what} does not support the norm {norm}",
            hint=f"it bounds models in balls of {', '.join(sorted(traits.norms))}",
        )
    return verifier


def list_dataset_notes(split: Split) -> Iterator[str]:
    """Yield what the user should know about a split."""
    if isinstance(split, HasNote) and split.note is not None:
        yield split.note


def list_attack_warnings(
    attack: Attack | None, eps: float, num_classes: int | None = None
) -> Iterator[str]:
    """Yield warnings about eps and step size, and the remarks of the attack for these classes."""
    levels = round(eps * 255)
    is_close = abs(eps - levels / 255) < MAX_ROUNDING
    if levels and is_close and eps != levels / 255:
        yield f"eps {eps:g} is not {levels}/255: results for the two are not comparable"
    step = read_parameter(attack, "step")
    if step is not None and step > 2 * eps:
        yield f"a step of {step:g} is longer than the diameter of the ε-ball of radius {eps:g}"
    component: object = attack
    if num_classes is not None and isinstance(component, HasRemarks):
        yield from component.remarks(num_classes)


def describe_attack(attack: Attack, spec: Spec, registry: Registry, **settings: Any) -> str:
    """Return a spec that builds an equal attack, for a record.

    It contains steps, step size and all parameters without their default value.
    """
    kind: Any = type(attack)
    # only a dataclass shows its parameters; of others those are known that the user has set
    if not dataclasses.is_dataclass(kind):
        given = {key: value for key, value in settings.items() if value is not None}
        return str(spec.with_params(**{key: _format_param(value) for key, value in given.items()}))
    fixed: Mapping[str, object] = {}
    if spec.name in registry.names("attack"):
        fixed = registry.find("attack", spec.name).entry.params
    params = {}
    for field in dataclasses.fields(kind):
        if field.name in RECORD_FIELDS:
            continue
        value = getattr(attack, field.name)
        is_default = value == fixed.get(field.name, field.default)
        # readers of a record look for steps and step size, so they are always written
        is_always_shown = field.name in ("steps", "step") and value is not None
        if is_always_shown or not is_default:
            params[field.name] = _format_param(value)
    return str(Spec(spec.name, None, params))


def find_attack_spec(attack: Attack, registry: Registry) -> Spec:
    """Return the name of an attack that was not built from a spec, or the path of its class."""
    kind: Any = attack if inspect.isroutine(attack) else type(attack)
    target = f"{kind.__module__}:{kind.__qualname__}"
    # several names may share a class, with other fixed parameters: `pgd` and `pgd-l2`
    matching = [
        owned.entry
        for owner_kind, owned in registry
        if owner_kind == "attack"
        and owned.entry.target == target
        and all(read_parameter(attack, key) == value for key, value in owned.entry.params.items())
    ]
    if not matching:
        return Spec(target.replace(":", "."))
    most_specific = max(matching, key=lambda entry: len(entry.params))
    return Spec(most_specific.name)


def _format_param(value: object) -> str:
    """Write a parameter as in a spec."""
    if isinstance(value, tuple | list):
        return ":".join(map(_format_param, value))
    if isinstance(value, float):
        return format_number(value)
    return "none" if value is None else str(value)


def build_kernel(registry: Registry, spec: str, alpha: float | None, **params: Any) -> Kernel:
    """Build a kernel. Raise if `alpha` is set and the kernel does not have it."""
    parsed = Spec.parse(spec)
    has_alpha = registry.accepts("kernel", parsed.name, "alpha")
    # alpha 0 is the unweighted baseline of a sweep, which a kernel without alpha equals
    if alpha and not has_alpha:
        raise BadInput(f"kernel {parsed.name!r} has no alpha", hint=suggest_alpha_kernels(registry))
    if alpha is not None and has_alpha:
        params["alpha"] = alpha
    kernel: Kernel = registry.create("kernel", parsed, **params)
    what = f"kernel {parsed.name!r}"
    _check_callable(kernel, what, ("evidence",))
    read_traits(kernel, KernelTraits, what)
    _try_kernel(kernel)
    return kernel


def suggest_alpha_kernels(registry: Registry) -> str:
    """Return the hint for an alpha that the kernel does not have."""
    names = registry.names("kernel")
    others = ", ".join(name for name in names if registry.accepts("kernel", name, "alpha"))
    return f"leave out `alpha`, or set a `kernel` that has it: {others}"


def _try_kernel(kernel: Kernel) -> None:
    """Raise if a kernel does not return one log-weight for each of three images."""
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 1.5]])
    labels = torch.tensor([0, 0, 1])
    rows = torch.arange(3)
    loss = cross_entropy(logits, labels)
    evidence = Evidence(logits, labels, rows, logits, steps_survived=rows, loss=loss)
    try:
        # on a copy: a call may change the state of a kernel, or of the random number generator
        with torch.random.fork_rng(devices=[]):
            log_weights = copy.deepcopy(kernel)(evidence)
    except Exception:  # noqa: BLE001 - it may need the classes and images of its dataset
        return
    check_log_weights(kernel, log_weights, len(labels))


def check_attackable(kernel: Kernel) -> None:
    """Raise if an attack cannot compute the gradient of a kernel's weights."""
    if not kernel.traits.differentiable:
        return
    # an attack knows logits, label and loss of each image by itself
    needs = sorted(kernel.traits.needs - {"loss"})
    if needs or kernel.traits.compares_images:
        reason = f"needs {needs[0].replace('_', ' ')}" if needs else "compares images"
        raise BrokenContract(
            f"kernel {type(kernel).__name__} {reason}, which a weighted attack does not have",
            hint="its weights need the trait `differentiable=False`",
        )


def check_covers_split(kernel: Kernel, split: Split, positions: Tensor | None = None) -> None:
    """Raise if all these images have a weight of 0, if this is known without reading them."""
    if not isinstance(split, HasIndex) or not isinstance(kernel, CountsWeightedImages):
        return
    index = split.index if positions is None else split.index[positions]
    if not kernel.count_weighted(index):
        raise BadInput(
            f"kernel {type(kernel).__name__.lower()} gives no weight to any image of the split",
            hint="check its indices: they are those in the rows of an evaluation of this split",
        )


def build_defense(registry: Registry, spec: str) -> Defense:
    """Build a defense."""
    defense: Defense = registry.create("defense", spec)
    what = f"defense {spec!r}"
    step = read_parameter(defense, "step")
    if step is None:
        raise BrokenContract(
            f"{what} builds a {type(defense).__name__} without a method 'step'",
            hint="a defense has a method step(learner, batch); see docs/hooks.md",
        )
    _check_callable(step, f"step of {what}", ("learner", "batch"))
    read_traits(defense, DefenseTraits, what)
    return defense


def _check_callable(
    component: object,
    what: str,
    arguments: tuple[str, ...],
    keywords: tuple[str, ...] = (),
) -> None:
    """Raise if a component cannot be called with these arguments, in this order."""
    parameters = ", ".join((*arguments, *(f"{name}=…" for name in keywords)))
    hint = f"it is called with ({parameters}); see docs/hooks.md and docs/migrating.md"
    if not callable(component):
        name = type(component).__name__
        raise BrokenContract(f"{what} builds a {name}, which cannot be called", hint=hint)
    try:
        inspect.signature(component).bind(*arguments, **dict.fromkeys(keywords))
    except TypeError as error:
        raise BrokenContract(f"{what} cannot be called: {error}", hint=hint) from None
    except ValueError:
        # callables that are written in C have no signature
        return


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that compute results."""
    packages = {name: version(name) for name in RECORDED_PACKAGES}
    return {"python": platform.python_version(), **packages}
