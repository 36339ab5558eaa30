"""Check that the components of a training fit together, before any work is done."""

import dataclasses
import math

import msgspec

from ..config import TrainConfig
from ..core.data.augment import Augmentation
from ..core.protocols import (
    Attack,
    DataSource,
    Defense,
    HasState,
    Kernel,
    ObservesValidation,
)
from ..core.traits import ALWAYS_PROVIDED, read_parameter
from ..errors import BadInput
from ..runtime import components
from ..spec import Spec


def check_ramps(attack: Attack, kernel: Kernel, config: TrainConfig) -> None:
    """Raise if `eps` or `alpha` is ramped up for a component without such a parameter."""
    if config.eps_ramp and not _can_scale(attack, "eps"):
        raise BadInput(f"attack {config.attack!r} has no eps to scale", hint="leave out `eps_ramp`")
    if config.alpha_ramp and not _can_scale(kernel, "alpha"):
        raise BadInput(
            f"kernel {config.kernel!r} has no alpha to scale", hint="leave out `alpha_ramp`"
        )


def _can_scale(component: object, parameter: str) -> bool:
    """Whether `dataclasses.replace` can make a copy with another value of the parameter."""
    has_parameter = read_parameter(component, parameter) is not None
    # every step has a new copy, which would lose a state
    is_stateless = not isinstance(component, HasState)
    return dataclasses.is_dataclass(component) and has_parameter and is_stateless


def check_kernel_and_defense(defense: Defense, kernel: Kernel, config: TrainConfig) -> None:
    """Raise if a defense cannot train with a kernel for this number of epochs."""
    kernel_name = f"kernel {config.kernel!r}"
    defense_name = f"defense {config.defense!r}"
    missing = sorted(kernel.traits.needs - defense.traits.provides - ALWAYS_PROVIDED)
    if missing:
        words = missing[0].replace("_", " ")
        raise BadInput(
            f"{kernel_name} needs {words}, which {defense_name} does not provide",
            hint="choose another kernel, or a defense with a training attack such as pgd",
        )
    components.check_attackable(kernel)
    epochs = config.epochs
    start_epoch = kernel.traits.start_epoch
    if start_epoch >= epochs:
        # a run that starts from trained weights has its burn-in behind it
        earlier = epochs // 2 if config.init is None else 0
        raise BadInput(
            f"{kernel_name} starts after {start_epoch} epochs, and the run has {epochs}",
            hint=f"write {Spec.parse(config.kernel).name}:start-epoch={earlier}",
        )
    warmup = defense.traits.warmup_epochs
    if warmup and warmup >= epochs:
        raise BadInput(
            f"{defense_name} warms up for {warmup} epochs, and the run has {epochs}",
            hint=f"write {Spec.parse(config.defense).name}:warmup={epochs // 3}",
        )
    # with one backward pass, weights have a gradient for both images and parameters, or for none
    if defense.traits.shares_gradient and config.weight_grad in ("outer", "attack"):
        raise BadInput(
            f"{defense_name} updates images and parameters by one gradient,"
            f" so `weight_grad={config.weight_grad}` is not possible",
            hint="use `weight_grad=both` or `weight_grad=none`",
        )


def check_observed_split(kernel: Kernel, source: DataSource, config: TrainConfig) -> None:
    """Raise if a kernel learns from a validation set that the dataset does not have."""
    if isinstance(kernel, ObservesValidation) and "val" not in source.splits:
        raise BadInput(
            f"kernel {config.kernel!r} learns from a validation set, and the dataset has none",
            hint="choose a dataset with a `val` split, or another kernel",
        )


def check_mixing(augment: Augmentation, defense: Defense, config: TrainConfig) -> None:
    """Raise if mixed images have two labels and the loss of the defense has use for one only."""
    if augment.mixer is None or defense.traits.mixes_labels:
        return
    used = [name for name in ("mixup", "cutmix") if getattr(augment.mixer, name)]
    raise BadInput(
        f"defense {config.defense!r} has a term that needs one label per image, and"
        f" `augment={config.augment}` mixes images of two labels",
        hint=f"leave out {' and '.join(used)}, or choose a defense such as pgd or trades",
    )


def check_patience(config: TrainConfig) -> None:
    """Raise if a run that may stop early has no validation accuracy to follow."""
    if config.patience is None:
        return
    if not config.validate_every:
        raise BadInput(
            "`patience` needs validation, and `validate_every` is 0",
            hint="set `validate_every=1`, or leave out `patience`",
        )
    if config.select == "none":
        raise BadInput(
            "`patience` needs an accuracy to follow, and `select` is none",
            hint="set `select=rob`, or leave out `patience`",
        )


def divide_batch(config: TrainConfig) -> tuple[int, int]:
    """Return how many images of a full batch are training images, and how many are extra."""
    if config.extra is None:
        return config.batch_size, 0
    extra = round(config.extra_fraction * config.batch_size)
    main = config.batch_size - extra
    if not (main and extra):
        missing = "extra" if main else "training"
        raise BadInput(
            f"`extra_fraction={config.extra_fraction:g}` leaves no {missing} images"
            f" in a batch of {config.batch_size}",
            hint="set `extra_fraction=0.7`, or a larger `batch_size`",
        )
    return main, extra


def check_batch_size(config: TrainConfig, images: int, ranks: int) -> None:
    """Raise if a rank would get fewer than two images of a batch."""
    main, extra = divide_batch(config)
    smallest_batch = images // math.ceil(images / main) + extra
    # batch norm needs two images
    if ranks > 1 and smallest_batch // 2 < ranks:
        raise BadInput(
            f"a batch of {config.batch_size} images is too small for {ranks} processes",
            hint="use a larger `batch_size` or fewer `devices`",
        )


def divide_by_replays(config: TrainConfig, defense: Defense) -> TrainConfig:
    """Divide epochs and milestones by the number of steps on each batch."""
    replays = defense.traits.replays
    milestones = tuple(math.ceil(milestone / replays) for milestone in config.milestones)
    epochs = math.ceil(config.epochs / replays)
    return msgspec.structs.replace(config, epochs=epochs, milestones=milestones)
