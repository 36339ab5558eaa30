"""Where names become tensors: components built from their specs. Registry and core meet here and nowhere else."""

import copy
import dataclasses
import inspect
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..config import TrainConfig
from ..core.data.augment import Augmentation
from ..core.losses import cross_entropy
from ..core.nn.preprocessing import Normalized
from ..core.norms import NORMS
from ..core.objectives import get_objective
from ..core.protocols import (
    Attack,
    DataSource,
    Defense,
    Evidence,
    HasNote,
    HasRemarks,
    Kernel,
    Preparable,
    Split,
)
from ..core.run_attack import check_batch, check_log_weights
from ..core.traits import AttackTraits, DefenseTraits, KernelTraits, read_parameter, read_traits
from ..errors import BadFile, BadInput, BrokenContract, UnknownName, WmrError, did_you_mean
from ..registry import SHARED_PARAMS, Registry
from ..spec import Spec, format_number
from ..storage.checkpoints import Checkpoint

LARGEST_ALPHA = 80.0
"""Beyond this exp(alpha) overflows the float32 of a training loss."""


def build_dataset(registry: Registry, spec: str, data_dir: Path, split_seed: int = 0) -> DataSource:
    """The data set of a spec. The seed decides what is held out, where the data set leaves that open."""
    parsed = Spec.parse(spec)
    facts = {"root": data_dir, "split_seed": split_seed}
    given = {
        key: value for key, value in facts.items() if registry.accepts("dataset", parsed.name, key)
    }
    source: DataSource = registry.create("dataset", parsed, **given)
    _check_source(source, parsed.name)
    return source


def _check_source(source: DataSource, name: str) -> None:
    """Refuse what a data set builds unless it has splits, classes and a shape, and names for all of its classes or none."""
    hint = (
        "a dataset has splits (by name), num_classes, input_shape, class_names and "
        "random_split_sha256, the last two may be None; see docs/hooks.md"
    )
    try:
        splits: object = source.splits
        classes: Any = source.num_classes
        shape: Any = source.input_shape
        names: object = source.class_names
        _ = source.random_split_sha256
    except WmrError:
        raise
    except Exception as error:  # of any kind: properties of the user's are among them
        problem = f"data set {name!r} builds a {type(source).__name__} that cannot be used: {type(error).__name__}: {error}"
        raise BrokenContract(problem, hint=hint) from error
    if not isinstance(splits, Mapping):
        raise BrokenContract(f"splits of data set {name!r} is a {type(splits).__name__}", hint=hint)
    if not isinstance(classes, Integral) or classes < 2:  # True is 1
        raise BrokenContract(
            f"num_classes of data set {name!r} is {classes!r}",
            hint="it is a whole number, 2 or more",
        )
    if (
        not isinstance(shape, tuple | list)
        or len(shape) != 3
        or not all(type(side) is int and side >= 1 for side in shape)
    ):
        problem = f"input_shape of data set {name!r} is {shape!r}"
        raise BrokenContract(problem, hint="it is (channels, height, width), three whole numbers")
    if names is not None and not (
        isinstance(names, tuple) and all(isinstance(each, str) for each in names)
    ):
        raise BrokenContract(
            f"class_names of data set {name!r} is not a tuple of text",
            hint="name the classes in their order",
        )
    if isinstance(names, tuple) and len(names) != classes:
        problem = f"data set {name!r} names {len(names)} classes and has {classes}"
        raise BrokenContract(
            problem, hint="class_names has one name for each of num_classes, or is left out"
        )


def get_split(source: DataSource, name: str) -> Split:
    """Return a split by name, tried with its first image."""
    split = _find_split(source, name)
    check_batch(split.batch(torch.arange(1)), source.num_classes)
    return split


def _find_split(source: DataSource, name: str) -> Split:
    """Return a split by name, without reading an image of it."""
    if name not in source.splits:
        raise UnknownName(
            f"the data set has no split {name!r}", hint=did_you_mean(name, source.splits)
        )
    split = source.splits[name]
    # hasattr alone would compute the hash of all images
    there = dir(split)
    missing = [
        part
        for part in ("__len__", "batch", "labels", "sha256")
        if part not in there and not hasattr(split, part)
    ]
    if missing:
        problem = (
            f"the split {name!r} of the data set is a {type(split).__name__} without {missing[0]!r}"
        )
        raise BrokenContract(
            problem,
            hint="a split has len(), labels, sha256 and batch(positions); see docs/hooks.md",
        )
    if not len(split):
        raise BadInput(
            f"the split {name!r} of the data set is empty", hint="hold out more images, or add some"
        )
    return split


