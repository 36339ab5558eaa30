"""What goes together: kernels, defenses, attacks and data that make no sense side by side are refused before any work."""

import dataclasses
import math
from typing import Any

import msgspec
from torch import Tensor

from ..config import TrainConfig
from ..core.protocols import (
    CountsWeightedImages,
    Defense,
    Evidence,
    HasIndex,
    HasState,
    Kernel,
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


def check_evidence(kernel: Kernel, evidence: Evidence) -> None:
    """A defense that does not say what it knows is found out when it counts."""
    for name in sorted(kernel.traits.needs):
        if getattr(evidence, name) is None:
            problem = f"kernel {type(kernel).__name__} weighs by {name.replace('_', ' ')}, which the defense does not know"
            raise BadInput(
                problem,
                hint="choose another kernel, or a defense with a training attack such as pgd",
            )


def shorten_for_replays(config: TrainConfig, chosen: Defense) -> TrainConfig:
    """Epochs and milestones as a defense counts them that steps several times on each batch."""
    replays = chosen.traits.replays
    milestones = tuple(math.ceil(milestone / replays) for milestone in config.milestones)
    return msgspec.structs.replace(
        config, epochs=math.ceil(config.epochs / replays), milestones=milestones
    )
