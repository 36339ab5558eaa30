"""What goes together: kernels, defenses, attacks and data that make no sense side by side are refused before any work."""

import dataclasses
import math
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from ..config import TrainConfig
from ..core.contexts import evaluating
from ..core.protocols import (
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


def check_ramps(made: Any, chosen: Any, config: TrainConfig) -> None:
    """A radius or an alpha that grows is one that can be set."""
    for flag, share, part, what, name in (
        ("--eps-ramp", config.eps_ramp, made, f"attack {config.attack!r}", "eps"),
        ("--alpha-ramp", config.alpha_ramp, chosen, f"kernel {config.kernel!r}", "alpha"),
    ):
        # a part with a state would lose it when it is made anew for every step
        if share and (
            not dataclasses.is_dataclass(part)
            or read_parameter(part, name) is None
            or isinstance(part, HasState)
        ):
            raise BadInput(f"{what} has no {name} that could grow", hint=f"leave out {flag}")


def check_kernel_and_defense(chosen: Defense, kernel: Kernel, config: TrainConfig) -> None:
    """Refuse a kernel and a defense that make no sense together."""
    names = f"kernel {config.kernel!r}", f"defense {config.defense!r}"
    unknown = sorted(kernel.traits.needs - chosen.traits.provides - ALWAYS_PROVIDED)
    if unknown:
        problem = (
            f"{names[0]} weighs by {unknown[0].replace('_', ' ')}, which {names[1]} does not know"
        )
        raise BadInput(
            problem, hint="choose another kernel, or a defense with a training attack such as pgd"
        )
    check_attackable(kernel)
    begins = kernel.traits.start_epoch
    if begins >= config.epochs:
        problem = (
            f"{names[0]} begins to weigh after {begins} epochs, and the run has {config.epochs}"
        )
        raise BadInput(
            problem, hint=f"write {Spec.parse(config.kernel).name}:start-epoch={config.epochs // 2}"
        )
    warmup = chosen.traits.warmup_epochs
    if warmup and warmup >= config.epochs:
        problem = f"{names[1]} warms up for {warmup} epochs, and the run has {config.epochs}"
        raise BadInput(
            problem, hint=f"write {Spec.parse(config.defense).name}:warmup={config.epochs // 3}"
        )
    if chosen.traits.shares_gradient and config.weight_grad in ("outer", "attack"):
        problem = f"{names[1]} moves images and parameters by one gradient, so --weight-grad {config.weight_grad} cannot be"
        raise BadInput(problem, hint="use --weight-grad both or none")


def check_attackable(kernel: Kernel) -> None:
    """Weights that an attack climbs follow from one image's logits, label and loss."""
    if not kernel.traits.differentiable:
        return
    beyond = sorted(kernel.traits.needs - {"loss"})
    if beyond or kernel.traits.compares_images:
        what = f"weighs by {beyond[0].replace('_', ' ')}" if beyond else "compares images"
        problem = (
            f"kernel {type(kernel).__name__} {what}, which an attack on its weights cannot know"
        )
        raise BrokenContract(problem, hint="its weights need the trait `differentiable=False`")


def check_covers_split(kernel: Kernel, split: Split, positions: Tensor | None = None) -> None:
    """Refuse a kernel that has no weight for any of these images, where that can be told without reading them."""
    if not isinstance(split, HasIndex) or not isinstance(kernel, CountsWeightedImages):
        return
    index = split.index if positions is None else split.index[positions]
    if not kernel.count_weighted(index):
        problem = (
            f"kernel {type(kernel).__name__.lower()} gives no weight to any image of the split"
        )
        raise BadInput(
            problem, hint="check the indices it names: those of an evaluation's rows, in this split"
        )


def divide_by_replays(config: TrainConfig, chosen: Defense) -> TrainConfig:
    """Epochs and milestones as a defense counts them that steps several times on each batch."""
    replays = chosen.traits.replays
    milestones = tuple(math.ceil(milestone / replays) for milestone in config.milestones)
    return msgspec.structs.replace(
        config, epochs=math.ceil(config.epochs / replays), milestones=milestones
    )


def check_batch_size(config: TrainConfig, images: int, ranks: int) -> None:
    """Raise if a rank would get fewer than two images of a batch."""
    smallest_batch = images // math.ceil(images / config.batch_size)
    # batch norm needs two images
    if ranks > 1 and smallest_batch // 2 < ranks:
        raise BadInput(
            f"a batch of {config.batch_size} images is too small for {ranks} processes",
            hint="use a larger `batch_size` or fewer `devices`",
        )


def check_observed_split(kernel: Kernel, source: DataSource, config: TrainConfig) -> None:
    """Raise if a kernel learns from a validation set that the dataset does not have."""
    if isinstance(kernel, ObservesValidation) and "val" not in source.splits:
        raise BadInput(
            f"kernel {config.kernel!r} learns from a validation set, and the dataset has none",
            hint="choose a dataset with a `val` split, or another kernel",
        )


def check_model_fits(
    network: nn.Module, spec: str, num_classes: int, input_shape: tuple[int, int, int]
) -> None:
    """Refuse a network that cannot take images (N, C, H, W) of this shape, or does not give logits (N, num_classes) for them."""
    outputs = count_outputs(network, spec, input_shape)
    if outputs != num_classes:
        problem = f"model {spec!r} has {outputs} outputs, the data set has {num_classes} classes"
        raise BadInput(
            problem, hint="a class that takes num_classes can build its last layer for the data"
        )


def count_outputs(network: nn.Module, spec: str, input_shape: tuple[int, int, int]) -> int:
    """How many logits a network gives for an image of this shape; one that cannot take such images is refused."""
    channels, height, width = input_shape
    parameter = next(network.parameters(), torch.empty(0))
    try:
        with torch.no_grad(), evaluating(network):
            logits = network(torch.zeros(2, *input_shape, device=parameter.device))
    except (Exception, SystemExit) as error:  # the forward pass of a local model may raise anything
        first = next(
            (module for module in network.modules() if isinstance(module, nn.Conv2d)), None
        )
        if first is not None and first.in_channels != channels:
            problem = f"model {spec!r} takes images of {first.in_channels} channels, those of the data set have {channels}"
            raise BadInput(
                problem,
                hint="a class that takes input_shape=(C, H, W) can build its first layer for the data",
            ) from None
        reason = (
            (str(error).strip().splitlines() or [""])[0]
            if isinstance(error, RuntimeError)
            else f"{type(error).__name__}: {error}"
        )
        problem = f"model {spec!r} cannot take images of {channels}x{height}x{width}: {reason}"
        raise BadInput(
            problem,
            hint="a class that takes input_shape=(C, H, W) can build its layers for the data",
        ) from error
    hint = "a model returns one tensor of logits, (images, classes)"
    if not isinstance(logits, torch.Tensor):
        raise BadInput(f"model {spec!r} gives a {type(logits).__name__}", hint=hint)
    if logits.ndim != 2 or len(logits) != 2:
        raise BadInput(
            f"model {spec!r} gives outputs of shape {tuple(logits.shape)} for 2 images", hint=hint
        )
    if not logits.is_floating_point():
        raise BadInput(f"model {spec!r} gives outputs of type {logits.dtype}", hint=hint)
    return logits.shape[1]
