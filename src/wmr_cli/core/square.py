"""Proposals of the Square attack: random squares and what changes in them.

Andriushchenko et al. 2020, arXiv:1912.00049. Each image has its own square; all squares of one
query have the same side. Random numbers are given as `draws` (N, K), uniform on [0, 1).
"""

import math
from collections.abc import Iterator
from itertools import groupby

import torch
from torch import Tensor

from . import rng

HALVING_QUERIES = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""Queries, of 10,000, after which the square's fraction of the pixels is halved."""
PLACE_DRAWS = 5
"""Draws of a query before those of the channels: two corners and one orientation."""
TILES = 5
"""Tiles per side in the starting point for L2."""
_TINY = 1e-12
"""Added to lengths that may be zero before a division."""


def square_fraction(query: int, queries: int, initial: float) -> float:
    """Fraction of the pixels in a square: halved at fixed fractions of all queries."""
    # the published schedule is for 10,000 queries; others use the same fractions of the search
    progress = int(query / queries * 10_000)
    return initial * 0.5 ** sum(progress > bound for bound in HALVING_QUERIES)


def query_phases(queries: int, initial: float) -> Iterator[tuple[float, range]]:
    """Yield the queries after the starting point, by the fraction of the pixels in a square."""
    numbers = range(1, queries)
    for fraction, group in groupby(numbers, lambda query: square_fraction(query, queries, initial)):
        found = list(group)
        yield fraction, range(found[0], found[-1] + 1)


def square_side(fraction: float, height: int, width: int, smallest: int = 1) -> int:
    """Side of a square with this fraction of the pixels, inside the image."""
    return min(max(round(math.sqrt(fraction * height * width)), smallest), height, width)


