"""Random squares inside images, and the changes that a search without gradients tries in them.

(Andriushchenko et al. 2020, arXiv:1912.00049.) Every image has its own square; all of one query have the same side.
Random numbers come in as `draws` (N, K), uniform on [0, 1).
"""

import math

import torch
from torch import Tensor

from . import rng

HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""After how many of 10,000 queries the share of pixels in a square is halved."""
PLACE_DRAWS = 5
"""Draws of a query before those of the channels: two corners and a coin."""
TILES = 5
"""The first guess in L2 has so many tiles per side."""
_TINY = 1e-12


def share(query: int, queries: int, first: float) -> float:
    """Which share of the pixels a square has in this query: piecewise constant, whatever the number of queries."""
    progress = int(query / queries * 10_000)
    return first * 0.5 ** sum(progress > bound for bound in HALVINGS)


def side(share: float, height: int, width: int, smallest: int = 1) -> int:
    """The side of a square with this share of the pixels, inside the image."""
    return min(max(round(math.sqrt(share * height * width)), smallest), height, width)


def odd_side(share: float, height: int, width: int) -> int:
    """The side of a square in L2: 3 or more, and one more where it is even, as long as the image has room."""
    return min(side(share, height, width, smallest=3) // 2 * 2 + 1, height, width)


def places(length: int, side: int, edges: bool) -> int:
    """At how many places along this length a square can begin: all, or without `edges` all but the last; one at least."""
    return max(length - side + edges, 1)


def windows(
    corners: Tensor, side: int, height: int, width: int, edges: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """A square at a random place of each image: its mask (N, 1, H, W), and where it begins, two tensors (N,).

    `corners` (N, 2) is uniform on [0, 1). Without `edges` no square reaches the last row or column unless it has no other place.
    """
    top = (corners[:, 0] * places(height, side, edges)).long()
    left = (corners[:, 1] * places(width, side, edges)).long()
    rows = torch.arange(height, device=corners.device) - top[:, None]
    columns = torch.arange(width, device=corners.device) - left[:, None]
    is_row, is_column = (rows >= 0) & (rows < side), (columns >= 0) & (columns < side)
    return (is_row[:, :, None] & is_column[:, None, :])[:, None], top, left


def signs(draws: Tensor) -> Tensor:
    """-1 or 1."""
    return 1 - 2 * (draws < 0.5).to(draws.dtype)


def first_linf(
    images: Tensor, eps: float, index: Tensor, seed: int, restart: int, edges: bool = True
) -> Tensor:
    """Vertical stripes of -eps or eps, one pixel wide; the same whatever `edges`."""
    count, channels, _, width = images.shape
    stripes = signs(rng.uniform(images.new_empty(count, channels, 1, width), index, seed, restart))
    return (images + eps * stripes).clamp(0, 1)


def next_linf(
    images: Tensor, best: Tensor, eps: float, share: float, draws: Tensor, edges: bool = True
) -> Tensor:
    """The best image so far, with every channel of one square at -eps or eps."""
    height, width = images.shape[2:]
    mask, _, _ = windows(draws[:, :2], side(share, height, width), height, width, edges)
    changed = images + eps * signs(draws[:, PLACE_DRAWS:])[:, :, None, None]
    return torch.where(mask, changed, best).clamp(0, 1)


def bump(height: int, width: int) -> Tensor:
    """A hill in the middle of a rectangle: nested squares, the k-th from the inside adding 1/k². (height, width)."""
    reach = max(height, width) // 2 + 1
    layers = torch.arange(1, reach + 1, dtype=torch.float32) ** -2
    slope = layers.flip(0).cumsum(dim=0).flip(0)  # by the distance from the middle
    rows, columns = (torch.arange(length) - length // 2 for length in (height, width))
    return slope[torch.maximum(rows.abs()[:, None], columns.abs()[None, :])]


def hill_and_valley(side: int) -> Tensor:
    """A square of length 1 in L2 whose upper half is a hill and whose lower half a valley as long. (side, side)."""
    half = side // 2
    hill, valley = (
        part / part.square().sum().sqrt() for part in (bump(half, side), -bump(side - half, side))
    )
    square = torch.cat([hill, valley])
    return square / square.square().sum().sqrt()


def tiling(length: int, tile: int, edges: bool) -> tuple[int, int]:
    """Where the tiles of the first guess begin along this length, and how many there are.

    Without `edges` they go on to the end, as in the public code: images of 15 pixels or more have room for five only, but those
    of 8 have seven, and the change in the last of them stays there, as no square reaches it.
    """
    count = min(TILES, length)
    begin = (length - count * tile) // 2
    return begin, count if edges else (length - begin) // tile


def first_l2(
    images: Tensor, eps: float, index: Tensor, seed: int, restart: int, edges: bool = True
) -> Tensor:
    """A grid of tiles, hill and valley each, some turned, with a random sign in every tile and channel, of length eps."""
    count, channels, height, width = images.shape
    tile = max(min(height, width) // TILES, 1)
    (top, down), (left, across) = tiling(height, tile, edges), tiling(width, tile, edges)
    coins = rng.uniform(images.new_empty(count, 1 + channels, down, across), index, seed, restart)
    coins = coins.repeat_interleave(tile, dim=2).repeat_interleave(tile, dim=3)
    pattern = hill_and_valley(tile).to(images)
    tiles = torch.where(
        coins[:, :1] < 0.5, pattern.T.repeat(down, across), pattern.repeat(down, across)
    )
    delta = torch.zeros_like(images)
    delta[:, :, top : top + down * tile, left : left + across * tile] = tiles * signs(coins[:, 1:])
    return (images + eps * delta / _whole_length(delta)).clamp(0, 1)


def next_l2(
    images: Tensor, best: Tensor, eps: float, share: float, draws: Tensor, edges: bool = True
) -> Tensor:
    """The change of a second square moves into a first one, which turns towards a hill and a valley; the length is eps."""
    channels, height, width = images.shape[1:]
    edge = odd_side(share, height, width)
    delta = best - images
    mask, top, left = windows(draws[:, 0:2], edge, height, width, edges)
    other, _, _ = windows(draws[:, 2:4], edge, height, width, edges)
    inside = delta * mask
    unused = (eps**2 - _whole_length(delta).square()).clamp(min=0)
    available = (delta * (mask | other)).square().sum(dim=(2, 3), keepdim=True) + unused / channels
    pattern = _placed(edge, top, left, is_turned=draws[:, 4] < 0.5, like=images) * mask
    towards = pattern * signs(draws[:, PLACE_DRAWS:])[:, :, None, None] + inside / (
        _length(inside) + _TINY
    )
    changed = torch.where(
        mask, towards / (_length(towards) + _TINY) * available.sqrt(), delta * ~other
    )
    return (images + eps * changed / (_whole_length(changed) + _TINY)).clamp(0, 1)


def _placed(side: int, top: Tensor, left: Tensor, is_turned: Tensor, like: Tensor) -> Tensor:
    """Hill and valley at these places, side by side where turned. (N, 1, H, W), right inside the squares only."""
    pattern = hill_and_valley(side).to(like)
    rows = (torch.arange(like.shape[2], device=like.device) - top[:, None]).clamp(0, side - 1)[
        :, :, None
    ]
    columns = (torch.arange(like.shape[3], device=like.device) - left[:, None]).clamp(0, side - 1)[
        :, None, :
    ]
    return torch.where(is_turned[:, None, None], pattern.T[rows, columns], pattern[rows, columns])[
        :, None
    ]


def _whole_length(delta: Tensor) -> Tensor:
    """The L2 length of every image. (N, C, H, W) to (N, 1, 1, 1)."""
    return delta.square().sum(dim=(1, 2, 3), keepdim=True).sqrt()


def _length(delta: Tensor) -> Tensor:
    """The L2 length of every channel. (N, C, H, W) to (N, C, 1, 1)."""
    return delta.square().sum(dim=(2, 3), keepdim=True).sqrt()
