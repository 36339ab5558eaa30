"""Build models, attacks, kernels and defenses from their specs, and check what plugins return."""

import copy
import dataclasses
import inspect
import platform
import re
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..config import TrainConfig
from ..core.data.augment import Augmentation
from ..core.data.color import ColorJitter
from ..core.data.mixing import Mixer
from ..core.data.rand_augment import MAX_MAGNITUDE, RandAugment
from ..core.losses import cross_entropy, get_objective
from ..core.nn.preprocessing import Normalized
from ..core.norms import NORMS
from ..core.protocols import (
    Attack,
    Defense,
    Evidence,
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
from ..registry import SHARED_PARAMS, Registry
from ..spec import Spec, format_number, parse_number
from ..storage.checkpoints import Checkpoint

MAX_LOG_WEIGHT = 80.0
"""exp of more than 88 overflows float32, and the loss is multiplied with it."""
MAX_ROUNDING = 5e-4
"""An eps within this distance of a multiple of 1/255 was probably meant to be that multiple."""
SMALLEST_AREA = 0.08
"""Smallest fraction of an image that `resized-crop` keeps, as in torchvision."""
MAX_OPERATIONS = 8
"""Operations of RandAugment: more leave nothing of an image."""
MIN_BETA = 0.01
MAX_BETA = 100.0
"""Parameters of mixup and CutMix; beyond them images are hardly mixed, or all by half."""
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
        model = registry.create("model", own_spec, **injected, **options)
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
    if not normalisation:
        return model
    if input_shape is None:
        raise BadInput(
            f"model {spec!r} normalises its input, which needs input_shape",
            hint="give input_shape=(channels, height, width)",
        )
    mean = normalisation.get("mean", (0.0,))
    std = normalisation.get("std", (1.0,))
    return Normalized(model, mean, std, input_shape[0])


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


def build_augmentation(text: str, input_shape: tuple[int, int, int]) -> Augmentation:
    """Parse `crop:4,flip`: random crops after padding by 4 pixels, and random flips.

    `crop:4:reflect` pads by mirroring the border. `resized-crop` resizes a random box of at least
    8 % of the image, `resized-crop:0.25` of at least a quarter. `jitter`, `randaugment`, `erase`,
    `mixup` and `cutmix` have numbers, too. `none` changes nothing.
    """
    words = [] if text == "none" else [word.strip() for word in text.split(",")]
    parts: dict[str, Any] = {}
    for word in words:
        name, *values = word.split(":")
        if name not in _AUGMENTATIONS:
            raise BadInput(f"unknown augmentation {word!r}", hint=_AUGMENTATION_HINT)
        if name in parts:
            raise BadInput(f"augmentation {name} is set twice", hint="keep one of the two")
        parts[name] = _AUGMENTATIONS[name](word, values)
    padding, border = parts.get("crop", (0, "zero"))
    if padding and "resized-crop" in parts:
        raise BadInput("crop and resized-crop exclude each other", hint="keep one of the two")
    side = min(input_shape[1:])
    if padding >= side:
        raise BadInput(
            f"a crop of {padding} pixels may remove all of an image of side {side}",
            hint="use a smaller crop",
        )
    for name in ("jitter", "randaugment"):
        if name in parts and input_shape[0] not in (1, 3):
            raise BadInput(
                f"{name} needs images of 1 or 3 channels, those of the dataset have"
                f" {input_shape[0]}",
                hint=f"leave out {name}",
            )
    has_mixer = "mixup" in parts or "cutmix" in parts
    return Augmentation(
        padding,
        border,
        flips="flip" in parts,
        smallest_area=parts.get("resized-crop"),
        jitter=parts.get("jitter"),
        rand_augment=parts.get("randaugment"),
        erase=parts.get("erase", 0.0),
        mixer=Mixer(parts.get("mixup", 0.0), parts.get("cutmix", 0.0)) if has_mixer else None,
    )


_AUGMENTATION_HINT = (
    "write crop:4, crop:4:reflect, resized-crop, flip, jitter:0.4, randaugment:2:9, erase:0.5,"
    " mixup:0.2, cutmix:1, several joined by commas, or none"
)


def _parse_crop(word: str, values: list[str]) -> tuple[int, str]:
    """Return the padding, and how the border is filled."""
    if re.fullmatch("crop:([0-9]+)(:zero|:reflect)?", word) is None:
        raise BadInput(f"unknown augmentation {word!r}", hint=_AUGMENTATION_HINT)
    return int(values[0]), values[1] if len(values) > 1 else "zero"


def _parse_area(word: str, values: list[str]) -> float:
    """Return the smallest area of a random box, as a fraction of the image."""
    (area,) = _parse_numbers(word, values, (SMALLEST_AREA,))
    if not 0 < area <= 1:
        raise BadInput(
            f"the smallest area of resized-crop is {area:g}, not in (0, 1]",
            hint="resized-crop:0.25 crops a quarter of the image or more",
        )
    return area


def _parse_flip(word: str, values: list[str]) -> bool:
    _parse_numbers(word, values, ())
    return word == "flip"


def _parse_jitter(word: str, values: list[str]) -> ColorJitter:
    """Return the strengths of the colour jitter; one number is that of all but the hue."""
    numbers = _parse_numbers(word, values, (0.4, 0.4, 0.4, 0.0))
    if len(values) == 1:
        numbers = (*numbers[:1] * 3, 0.0)
    brightness, contrast, saturation, hue = numbers
    if min(numbers) < 0 or hue > 0.5:
        raise BadInput(
            f"{word}: a strength is negative, or that of the hue is above 0.5",
            hint="write jitter:0.4, or jitter:0.4:0.4:0.4:0.1",
        )
    return ColorJitter(brightness, contrast, saturation, hue)


def _parse_rand_augment(word: str, values: list[str]) -> RandAugment:
    numbers = _parse_numbers(word, values, (2.0, 9.0))
    operations, magnitude = (int(number) for number in numbers)
    is_whole = (operations, magnitude) == numbers
    if not (is_whole and 1 <= operations <= MAX_OPERATIONS and 0 <= magnitude <= MAX_MAGNITUDE):
        raise BadInput(
            f"{word}: operations or magnitude out of range",
            hint=f"write randaugment:2:9: 1 to {MAX_OPERATIONS} operations of a magnitude"
            f" from 0 to {MAX_MAGNITUDE}",
        )
    return RandAugment(operations, magnitude)


def _parse_erase(word: str, values: list[str]) -> float:
    (probability,) = _parse_numbers(word, values, (0.5,))
    if not 0 < probability <= 1:
        raise BadInput(
            f"{word}: the probability is not in (0, 1]", hint="erase:0.25 erases in every 4th image"
        )
    return probability


def _parse_beta(word: str, values: list[str]) -> float:
    """Return the parameter of the Beta distribution of mixup or CutMix."""
    (parameter,) = _parse_numbers(word, values, (1.0,))
    if not MIN_BETA <= parameter <= MAX_BETA:
        raise BadInput(
            f"{word}: the parameter is not in [{MIN_BETA:g}, {MAX_BETA:g}]",
            hint="write mixup:0.2 or cutmix:1",
        )
    return parameter


def _parse_numbers(word: str, values: list[str], defaults: tuple[float, ...]) -> tuple[float, ...]:
    """Return the numbers after a name, with the defaults of those that are missing."""
    if len(values) > len(defaults):
        raise BadInput(f"augmentation {word!r} has too many numbers", hint=_AUGMENTATION_HINT)
    return (*map(parse_number, values), *defaults[len(values) :])


_AUGMENTATIONS: Mapping[str, Callable[[str, list[str]], object]] = {
    "crop": _parse_crop,
    "resized-crop": _parse_area,
    "flip": _parse_flip,
    "jitter": _parse_jitter,
    "randaugment": _parse_rand_augment,
    "erase": _parse_erase,
    "mixup": _parse_beta,
    "cutmix": _parse_beta,
}


def spec_without_weights(registry: Registry, spec: str) -> str:
    """Return the spec of the same model without pretrained weights, which need not be loaded."""
    bare = Spec.parse(spec).without("pretrained")
    if registry.declares("model", bare.name, "pretrained"):
        bare = bare.with_params(pretrained="false")
    return str(bare)


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


def build_attack(
    registry: Registry,
    spec: Spec,
    *,
    norm: str,
    eps: float,
    steps: int | None = None,
    step_size: float | None = None,
    restarts: int | None = None,
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
    settings = {"steps": steps, "step_size": step_size, "restarts": restarts}
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


def build_training_attack(registry: Registry, config: TrainConfig) -> Attack:
    """Build the attack of a training run."""
    return build_attack(
        registry,
        Spec.parse(config.attack),
        norm=config.norm,
        eps=config.eps,
        steps=config.steps,
        step_size=config.step_size,
    )


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
        names = registry.names("kernel")
        others = ", ".join(name for name in names if registry.accepts("kernel", name, "alpha"))
        raise BadInput(
            f"kernel {parsed.name!r} has no alpha",
            hint=f"leave out `alpha`, or set a `kernel` that has it: {others}",
        )
    if alpha is not None and has_alpha:
        params["alpha"] = alpha
    kernel: Kernel = registry.create("kernel", parsed, **params)
    what = f"kernel {parsed.name!r}"
    _check_callable(kernel, what, ("evidence",))
    read_traits(kernel, KernelTraits, what)
    _try_kernel(kernel)
    return kernel


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


def build_training_kernel(
    registry: Registry, config: TrainConfig, attack: Attack, defense: Defense
) -> Kernel:
    """Build the kernel of a training run. It gets the number of attack steps if it accepts it."""
    params: dict[str, Any] = {}
    if registry.accepts("kernel", Spec.parse(config.kernel).name, "steps"):
        uses_attack = defense.traits.uses_attack
        own_steps = defense.traits.own_attack_steps
        steps = read_parameter(attack, "steps") if uses_attack else own_steps
        if steps is None and uses_attack:
            raise BadInput(
                f"kernel {config.kernel!r} needs the number of attack steps,"
                f" which {config.attack!r} does not have",
                hint="train with `attack=pgd`",
            )
        if steps is not None:
            params["steps"] = steps
    kernel = build_kernel(registry, config.kernel, config.alpha, **params)
    alpha = read_parameter(kernel, "alpha") or 0.0
    max_alpha = MAX_LOG_WEIGHT / kernel.traits.max_margin
    if alpha > max_alpha:
        raise BadInput(
            f"alpha {format_number(alpha)} overflows a float32 loss",
            hint=f"train with `alpha` up to {max_alpha:g}",
        )
    return kernel


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
