"""Expectation over transformation (EOT): stochastic models, averaged over draws.

Athalye et al. 2018, arXiv:1802.00420. A draw is one pass of a model with its own random numbers.
One draw shows little of what a stochastic model does on average, and its gradient is noisy.
"""

import math
from collections.abc import Sequence
from functools import reduce
from typing import Literal

import torch
from torch import Tensor, nn

from .losses import log_probabilities
from .protocols import AttackResult
from .restarts import pick_lower_margin
from .rng import derive_seed

DrawRule = Literal["mean", "worst"]
"""How several draws decide about an image: by their mean probabilities, or by the worst of them."""


class AveragedModel(nn.Module):
    """A stochastic model that is averaged over a number of draws.

    A pass returns the logarithms of the mean probabilities (N, C), which are logits of the
    expected prediction. `input_gradient` returns the mean gradient of the draws.
    """

    def __init__(self, model: nn.Module, draws: int) -> None:
        super().__init__()
        self.model = model
        self.draws = draws

    def forward(self, images: Tensor) -> Tensor:
        """Return the log of the mean probabilities, (N, C)."""
        return mean_of_draws([self.model(images) for _ in range(self.draws)])


def average_draws(model: nn.Module, draws: int) -> nn.Module:
    """Return a model that is averaged over draws: for one draw, the model itself."""
    return model if draws == 1 else AveragedModel(model, draws)


def mean_of_draws(logits: Sequence[Tensor]) -> Tensor:
    """Return the log of the mean probabilities (N, C) of several draws."""
    log_probs = torch.stack([log_probabilities(draw) for draw in logits])
    return log_probs.logsumexp(dim=0) - math.log(len(logits))


def worst_of_draws(logits: Sequence[Tensor], labels: Tensor) -> Tensor:
    """Return for each image the logits (N, C) of the draw of lowest margin."""
    draws = [AttackResult(labels.reshape(-1, 1, 1, 1), labels, draw) for draw in logits]
    return reduce(
        lambda first, second: pick_lower_margin(first, second, labels), draws
    ).require_logits()


def combine_draws(logits: Sequence[Tensor], labels: Tensor, rule: DrawRule) -> Tensor:
    """Return the logits (N, C) that decide about each image; those of a single draw unchanged."""
    if len(logits) == 1:
        return logits[0]
    return worst_of_draws(logits, labels) if rule == "worst" else mean_of_draws(logits)


def derive_draw_seed(seed: int, purpose: str, first_index: int, draw: int = 0) -> int:
    """Return the seed of a model's own random numbers in a batch that begins with this image."""
    return derive_seed("model draws", purpose, seed, first_index, draw)