def check_data(source: DataSource, config: TrainConfig) -> None:
    """Everything that a run and its evaluation will read is there and can be used, before any work is done."""
    if config.validate_every and "val" not in source.splits:
        raise BadInput(
            "no images are held out to validate on",
            hint="add --validate-every 0, or let the data set hold some out",
        )
    for name in (name for name in ("train", "val", "test") if name in source.splits):
        split = _find_split(source, name)
        if isinstance(split, Preparable):
            split.prepare()
        if name != "test":  # training never looks at a test image
            check_batch(
                split.batch(torch.arange(min(len(split), config.batch_size))), source.num_classes
            )


def list_dataset_notes(split: Split) -> Iterator[str]:
    """What a user should know about these data."""
    if isinstance(split, HasNote) and split.note is not None:
        yield split.note


def build_model(
    registry: Registry,
    spec: str,
    num_classes: int | None = None,
    input_shape: tuple[int, int, int] | None = None,
    data_dir: Path | None = None,
    **options: object,
) -> nn.Module:
    """A fresh network for these classes and images, with the normalisation that the spec may ask for as its first layer.

    One that declares `root` is told where data are, for weights that it reads from there.
    """
    own, normalisation = registry.split_shared("model", Spec.parse(spec))
    # shared parameters may also arrive as keywords; both ways lead to the same first layer
    for key in SHARED_PARAMS["model"]:
        if key in options and not registry.accepts("model", own.name, key):
            if key in normalisation:
                raise BadInput(f"{key} of model {spec!r} is set twice", hint="keep one of the two")
            value = options.pop(key)
            normalisation[key] = value if isinstance(value, tuple | list) else (value,)
    facts: dict[str, Any] = {"num_classes": num_classes, "input_shape": input_shape}
    facts = {key: value for key, value in facts.items() if value is not None}
    # a class of the user's may know its classes and images by itself
    takes = getattr(registry.target("model", own.name), "__init__", None) is not nn.Module.__init__
    given = {
        key: value
        for key, value in facts.items()
        if takes and registry.accepts("model", own.name, key)
    }
    if (
        data_dir is not None
        and "root" not in own.params
        and registry.declares("model", own.name, "root")
    ):
        given["root"] = data_dir
    try:
        network = registry.create("model", own, **given, **options)
    except (
        RuntimeError,
        MemoryError,
    ) as error:  # torch's word for a shape that cannot be, or that does not fit into memory
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise BadInput(
            f"model {spec!r} cannot be built: {reason}", hint="check its sizes"
        ) from error
    if not isinstance(network, nn.Module):
        raise BrokenContract(
            f"model {spec!r} is a {type(network).__name__}", hint="a model is a torch.nn.Module"
        )
    if not normalisation:
        return network
    if input_shape is None:
        raise BadInput(
            f"model {spec!r} normalizes its input, which needs input_shape",
            hint="give input_shape=(channels, height, width)",
        )
    return Normalized(
        network, normalisation.get("mean", (0.0,)), normalisation.get("std", (1.0,)), input_shape[0]
    )


def build_augmentation(text: str, input_shape: tuple[int, int, int]) -> Augmentation:
    """`crop:4,flip`: crops after padding by 4 pixels (`crop:4:reflect` mirrors the border), and flips; `none` is neither."""
    padding, border, flips = 0, "zero", False
    for word in () if text == "none" else text.split(","):
        name, *values = word.strip().split(":")
        if name == "flip" and not values:
            flips = True
        elif (
            name == "crop"
            and len(values) in (1, 2)
            and values[0].isdigit()
            and values[1:] in ([], ["zero"], ["reflect"])
        ):
            padding, border = int(values[0]), (values[1:] or ["zero"])[0]
        else:
            raise BadInput(
                f"{word!r} is no augmentation",
                hint="write crop:4, crop:4:reflect, flip, several joined by commas, or none",
            )
    if padding >= min(input_shape[1:]):
        raise BadInput(
            f"a crop of {padding} pixels can leave nothing of an image of side {min(input_shape[1:])}",
            hint="crop less",
        )
    return Augmentation(padding, border, flips)  # type: ignore[arg-type]


def spec_without_weights(registry: Registry, spec: str) -> str:
    """The model of a spec for weights that are at hand: it need not find or download any."""
    bare = Spec.parse(spec).without("pretrained")
    return str(
        bare.with_params(pretrained="false")
        if registry.declares("model", bare.name, "pretrained")
        else bare
    )