def odd_square_side(fraction: float, height: int, width: int) -> int:
    """Side of a square for L2: odd and at least 3, unless the image is too small."""
    # the two-bump pattern has a centre only if its side is odd
    return min(square_side(fraction, height, width, smallest=3) // 2 * 2 + 1, height, width)


def count_positions(length: int, side: int, edges: bool) -> int:
    """Count the positions of a square along one length, at least one.

    Without `edges` the last position is excluded, as in the public implementations.
    """
    return max(length - side + edges, 1)


def square_corners(
    corners: Tensor, side: int, height: int, width: int, edges: bool = True
) -> tuple[Tensor, Tensor]:
    """Return top and left (N,) of random squares, from draws (N, 2)."""
    top = (corners[:, 0] * count_positions(height, side, edges)).long()
    left = (corners[:, 1] * count_positions(width, side, edges)).long()
    return top, left


def random_squares(
    corners: Tensor, side: int, height: int, width: int, edges: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a random square per image: its mask (N, 1, H, W), and its top and left (N,).

    `corners` (N, 2) is uniform on [0, 1).
    """
    top, left = square_corners(corners, side, height, width, edges)
    rows = torch.arange(height, device=corners.device) - top[:, None]
    columns = torch.arange(width, device=corners.device) - left[:, None]
    is_row = (rows >= 0) & (rows < side)
    is_column = (columns >= 0) & (columns < side)
    return (is_row[:, :, None] & is_column[:, None, :])[:, None], top, left


def random_signs(draws: Tensor) -> Tensor:
    """Return -1 or 1 with equal probability, from uniform draws."""
    return 1 - 2 * (draws < 0.5).to(draws.dtype)


def start_linf(
    images: Tensor, eps: float, index: Tensor, seed: int, restart: int, edges: bool = True
) -> Tensor:
    """Return the starting point for Linf: vertical stripes of -eps or eps, one pixel wide."""
    count, channels, _, width = images.shape
    draws = rng.uniform(images.new_empty(count, channels, 1, width), index, seed, restart)
    return (images + eps * random_signs(draws)).clamp(0, 1)


def propose_linf(
    images: Tensor, best: Tensor, eps: float, fraction: float, draws: Tensor, edges: bool = True
) -> Tensor:
    """Set every channel of one square of the best images to -eps or eps."""
    height, width = images.shape[2:]
    side = square_side(fraction, height, width)
    mask, _, _ = random_squares(draws[:, :2], side, height, width, edges)
    changed = images + eps * random_signs(draws[:, PLACE_DRAWS:])[:, :, None, None]
    return torch.where(mask, changed, best).clamp(0, 1)


def propose_changes_linf(
    images: Tensor,
    best: Tensor,
    rows: Tensor,
    eps: float,
    fraction: float,
    draws: Tensor,
    edges: bool = True,
) -> tuple[Tensor, Tensor]:
    """Propose like `propose_linf` for rows (M,) of the batch, but only what changes an image.

    Returns the numbers (K,) of these proposals and their images. Reads and writes squares alone.
    """
    height, width = images.shape[2:]
    side = square_side(fraction, height, width)
    top, left = square_corners(draws[:, :2], side, height, width, edges)
    signs = random_signs(draws[:, PLACE_DRAWS:])[:, :, None, None]
    values = read_squares(images, rows, top, left, side)
    values = (values + eps * signs).clamp_(0, 1)
    is_changed = values != read_squares(best, rows, top, left, side)
    changed = is_changed.flatten(1).any(dim=1).nonzero().squeeze(1)
    moved = copy_rows(best, rows[changed])
    numbers = torch.arange(len(changed), device=rows.device)
    places = _find_pixels(moved, numbers, top[changed], left[changed], side)
    _flatten_memory(moved).scatter_(0, places.flatten(), values[changed].flatten())
    return changed, moved


def read_squares(images: Tensor, rows: Tensor, top: Tensor, left: Tensor, side: int) -> Tensor:
    """Return the squares at these positions of these rows, all (M,), as (M, C, side, side)."""
    places = _find_pixels(images, rows, top, left, side)
    return _flatten_memory(images).index_select(0, places.flatten()).reshape(places.shape)


def copy_rows(images: Tensor, rows: Tensor) -> Tensor:
    """Return these rows (M,) in the memory format of the images."""
    # several times as fast as an index expression
    if images.is_contiguous():
        return images.index_select(0, rows)
    return images.permute(0, 2, 3, 1).index_select(0, rows).permute(0, 3, 1, 2)


def _find_pixels(images: Tensor, rows: Tensor, top: Tensor, left: Tensor, side: int) -> Tensor:
    """Return the positions in memory of the pixels of squares, (M, C, side, side)."""
    image_stride, channel_stride, row_stride, column_stride = images.stride()
    corners = rows * image_stride + top * row_stride + left * column_stride
    channels = torch.arange(images.shape[1], device=rows.device) * channel_stride
    offsets = torch.arange(side, device=rows.device)
    inside = offsets[:, None] * row_stride + offsets * column_stride
    return corners[:, None, None, None] + (channels[:, None, None] + inside)


def _flatten_memory(images: Tensor) -> Tensor:
    """Return all pixels in the order in which they are in memory, in any dense format."""
    return images.as_strided((images.numel(),), (1,))


def propose_changes_l2(
    images: Tensor,
    best: Tensor,
    rows: Tensor,
    eps: float,
    fraction: float,
    draws: Tensor,
    edges: bool = True,
) -> tuple[Tensor, Tensor]:
    """Return the numbers (M,) and images of the proposals of `propose_l2` for rows (M,)."""
    numbers = torch.arange(len(rows), device=rows.device)
    moved = propose_l2(copy_rows(images, rows), copy_rows(best, rows), eps, fraction, draws, edges)
    return numbers, moved


def bump(height: int, width: int) -> Tensor:
    """Return a bump in a rectangle (H, W): nested squares, the k-th from the inside adds 1/k²."""
    radius = max(height, width) // 2 + 1
    layers = torch.arange(1, radius + 1, dtype=torch.float32) ** -2
    # a pixel at distance d from the middle is covered by all squares from the d-th outwards
    height_at_distance = layers.flip(0).cumsum(dim=0).flip(0)
    rows = torch.arange(height) - height // 2
    columns = torch.arange(width) - width // 2
    return height_at_distance[torch.maximum(rows.abs()[:, None], columns.abs()[None, :])]


def two_bump_pattern(side: int) -> Tensor:
    """Return a square (side, side) of L2 norm 1: a positive bump above an equal negative one."""
    half = side // 2
    positive = bump(half, side)
    negative = -bump(side - half, side)
    pattern = torch.cat(
        [positive / positive.square().sum().sqrt(), negative / negative.square().sum().sqrt()]
    )
    return pattern / pattern.square().sum().sqrt()


def tile_positions(length: int, tile: int, edges: bool) -> tuple[int, int]:
    """Return where the tiles of the starting point begin along one length, and their number."""
    count = min(TILES, length)
    begin = (length - count * tile) // 2
    if edges:
        return begin, count
    # the public code continues to the end: images of 8 pixels have seven tiles, not five, and no
    # square ever reaches the last one
    return begin, (length - begin) // tile


def start_l2(
    images: Tensor, eps: float, index: Tensor, seed: int, restart: int, edges: bool = True
) -> Tensor:
    """Return the starting point for L2: a grid of two-bump tiles, of total length eps.

    Tiles are upright or transposed, with a random sign per tile and channel.
    """
    count, channels, height, width = images.shape
    tile = max(min(height, width) // TILES, 1)
    top, rows = tile_positions(height, tile, edges)
    left, columns = tile_positions(width, tile, edges)
    draws = rng.uniform(images.new_empty(count, 1 + channels, rows, columns), index, seed, restart)
    draws = draws.repeat_interleave(tile, dim=2).repeat_interleave(tile, dim=3)
    # the first draw of a tile is its orientation, shared by all channels
    pattern = two_bump_pattern(tile).to(images)
    is_transposed = draws[:, :1] < 0.5
    tiles = torch.where(
        is_transposed, pattern.T.repeat(rows, columns), pattern.repeat(rows, columns)
    )
    delta = torch.zeros_like(images)
    signed_tiles = tiles * random_signs(draws[:, 1:])
    delta[:, :, top : top + rows * tile, left : left + columns * tile] = signed_tiles
    return (images + eps * delta / _image_length(delta)).clamp(0, 1)


def propose_l2(
    images: Tensor, best: Tensor, eps: float, fraction: float, draws: Tensor, edges: bool = True
) -> Tensor:
    """Move the perturbation of a second square into a first one, with total length eps.

    The first square keeps its direction, changed towards a two-bump pattern.
    """
    channels, height, width = images.shape[1:]
    side = odd_square_side(fraction, height, width)
    delta = best - images
    mask, top, left = random_squares(draws[:, 0:2], side, height, width, edges)
    other, _, _ = random_squares(draws[:, 2:4], side, height, width, edges)
    inside = delta * mask
    # what clamping to [0, 1] has left of the radius is distributed over the channels
    unused = (eps**2 - _image_length(delta).square()).clamp(min=0)
    available = (delta * (mask | other)).square().sum(dim=(2, 3), keepdim=True) + unused / channels
    pattern = _place_pattern(side, top, left, is_transposed=draws[:, 4] < 0.5, like=images) * mask
    signs = random_signs(draws[:, PLACE_DRAWS:])[:, :, None, None]
    direction = pattern * signs + inside / (_channel_length(inside) + _TINY)
    new_inside = direction / (_channel_length(direction) + _TINY) * available.sqrt()
    changed = torch.where(mask, new_inside, delta * ~other)
    return (images + eps * changed / (_image_length(changed) + _TINY)).clamp(0, 1)


def _place_pattern(
    side: int, top: Tensor, left: Tensor, is_transposed: Tensor, like: Tensor
) -> Tensor:
    """Return two-bump patterns at these positions, (N, 1, H, W); valid inside the squares only."""
    pattern = two_bump_pattern(side).to(like)
    rows = torch.arange(like.shape[2], device=like.device) - top[:, None]
    columns = torch.arange(like.shape[3], device=like.device) - left[:, None]
    # clamped to valid positions: the caller masks everything outside the square
    rows = rows.clamp(0, side - 1)[:, :, None]
    columns = columns.clamp(0, side - 1)[:, None, :]
    upright = pattern[rows, columns]
    transposed = pattern.T[rows, columns]
    return torch.where(is_transposed[:, None, None], transposed, upright)[:, None]


def _image_length(delta: Tensor) -> Tensor:
    """L2 length per image. (N, C, H, W) to (N, 1, 1, 1)."""
    return delta.square().sum(dim=(1, 2, 3), keepdim=True).sqrt()


def _channel_length(delta: Tensor) -> Tensor:
    """L2 length per channel. (N, C, H, W) to (N, C, 1, 1)."""
    return delta.square().sum(dim=(2, 3), keepdim=True).sqrt()
