"""The exact smallest logit difference of a small ReLU network, by mixed-integer programming."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from torch import nn

Floats = NDArray[np.float64]
Part = tuple[Floats, Floats]


def as_matrices(model: nn.Sequential, shape: tuple[int, ...]) -> list[Part]:
    """Return matrix and constant of each affine part between ReLUs, by applying it to units."""
    parts: list[Part] = []
    layers: list[nn.Module] = []
    size = int(np.prod(shape))

    def close() -> None:
        nonlocal layers, size, shape
        block = nn.Sequential(*layers).double().eval()
        units = torch.eye(size, dtype=torch.float64).reshape(size, *shape)
        with torch.no_grad():
            zero = block(torch.zeros(1, *shape, dtype=torch.float64))
            matrix = (block(units) - zero).flatten(1).T
        parts.append((matrix.numpy(), zero.flatten().numpy()))
        shape = tuple(zero.shape[1:])
        size = zero.numel()
        layers = []

    for layer in model:
        if isinstance(layer, nn.ReLU):
            close()
        else:
            layers.append(layer)
    close()
    return parts


def least_difference(
    parts: Sequence[Part],
    image: Floats,
    eps: float,
    row: Floats,
) -> float:
    """Return the minimum of `row` times the logits over the box, solved to optimality.

    Variables are the pixels, then for each hidden layer its outputs and the signs of its inputs.
    """
    low = np.maximum(image.ravel() - eps, 0)
    high = np.minimum(image.ravel() + eps, 1)
    sizes = [len(low)] + [n for matrix, _ in parts[:-1] for n in (len(matrix), len(matrix))]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    total = starts[-1]
    lower = np.zeros(total)
    upper = np.ones(total)
    integrality = np.zeros(total)
    lower[: sizes[0]] = low
    upper[: sizes[0]] = high
    constraints = []
    previous = 0
    for number, (matrix, constant) in enumerate(parts[:-1]):
        own, sign = 2 * number + 1, 2 * number + 2
        centre = (low + high) / 2
        radius = (high - low) / 2
        # intervals: written apart from the code under test, by matrices
        reach = np.abs(matrix) @ radius
        bottom = matrix @ centre + constant - reach - 1e-6
        top = matrix @ centre + constant + reach + 1e-6
        lower[starts[own] : starts[own + 1]] = 0
        upper[starts[own] : starts[own + 1]] = np.maximum(top, 0)
        integrality[starts[sign] : starts[sign + 1]] = 1

        def block(*pieces: tuple[int, Floats], count: int) -> Floats:
            wide = np.zeros((count, total))
            for place, values in pieces:
                wide[:, starts[place] : starts[place] + values.shape[1]] = values
            return wide

        count = len(matrix)
        unit = np.eye(count)
        # y >= W x + b, y <= W x + b - bottom * (1 - s), y <= top * s
        constraints.append(
            LinearConstraint(block((own, unit), (previous, -matrix), count=count), constant, np.inf)
        )
        constraints.append(
            LinearConstraint(
                block((own, unit), (previous, -matrix), (sign, -np.diag(bottom)), count=count),
                -np.inf,
                constant - bottom,
            )
        )
        constraints.append(
            LinearConstraint(
                block((own, unit), (sign, -np.diag(np.maximum(top, 0))), count=count), -np.inf, 0
            )
        )
        low = np.maximum(bottom, 0)
        high = np.maximum(top, 0)
        previous = own
    matrix, constant = parts[-1]
    costs = np.zeros(total)
    costs[starts[previous] : starts[previous] + matrix.shape[1]] = row @ matrix
    solution = milp(
        costs,
        constraints=constraints,
        bounds=Bounds(lower, upper),
        integrality=integrality,
        options={"mip_rel_gap": 0},
    )
    assert solution.status == 0, solution.message
    return float(solution.fun + row @ constant)