def restore_model(registry: Registry, checkpoint: Checkpoint) -> nn.Module:
    """The network of a checkpoint with its weights, in eval mode."""
    spec = spec_without_weights(registry, checkpoint.model)
    network = build_model(registry, spec, checkpoint.num_classes, checkpoint.input_shape)
    try:
        network.load_state_dict(dict(checkpoint.tensors))
    except RuntimeError as error:
        problem = " ".join(str(error).split())
        raise BadFile(
            f"the weights of {checkpoint.path} do not fit model {checkpoint.model!r}: {problem}",
            hint="evaluate it with the code that it was trained with, or train again",
        ) from None
    return network.eval()


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
    """An attack inside this ball. What is asked of an attack that does not have it is refused."""
    if norm not in NORMS:
        raise UnknownName(f"there is no norm {norm!r}", hint=did_you_mean(norm, NORMS))
    asked = {"steps": steps, "step": step_size, "restarts": restarts}
    ball = {"norm": norm, "eps": eps}
    given: dict[str, Any] = {
        key: value for key, value in ball.items() if registry.accepts("attack", spec.name, key)
    }
    for key, value in asked.items():
        if value is None:
            continue
        if not registry.accepts("attack", spec.name, key):
            raise BadInput(
                f"attack {spec.name!r} has no {key!r}",
                hint=f"leave out --{'step-size' if key == 'step' else key}",
            )
        if key in spec.params:
            raise BadInput(f"{key} of {spec} is set twice", hint="keep one of the two")
        given[key] = value
    made: Attack = registry.create("attack", spec, **given)
    _check_callable(
        made,
        f"attack {spec.name!r}",
        ("model", "batch", "objective"),
        ("seed", "need_logits"),
    )
    check_attack_traits(made, f"attack {spec.name!r}", norm)
    return made


def check_attack_traits(made: Attack, what: str, norm: str) -> None:
    """Refuse an attack without traits, of an unknown objective, or for other norms."""
    traits = read_traits(made, AttackTraits, what)
    get_objective(traits.objective)
    if norm not in traits.norms:
        raise BadInput(
            f"{what} does not support the norm {norm}",
            hint=f"`norm` is one of {', '.join(sorted(traits.norms))}",
        )


def _check_callable(
    made: object, what: str, arguments: tuple[str, ...], keywords: tuple[str, ...] = ()
) -> None:
    """Refuse what cannot be called with these arguments, in this order."""
    written = (*arguments, *(f"{name}=…" for name in keywords))
    called_with = f"it is called with ({', '.join(written)}); see docs/hooks.md"
    if not callable(made):
        raise BrokenContract(
            f"{what} builds a {type(made).__name__}, which cannot be called", hint=called_with
        )
    try:
        inspect.signature(made).bind(*arguments, **dict.fromkeys(keywords))
    except TypeError as error:
        raise BrokenContract(f"{what} cannot be called: {error}", hint=called_with) from None
    except ValueError:  # built-in callables have no signature to look at
        return


def list_attack_warnings(
    made: Attack | None, eps: float, num_classes: int | None = None
) -> Iterator[str]:
    """What a careful reader would ask about this ball and attack, and what it remarks itself where the classes are known."""
    levels = round(eps * 255)
    if levels and eps != levels / 255 and abs(eps - levels / 255) < 5e-4:
        yield f"eps {eps:g} is not {levels}/255: results for the two are not comparable"
    step = read_parameter(made, "step")
    if step is not None and step > 2 * eps:
        yield f"a step of {step:g} jumps across the whole ball of radius {eps:g}"
    component: object = made
    if num_classes is not None and isinstance(component, HasRemarks):
        yield from component.remarks(num_classes)


def describe_attack(made: Attack, spec: Spec, registry: Registry, **asked: Any) -> str:
    """The attack as a spec that rebuilds it, with its steps; ball and restarts stand beside it in the record."""
    kind: Any = type(made)
    if not dataclasses.is_dataclass(kind):
        return str(
            spec.with_params(
                **{key: _format_param(value) for key, value in asked.items() if value is not None}
            )
        )
    fixed = (
        registry.find("attack", spec.name).entry.params
        if spec.name in registry.names("attack")
        else {}
    )
    params = {}
    for field in dataclasses.fields(kind):
        value = getattr(made, field.name)
        is_default = value == fixed.get(field.name, field.default)
        is_beside = field.name in ("norm", "eps", "restarts")
        if not is_beside and (
            not is_default or (field.name in ("steps", "step") and value is not None)
        ):
            params[field.name] = _format_param(value)
    return str(Spec(spec.name, None, params))


