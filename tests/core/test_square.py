"""Proposals of the Square attack: sizes, positions, and changes of squares."""

import math

import pytest
import torch
from torch import Tensor

from wmr_cli.core import square as squares
from wmr_cli.core.norms import NORMS

INDEX = torch.arange(40)


def images(count: int = 40, channels: int = 3, height: int = 9, width: int = 7) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    made = torch.rand(count, channels, height, width, generator=generator)
    made[0], made[1] = 0, 1
    return made


def draws(count: int = 40, channels: int = 3, seed: int = 1) -> Tensor:
    return torch.rand(
        count, squares.PLACE_DRAWS + channels, generator=torch.Generator().manual_seed(seed)
    )


@pytest.mark.parametrize("queries", [10_000, 5_000, 1_000])
def test_fraction_is_halved_nine_times_at_the_published_queries(queries: int) -> None:
    bounds = [0, 10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000]
    for halvings, bound in enumerate(bounds):
        query = math.floor((bound + 10) * queries / 10_000)
        assert squares.square_fraction(query, queries, 0.8) == 0.8 / 2 ** (
            halvings if query / queries * 10_000 >= bound + 1 else 0
        )
    assert squares.square_fraction(0, queries, 0.8) == 0.8
    assert squares.square_fraction(queries - 1, queries, 0.8) == 0.8 / 512


def test_side_matches_the_fraction_and_stays_inside_the_image() -> None:
    assert squares.square_side(0.8, 28, 28) == 25
    assert squares.square_side(0.001, 28, 28) == 1
    assert squares.square_side(0.001, 28, 28, smallest=3) == 3
    assert squares.square_side(1.0, 4, 30) == 4


def test_even_side_grows_by_one_in_l2_if_the_image_has_room() -> None:
    assert [
        squares.odd_square_side(fraction, 32, 32) for fraction in (0.8, 0.4, 0.2, 0.1, 0.001)
    ] == [
        29,
        21,
        15,
        11,
        3,
    ]
    assert squares.odd_square_side(1.0, 8, 8) == 8
    assert squares.odd_square_side(0.5, 2, 3) == 2


def test_random_squares_reach_every_corner() -> None:
    mask, top, left = squares.random_squares(
        torch.rand(500, 2, generator=torch.Generator().manual_seed(2)), 3, 9, 7
    )
    assert mask.shape == (500, 1, 9, 7)
    assert (mask.sum(dim=(1, 2, 3)) == 9).all()
    assert (int(top.min()), int(top.max()), int(left.min()), int(left.max())) == (0, 6, 0, 4)
    assert mask[7, 0, top[7] : top[7] + 3, left[7] : left[7] + 3].all()


def test_without_edges_no_square_reaches_the_last_row_or_column() -> None:
    corners = torch.rand(500, 2, generator=torch.Generator().manual_seed(2))
    mask, top, left = squares.random_squares(corners, 3, 9, 7, edges=False)
    assert (mask.sum(dim=(1, 2, 3)) == 9).all()
    assert (int(top.min()), int(top.max()), int(left.min()), int(left.max())) == (0, 5, 0, 3)
    assert not mask[:, :, -1].any()
    assert not mask[..., -1].any()


def test_without_edges_a_square_of_full_side_has_one_position() -> None:
    mask, top, left = squares.random_squares(torch.rand(40, 2), 7, 9, 7, edges=False)
    assert not left.any()
    assert set(top.tolist()) == {0, 1}
    assert (mask.sum(dim=(1, 2, 3)) == 49).all()


@pytest.mark.parametrize("fraction", [0.8, 0.1, 0.01])
def test_linf_proposal_moves_one_square_to_the_boundary(fraction: float) -> None:
    clean = images()
    best = squares.start_linf(clean, 0.1, INDEX, 0, 0)
    moved = squares.propose_linf(clean, best, 0.1, fraction, draws())
    edge = torch.minimum((clean + 0.1).clamp(max=1), moved) == moved
    assert edge.all()
    changed = (moved != best).any(dim=1).sum(dim=(1, 2))
    assert (changed <= squares.square_side(fraction, 9, 7) ** 2).all()
    assert changed.max() > 0
    on_the_edge = (
        torch.isclose((moved - clean).abs(), torch.tensor(0.1)) | (moved == 0) | (moved == 1)
    )
    assert on_the_edge.all()


def test_linf_start_is_vertical_stripes() -> None:
    clean = torch.full((40, 3, 9, 7), 0.5)
    delta = squares.start_linf(clean, 0.1, INDEX, 0, 0) - clean
    assert torch.allclose(delta.abs(), torch.tensor(0.1))
    assert torch.equal(delta, delta[:, :, :1].expand_as(delta))
    assert 0.4 < (delta > 0).float().mean() < 0.6


