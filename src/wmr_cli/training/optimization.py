"""The optimizer, its schedules, and the moving average of the weights.

A schedule is a pure function of the step's number, so that a checkpoint needs no scheduler state.
"""

import math
from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..config import TrainConfig
from ..core.contexts import model_device
from ..errors import BadInput
from ..runtime.accelerators import has_fused_optimizer

ONE_CYCLE_PEAK = 0.3
"""Fraction of the run after which the learning rate of `one-cycle` falls."""
ONE_CYCLE_START = 0.04
"""First learning rate of `one-cycle`, as a fraction of the highest."""
LR_SCALE = "lr_scale"
"""Key of a parameter group: the factor of its learning rate, 1 if it has none."""


@dataclass(frozen=True)
class StepSettings:
    """The learning rate of a step, and the fractions of the final eps and alpha at that step."""

    learning_rate: float
    eps_fraction: float = 1.0
    alpha_fraction: float = 1.0


def make_optimizer(
    config: TrainConfig, model: nn.Module, head: Collection[str] = ()
) -> torch.optim.Optimizer:
    """Make SGD with momentum, Adam or AdamW, for a model that is on its device.

    `head` are the names of the parameters that `backbone_lr_scale` leaves out.
    """
    groups = parameter_groups(config, model, head)
    options: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay}
    # Fabric cannot clip gradients that a fused optimizer has to unscale
    is_unscaled = config.precision != "16" or config.clip_grad is None
    if has_fused_optimizer(model_device(model)) and is_unscaled:
        options["fused"] = True
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, momentum=config.momentum, **options)
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind(groups, **options)


def parameter_groups(
    config: TrainConfig, model: nn.Module, head: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Group the trainable parameters by weight decay, and by the scale of their learning rate."""
    trainable = {
        name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad
    }
    parts: list[tuple[list[nn.Parameter], dict[str, float]]] = [([*trainable.values()], {})]
    if config.backbone_lr_scale != 1:
        parts = [
            ([each for name, each in trainable.items() if name in head], {}),
            (
                [each for name, each in trainable.items() if name not in head],
                {LR_SCALE: config.backbone_lr_scale},
            ),
        ]
    if not trainable:
        raise BadInput("the model has no parameters to train", hint="choose another `model`")
    groups: list[dict[str, Any]] = []
    for parameters, options in parts:
        if config.decay == "all":
            groups.append({"params": parameters, **options})
            continue
        # biases and the parameters of normalisation layers have one dimension at most
        matrices = [parameter for parameter in parameters if parameter.ndim > 1]
        vectors = [parameter for parameter in parameters if parameter.ndim <= 1]
        groups.append({"params": matrices, **options})
        groups.append({"params": vectors, "weight_decay": 0.0, **options})
    return [group for group in groups if group["params"]]


def settings_at(config: TrainConfig, step: int, steps_per_epoch: int) -> StepSettings:
    """Return the settings of a step, counted from 0 over the whole run."""
    total = config.epochs * steps_per_epoch
    # ramps multiply the schedule, so that each works with every schedule
    factor = _SCHEDULES[config.schedule](config, step, steps_per_epoch)
    return StepSettings(
        learning_rate=config.lr * factor * _ramp(step, total, config.warmup),
        eps_fraction=_ramp(step, total, config.eps_ramp),
        alpha_fraction=_ramp(step, total, config.alpha_ramp),
    )


def _ramp(step: int, total: int, length: float) -> float:
    """Rise linearly to 1 over the first `length`, a fraction of all steps."""
    # step + 1: the first step of a ramp is not 0, so it trains on something
    return min(1.0, (step + 1) / (length * total)) if length else 1.0


def _constant(config: TrainConfig, step: int, steps_per_epoch: int) -> float:
    return 1.0


def _multistep(config: TrainConfig, step: int, steps_per_epoch: int) -> float:
    """Multiply by gamma at the start of each milestone's epoch, counted from 0."""
    epoch = step // steps_per_epoch
    return config.gamma ** sum(epoch >= milestone for milestone in config.milestones)


def _cosine(config: TrainConfig, step: int, steps_per_epoch: int) -> float:
    return 0.5 * (1 + math.cos(math.pi * step / (config.epochs * steps_per_epoch)))


def _one_cycle(config: TrainConfig, step: int, steps_per_epoch: int) -> float:
    """Rise linearly, then fall along a cosine."""
    progress = step / (config.epochs * steps_per_epoch)
    if progress < ONE_CYCLE_PEAK:
        return ONE_CYCLE_START + (1 - ONE_CYCLE_START) * progress / ONE_CYCLE_PEAK
    return 0.5 * (1 + math.cos(math.pi * (progress - ONE_CYCLE_PEAK) / (1 - ONE_CYCLE_PEAK)))


_SCHEDULES: Mapping[str, Callable[[TrainConfig, int, int], float]] = {
    "constant": _constant,
    "multistep": _multistep,
    "cosine": _cosine,
    "one-cycle": _one_cycle,
}


class WeightAverage:
    """Exponential moving average of parameters and buffers.

    Averaged weights often generalise better (Izmailov et al. 2018, arXiv:1803.05407).
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = deepcopy(model).requires_grad_(False)
        self._decay = decay
        self._updates = 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Add the weights after a step."""
        self._updates += 1
        # a smaller decay at first: the random initial weights must fade quickly
        decay = min(self._decay, (1 + self._updates) / (10 + self._updates))
        pairs = zip(self.model.state_dict().values(), model.state_dict().values(), strict=True)
        # tied weights appear several times in a state dict, and must be updated once
        distinct = {mean.data_ptr(): (mean, new) for mean, new in pairs}.values()
        weights = [(mean, new) for mean, new in distinct if mean.is_floating_point()]
        # such as num_batches_tracked
        counters = [(mean, new) for mean, new in distinct if not mean.is_floating_point()]
        # one launch for all tensors of a type instead of one for each
        if weights:
            torch._foreach_lerp_(
                [mean for mean, _ in weights], [new for _, new in weights], 1 - decay
            )
        if counters:
            torch._foreach_copy_([mean for mean, _ in counters], [new for _, new in counters])

    def state(self) -> dict[str, Tensor]:
        """Return the averaged weights and the number of updates."""
        weights = {f"model/{key}": value for key, value in self.model.state_dict().items()}
        return {"updates": torch.tensor(self._updates), **weights}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self._updates = int(state["updates"])
        weights = {
            key.removeprefix("model/"): value for key, value in state.items() if key != "updates"
        }
        self.model.load_state_dict(weights)
