"""Choose the free parameters of linear bounds by gradient steps."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .network import Network
from .propagation import (
    Bounds,
    Domain,
    LinearBounds,
    Parameters,
    Rows,
    bound_backwards,
    list_relus,
    start_slopes,
)

DECAY = 0.93
"""Factor of the step size after each step."""


@dataclass(frozen=True)
class Adam:
    """Steps of Adam, each at most about this long."""

    steps: int
    rate: float


def maximise_bounds(
    network: Network,
    rows: Rows,
    domain: Domain,
    bounds: Bounds,
    adam: Adam,
    signs: Mapping[int, Tensor] | None = None,
) -> LinearBounds:
    """Return the best bound of each row, and the coefficients of the last step.

    Parameters are the lower slopes of ReLUs, and multipliers where `signs` (P, *shape) are not 0.
    All values of them give a valid bound, so that each row keeps its best one.
    """
    slopes = {
        number: start_slopes(bounds.boxes[used])[rows.image] for number, used in list_relus(network)
    }
    known = signs or {}
    multipliers = {used: torch.zeros_like(sign) for used, sign in known.items()}
    free = [*slopes.values(), *multipliers.values()]
    for parameter in free:
        parameter.requires_grad_(adam.steps > 0)
    # a network without ReLUs has no parameters
    steps = adam.steps if free else 0
    optimizer = torch.optim.Adam(free, lr=adam.rate) if steps else None
    best = rows.values.new_full((len(rows.values),), -torch.inf)
    for step in range(steps + 1):
        with torch.set_grad_enabled(step < steps):
            signed = {used: multipliers[used] * sign for used, sign in known.items()}
            found = bound_backwards(network, rows, domain, bounds, Parameters(slopes, signed))
        best = torch.maximum(best, found.lower.detach())
        if optimizer is None or step == steps:
            break
        optimizer.zero_grad()
        (-found.lower.sum()).backward()
        optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] *= DECAY
        with torch.no_grad():
            for slope in slopes.values():
                slope.clamp_(0, 1)
            for multiplier in multipliers.values():
                multiplier.clamp_(min=0)
    coefficients = {number: values.detach() for number, values in found.coefficients.items()}
    return LinearBounds(best, coefficients)