@pytest.mark.parametrize("edges", [True, False])
@pytest.mark.parametrize("fraction", [1.0, 0.8, 0.1, 0.01])
@pytest.mark.parametrize(
    ("channels", "height", "width"), [(3, 9, 7), (1, 8, 8), (1, 4, 4), (2, 2, 3)]
)
def test_l2_proposals_have_length_eps(
    fraction: float, channels: int, height: int, width: int, edges: bool
) -> None:
    clean = torch.full((40, channels, height, width), 0.5)
    best = squares.start_l2(clean, 0.3, INDEX, 0, 0, edges)
    for seed in range(4):
        sizes = NORMS["l2"].size(best - clean)
        torch.testing.assert_close(sizes, torch.full_like(sizes, 0.3), atol=1e-5, rtol=0)
        best = squares.propose_l2(
            clean, best, 0.3, fraction, draws(channels=channels, seed=seed), edges
        )
    at_corners = images(channels=channels, height=height, width=width)
    first = squares.start_l2(at_corners, 0.3, INDEX, 0, 0, edges)
    moved = squares.propose_l2(at_corners, first, 0.3, fraction, draws(channels=channels), edges)
    assert (NORMS["l2"].size(moved - at_corners) <= 0.3 + 1e-6).all()
    assert moved.min() >= 0
    assert moved.max() <= 1


def test_l2_proposal_only_rescales_outside_the_two_squares() -> None:
    clean = torch.full((40, 1, 12, 12), 0.5)
    best = squares.start_l2(clean, 0.3, INDEX, 0, 0)
    numbers = draws(channels=1)
    delta, moved = best - clean, squares.propose_l2(clean, best, 0.3, 0.05, numbers) - clean
    first, _, _ = squares.random_squares(numbers[:, :2], 3, 12, 12)
    second, _, _ = squares.random_squares(numbers[:, 2:4], 3, 12, 12)
    emptied = second & ~first
    assert (moved[emptied].abs() < 1e-6).all()
    apart = ~(first | second).any(dim=1, keepdim=True)
    torch.testing.assert_close(moved[apart], delta[apart], atol=1e-5, rtol=0)


def test_two_bump_pattern_equals_hand_computation() -> None:
    middle, ring = 1 + 1 / 4, 1 / 4
    expected = torch.tensor(
        [[ring] * 3, [middle if column == 1 else ring for column in range(3)], [ring] * 3]
    )
    torch.testing.assert_close(squares.bump(3, 3), expected)
    square = squares.two_bump_pattern(5)
    assert square.norm().item() == pytest.approx(1)
    assert (square[:2] > 0).all()
    assert (square[2:] < 0).all()


@pytest.mark.parametrize("side", [2, 3, 5, 8])
def test_both_bumps_have_equal_length(side: int) -> None:
    square = squares.two_bump_pattern(side)
    assert square[: side // 2].norm().item() == pytest.approx(math.sqrt(1 / 2))
    assert square[side // 2 :].norm().item() == pytest.approx(math.sqrt(1 / 2))


def test_l2_start_is_a_grid_of_upright_or_transposed_tiles() -> None:
    clean = torch.full((40, 3, 20, 20), 0.5)
    delta = squares.start_l2(clean, 0.3, INDEX, 0, 0) - clean
    tiles = delta.unfold(2, 4, 4).unfold(3, 4, 4).flatten(2, 3)
    pattern = squares.two_bump_pattern(4) * 0.3 / math.sqrt(75)
    ways = (pattern, pattern.T)
    is_upright, is_turned = (
        (tiles * tiles[..., :1, :1].sign() - one).abs().amax(dim=(3, 4)) < 1e-6 for one in ways
    )
    assert (is_upright ^ is_turned).all()
    assert torch.equal(is_turned[:, 0], is_turned[:, 2])
    assert 0.4 < is_turned.float().mean() < 0.6


def test_without_edges_the_l2_start_has_the_tiles_of_the_public_code() -> None:
    published = {
        5: (0, 5),
        6: (0, 6),
        7: (1, 6),
        8: (1, 7),
        9: (2, 7),
        10: (0, 5),
        13: (1, 6),
        20: (0, 5),
        28: (1, 5),
        32: (1, 5),
    }
    assert {
        length: squares.tile_positions(length, length // 5, edges=False) for length in published
    } == published
    assert {
        length: squares.tile_positions(length, length // 5, edges=True) for length in (8, 13, 28)
    } == {
        8: (1, 5),
        13: (1, 5),
        28: (1, 5),
    }


@pytest.mark.parametrize("edges", [True, False])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_proposals_change_the_last_row_and_column_with_edges_only(norm: str, edges: bool) -> None:
    first, then = {
        "linf": (squares.start_linf, squares.propose_linf),
        "l2": (squares.start_l2, squares.propose_l2),
    }[norm]
    clean = torch.full((40, 1, 8, 8), 0.5)
    best = first(clean, 0.1, INDEX, 0, 0, edges=False)
    is_changed = (then(clean, best, 0.1, 0.8, draws(channels=1), edges) - best).abs() > 1e-6
    assert is_changed.any()
    assert (bool(is_changed[:, :, -1].any()), bool(is_changed[..., -1].any())) == (edges, edges)