def find_attack_spec(made: Attack, registry: Registry) -> Spec:
    """The name of an attack that was built elsewhere: that of its class with most of its numbers, or the class itself."""
    kind: Any = made if inspect.isroutine(made) else type(made)
    target = f"{kind.__module__}:{kind.__qualname__}"
    entries = [
        owned.entry for of, owned in registry if of == "attack" and owned.entry.target == target
    ]
    fitting = [
        entry
        for entry in entries
        if all(read_parameter(made, key) == value for key, value in entry.params.items())
    ]
    best = max(fitting, key=lambda entry: len(entry.params), default=None)
    return Spec(target.replace(":", ".") if best is None else best.name)


def _format_param(value: Any) -> str:
    """A parameter as a user would write it."""
    if isinstance(value, tuple | list):
        return ":".join(map(_format_param, value))
    return (
        format_number(value)
        if isinstance(value, float)
        else "none"
        if value is None
        else str(value)
    )


def build_kernel(registry: Registry, spec: str, alpha: float | None, **facts: Any) -> Kernel:
    """A kernel, with alpha where it has one."""
    parsed = Spec.parse(spec)
    if alpha is not None and not registry.accepts("kernel", parsed.name, "alpha"):
        if alpha != 0:
            raise BadInput(f"kernel {parsed.name!r} has no alpha", hint="leave out `alpha`")
        # alpha 0 is the unweighted baseline, which a kernel without alpha gives as it is
        alpha = None
    made: Kernel = registry.create(
        "kernel", parsed, **facts, **({} if alpha is None else {"alpha": alpha})
    )
    what = f"kernel {parsed.name!r}"
    _check_callable(made, what, ("evidence",))
    read_traits(made, KernelTraits, what)
    _try_kernel(made)
    return made


def _try_kernel(made: Kernel) -> None:
    """Refuse a kernel whose result for three images is not one log-weight each."""
    logits, labels = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 1.5]]), torch.tensor([0, 0, 1])
    rows = torch.arange(3)
    evidence = Evidence(
        logits, labels, rows, logits, steps_survived=rows, loss=cross_entropy(logits, labels)
    )
    try:
        # a call may change the state of a kernel, or of the generator
        with torch.random.fork_rng(devices=[]):
            log_weights = copy.deepcopy(made)(evidence)
    except Exception:  # noqa: BLE001 - it may need other classes or images than these, and says so when it meets its own
        return
    check_log_weights(made, log_weights, len(labels))


def build_training_attack(registry: Registry, config: TrainConfig) -> Attack:
    """The attack of a training run."""
    spec = Spec.parse(config.attack)
    return build_attack(
        registry,
        spec,
        norm=config.norm,
        eps=config.eps,
        steps=config.steps,
        step_size=config.step_size,
    )


def build_training_kernel(
    registry: Registry, config: TrainConfig, attack: Attack, chosen: Defense
) -> Kernel:
    """The kernel of a training run, with weights that a float32 loss can carry, and the steps of the attack if it asks."""
    asks = registry.accepts("kernel", Spec.parse(config.kernel).name, "steps")
    traits = chosen.traits
    steps = read_parameter(attack, "steps") if traits.uses_attack else traits.own_attack_steps
    if asks and traits.uses_attack and steps is None:
        problem = f"kernel {config.kernel!r} counts the steps of an attack, and {config.attack!r} has none to count"
        raise BadInput(problem, hint="train with --attack pgd")
    made = build_kernel(
        registry,
        config.kernel,
        config.alpha,
        **({"steps": steps} if asks and steps is not None else {}),
    )
    alpha = read_parameter(made, "alpha") or 0.0
    largest = LARGEST_ALPHA / made.traits.max_margin
    if alpha > largest:
        raise BadInput(
            f"alpha {format_number(alpha)} overflows a float32 loss",
            hint=f"train with alpha up to {largest:g}",
        )
    return made


def build_defense(registry: Registry, spec: str) -> Defense:
    """A defense."""
    made: Defense = registry.create("defense", spec)
    what = f"defense {spec!r}"
    step = read_parameter(made, "step")
    if step is None:
        hint = "a defense has a method step(learner, batch); see docs/hooks.md"
        raise BrokenContract(
            f"{what} builds a {type(made).__name__} without a method 'step'", hint=hint
        )
    _check_callable(step, f"step of {what}", ("learner", "batch"))
    read_traits(made, DefenseTraits, what)
    return made


@contextmanager
def exact_float32() -> Iterator[None]:
    """Float32 all the way, TF32 off, and algorithms that give the same bits every time."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.backends.cudnn.flags(
            enabled=True, benchmark=False, deterministic=True, allow_tf32=False
        ):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def installed_versions() -> dict[str, str]:
    """What a result was computed with."""
    from importlib.metadata import version

    packages = ("torch", "torchvision", "timm", "lightning-fabric", "numpy", "safetensors")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}
