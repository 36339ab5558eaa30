"""The optimizer, and the learning rate as a pure function of the step: a schedule has no state to save."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import nn

from ..config import TrainConfig


def make_optimizer(config: TrainConfig, model: nn.Module) -> torch.optim.Optimizer:
    """SGD with momentum, Adam or AdamW."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if config.optimizer == "sgd":
        return torch.optim.SGD(parameters, config.lr, momentum=config.momentum, weight_decay=config.weight_decay)
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, config.lr, weight_decay=config.weight_decay)


def learning_rate(config: TrainConfig, step: int, steps_per_epoch: int) -> float:
    """The learning rate of a step, counted from 0 over the whole run."""
    return config.lr * _SCHEDULES[config.schedule](config, step, steps_per_epoch)


def _constant(config: TrainConfig, step: int, steps_per_epoch: int) -> float:
    return 1.0


def _multistep(config: TrainConfig, step: int, steps_per_epoch: int) -> float:
    """Times gamma at the beginning of each milestone's epoch, epochs counted from 0."""
    return config.gamma ** sum(step // steps_per_epoch >= milestone for milestone in config.milestones)


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
