"""Projections and directions against their definitions."""

import pytest
import torch
from torch import Tensor

from wmr_cli.core.norms import NORMS

EPS = 0.25


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def largest(delta: Tensor) -> float:
    return float(max(abs(value) for value in delta.flatten().tolist()))


def length(delta: Tensor) -> float:
    return float(sum(value**2 for value in delta.flatten().tolist()) ** 0.5)


SIZES = {"linf": largest, "l2": length}


@pytest.fixture(params=["linf", "l2"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_size_is_the_norm_of_each_image(name: str) -> None:
    deltas = randn(6, 2, 3, 3)
    assert NORMS[name].size(deltas).tolist() == pytest.approx(
        [SIZES[name](delta) for delta in deltas]
    )


@pytest.mark.parametrize("scale", [0.01, 0.1, 1.0, 100.0])
def test_projection_is_in_the_eps_ball_and_idempotent(name: str, scale: float) -> None:
    norm = NORMS[name]
    projected = norm.project(scale * randn(20, 2, 3, 3), EPS)
    assert max(SIZES[name](delta) for delta in projected) <= EPS * (1 + 1e-12)
    torch.testing.assert_close(norm.project(projected, EPS), projected, rtol=1e-12, atol=0)


def test_projection_keeps_points_inside_the_ball(name: str) -> None:
    inside = 0.01 * randn(20, 1, 2, 2)
    assert torch.equal(NORMS[name].project(inside, EPS), inside)


def test_no_other_point_of_the_ball_is_nearer_than_the_projection(name: str) -> None:
    norm, outside = NORMS[name], randn(5, 1, 1, 3)
    candidates = randn(4000, 1, 1, 3, seed=1)
    candidates = candidates * (
        EPS
        * torch.rand(4000, 1, 1, 1, generator=torch.Generator().manual_seed(2))
        / norm.size(candidates)[:, None, None, None]
    )
    for delta in outside:
        found = norm.project(delta[None], EPS)[0]
        assert length(delta - found) <= (delta - candidates).flatten(1).norm(dim=1).min() + 1e-12


def test_projections_by_hand() -> None:
    delta = torch.tensor([3.0, -4.0, 0.0, 0.0]).reshape(1, 1, 2, 2)
    assert NORMS["linf"].project(delta, 3.5).flatten().tolist() == [3.0, -3.5, 0.0, 0.0]
    assert NORMS["l2"].project(delta, 2.5).flatten().tolist() == [1.5, -2.0, 0.0, 0.0]


def test_eps_ball_of_radius_zero_contains_only_zero(name: str) -> None:
    assert torch.equal(
        NORMS[name].project(randn(4, 1, 3, 3), 0.0), torch.zeros(4, 1, 3, 3, dtype=torch.float64)
    )


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_direction_maximises_the_product_with_the_gradient(
    name: str, scale: float, dtype: torch.dtype
) -> None:
    gradient = randn(8, 2, 3, 3, dtype=dtype) * scale
    direction = NORMS[name].direction(gradient)
    dual = {"linf": lambda g: sum(abs(value) for value in g.flatten().tolist()), "l2": length}[name]
    assert [SIZES[name](one) for one in direction] == pytest.approx([1.0] * 8, rel=1e-6)
    products = [
        sum(a * b for a, b in zip(g.flatten().tolist(), d.flatten().tolist(), strict=True))
        for g, d in zip(gradient, direction, strict=True)
    ]
    assert products == pytest.approx([dual(g / scale) * scale for g in gradient], rel=1e-5)


def test_zero_gradient_has_no_direction(name: str) -> None:
    gradient = randn(2, 1, 2, 2)
    gradient[1] = 0
    direction = NORMS[name].direction(gradient)
    assert torch.equal(direction[1], torch.zeros(1, 2, 2, dtype=torch.float64))
    assert SIZES[name](direction[0]) == pytest.approx(1)


@pytest.mark.parametrize("seed", [0, 7])
def test_random_perturbations_fill_the_ball_evenly(name: str, seed: int) -> None:
    like, index = torch.empty(4000, 1, 1, 2, dtype=torch.float64), torch.arange(4000)
    perturbations = NORMS[name].random(like, EPS, index, seed, restart=0)
    sizes = torch.tensor([SIZES[name](delta) for delta in perturbations])
    assert sizes.max() <= EPS * (1 + 1e-12)
    # in two dimensions the share of points of size at most r is (r / eps) squared
    shares = (sizes / EPS).square().sort().values
    assert (shares - torch.arange(4000) / 4000).abs().max() < 1.95 / 4000**0.5
    assert perturbations.mean(dim=0).abs().max() < 0.02 * EPS * 2


def test_random_perturbations_follow_image_seed_and_restart(name: str) -> None:
    like, index, norm = torch.empty(3, 1, 4, 4), torch.tensor([5, 6, 7]), NORMS[name]
    perturbations = norm.random(like, EPS, index, 0, restart=0)
    assert torch.equal(norm.random(like[:1], EPS, index[1:2], 0, restart=0), perturbations[1:2])
    assert not torch.equal(norm.random(like, EPS, index, 1, restart=0), perturbations)
    assert not torch.equal(norm.random(like, EPS, index, 0, restart=1), perturbations)
