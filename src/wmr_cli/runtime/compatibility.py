"""Check that components fit together and fit the data, before any work is done."""

import dataclasses
import math

import msgspec
import torch
from torch import Tensor, nn

from ..config import TrainConfig
from ..core.contexts import evaluating
from ..core.data.augment import Augmentation
from ..core.protocols import (
    Attack,
    CountsWeightedImages,
    DataSource,
    Defense,
    HasIndex,
    HasState,
    Kernel,
    ObservesValidation,
    Split,
)
from ..core.traits import ALWAYS_PROVIDED, read_parameter
from ..errors import BadInput, BrokenContract
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
    check_attackable(kernel)
    epochs = config.epochs
    start_epoch = kernel.traits.start_epoch
    if start_epoch >= epochs:
        raise BadInput(
            f"{kernel_name} starts after {start_epoch} epochs, and the run has {epochs}",
            hint=f"write {Spec.parse(config.kernel).name}:start-epoch={epochs // 2}",
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


def check_observed_split(kernel: Kernel, source: DataSource, config: TrainConfig) -> None:
    """Raise if a kernel learns from a validation set that the dataset does not have."""
    if isinstance(kernel, ObservesValidation) and "val" not in source.splits:
        raise BadInput(
            f"kernel {config.kernel!r} learns from a validation set, and the dataset has none",
            hint="choose a dataset with a `val` split, or another kernel",
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
    hint = "a model returns one tensor of logits, (images, classes)"
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
