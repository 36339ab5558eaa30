"""Steps to a hyperplane inside the unit cube, compared with general solvers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog, minimize
from torch import Tensor

from wmr_cli.builtins.attacks.fab_targeted import step_to_hyperplane
from wmr_cli.core.norms import NORMS


def make_problem(
    count: int = 12, dimensions: int = 6, reach: float = 0.6
) -> tuple[Tensor, Tensor, Tensor]:
    """Return points with corners of the cube, normals with zeros, and reachable changes."""
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(count, dimensions, generator=generator, dtype=torch.float64)
    points[0], points[1] = 0, 1
    normal = torch.randn(count, dimensions, generator=generator, dtype=torch.float64)
    normal[2, :3] = 0
    up = torch.where(normal > 0, 1 - points, -points)
    down = torch.where(normal > 0, -points, 1 - points)
    side = torch.where((torch.arange(count) % 2 == 0)[:, None], up, down)
    return points, normal, reach * (normal * side).sum(dim=1)


def smallest_linf(point: NDArray[np.float64], normal: NDArray[np.float64], change: float) -> float:
    """Minimise t with -t <= step <= t inside the cube and <normal, step> = change."""
    d = len(point)
    sides = np.block([[np.eye(d), -np.ones((d, 1))], [-np.eye(d), -np.ones((d, 1))]])
    bounds = [(-x, 1 - x) for x in point] + [(0, None)]
    goal = np.append(np.zeros(d), 1.0)
    return float(
        linprog(goal, sides, np.zeros(2 * d), [np.append(normal, 0.0)], [change], bounds).fun
    )


def smallest_l2(point: NDArray[np.float64], normal: NDArray[np.float64], change: float) -> float:
    bounds = [(-x, 1 - x) for x in point]
    meets = {"type": "eq", "fun": lambda step: normal @ step - change, "jac": lambda step: normal}
    found = minimize(
        lambda step: step @ step, np.zeros(len(point)), jac=lambda step: 2 * step,
        bounds=bounds, constraints=meets,
        options={"ftol": 1e-14, "maxiter": 500},
    )  # fmt: skip
    assert found.success
    return float(np.sqrt(found.fun))


@pytest.mark.parametrize(("norm", "smallest"), [("linf", smallest_linf), ("l2", smallest_l2)])
@pytest.mark.parametrize("reach", [0.0, 0.1, 0.6, 0.95])
def test_step_is_the_smallest_that_solvers_find(
    norm: str, smallest: Callable[..., Any], reach: float
) -> None:
    points, normal, change = make_problem(reach=reach)
    step = step_to_hyperplane(points, normal, change, norm)
    torch.testing.assert_close((normal * step).sum(dim=1), change, atol=1e-12, rtol=1e-12)
    assert (points + step).min() >= 0
    assert (points + step).max() <= 1
    sizes = NORMS[norm].size(step[:, None, None, :])
    expected = [
        smallest(*row) for row in zip(points.numpy(), normal.numpy(), change.numpy(), strict=True)
    ]
    assert sizes.tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_unreachable_hyperplane_gives_a_step_to_the_nearest_corner(norm: str) -> None:
    points, normal, change = make_problem(reach=1.5)
    step = step_to_hyperplane(points, normal, change, norm)
    helps = normal * change.sign()[:, None]
    corner = torch.where(helps > 0, 1.0, 0.0)
    moves = helps != 0
    torch.testing.assert_close((points + step)[moves], corner.to(step)[moves], atol=1e-12, rtol=0)
    assert (step[~moves] == 0).all()


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_zero_normal_gives_no_step(norm: str) -> None:
    points = torch.rand(3, 5, generator=torch.Generator().manual_seed(1))
    assert (
        step_to_hyperplane(points, torch.zeros(3, 5), torch.tensor([1.0, -1.0, 0.0]), norm) == 0
    ).all()
