"""The optimizer, and the pace of a step as a pure function of its number: a schedule has no state to save."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from ..config import TrainConfig


@dataclass(frozen=True)
class Pace:
    """The learning rate of a step, and the shares of the full eps and alpha that have been reached."""

    learning_rate: float
    eps_share: float = 1.0
    alpha_share: float = 1.0


def make_optimizer(config: TrainConfig, model: nn.Module) -> torch.optim.Optimizer:
    """SGD with momentum, Adam or AdamW."""
    parameters = parameter_groups(config, model)
    if config.optimizer == "sgd":
        return torch.optim.SGD(
            parameters, config.lr, momentum=config.momentum, weight_decay=config.weight_decay
        )
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, config.lr, weight_decay=config.weight_decay)


def parameter_groups(config: TrainConfig, model: nn.Module) -> list[dict[str, object]]:
    """With `decay=weights` biases and norms, all that has one dimension or none, are a group without weight decay."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if config.decay == "all":
        return [{"params": parameters}]
    groups: list[dict[str, object]] = [
        {"params": [parameter for parameter in parameters if parameter.ndim > 1]},
        {
            "params": [parameter for parameter in parameters if parameter.ndim <= 1],
            "weight_decay": 0.0,
        },
    ]
    return [group for group in groups if group["params"]]


def pace(config: TrainConfig, step: int, steps_per_epoch: int) -> Pace:
    """The pace of a step, counted from 0 over the whole run."""
    total = config.epochs * steps_per_epoch
    rate = (
        config.lr
        * _SCHEDULES[config.schedule](config, step, steps_per_epoch)
        * _ramp(step, total, config.warmup)
    )
    return Pace(rate, _ramp(step, total, config.eps_ramp), _ramp(step, total, config.alpha_ramp))


def _ramp(step: int, total: int, share: float) -> float:
    """Straight up to 1 over the first share of the run."""
    return min(1.0, (step + 1) / (share * total)) if share else 1.0


def _constant(config: TrainConfig, step: int, steps_per_epoch: int) -> float:
    return 1.0


def _multistep(config: TrainConfig, step: int, steps_per_epoch: int) -> float:
    """Times gamma at the beginning of each milestone's epoch, epochs counted from 0."""
    return config.gamma ** sum(
        step // steps_per_epoch >= milestone for milestone in config.milestones
    )


def _cosine(config: TrainConfig, step: int, steps_per_epoch: int) -> float:
    return 0.5 * (1 + math.cos(math.pi * step / (config.epochs * steps_per_epoch)))


def _one_cycle(config: TrainConfig, step: int, steps_per_epoch: int) -> float:
    """Up from a 25th over 30 % of the run, then down along a cosine."""
    progress = step / (config.epochs * steps_per_epoch)
    if progress < 0.3:
        return 0.04 + 0.96 * progress / 0.3
    return 0.5 * (1 + math.cos(math.pi * (progress - 0.3) / 0.7))


_SCHEDULES: Mapping[str, Callable[[TrainConfig, int, int], float]] = {
    "constant": _constant,
    "multistep": _multistep,
    "cosine": _cosine,
    "one-cycle": _one_cycle,
}
