"""The nearest point of a hyperplane inside the cube [0, 1]^d, exactly."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

_PACES: Mapping[str, Callable[[Tensor], Tensor]] = {"linf": torch.ones_like, "l2": torch.abs}
"""How fast each pixel moves as the distance grows: all alike in Linf, in proportion to the normal in L2."""


def step_to_hyperplane(points: Tensor, normal: Tensor, change: Tensor, norm: str) -> Tensor:
    """The smallest step, in this norm, that changes <normal, point> by `change` (N,) without leaving [0, 1].

    Points and normal (N, d) to (N, d). Where the cube does not reach the hyperplane, the step to the nearest corner.

    Each pixel moves the way that helps, at its pace, until it meets the wall: after the time t by min(t * pace, room).
    What is gained grows piecewise linearly with t and bends where a pixel meets its wall, so sorting these times gives
    the piece in which the wanted change lies.
    """
    slopes = normal * torch.where(change < 0, -1, 1)[:, None]
    room = torch.where(slopes > 0, 1 - points, points).clamp(min=0)
    pace = _PACES[norm](slopes)
    # a pixel that changes nothing has no part in it
    walls = torch.where(slopes == 0, 0, room / torch.where(pace == 0, 1, pace))
    time = _time_to(change.abs(), walls, slopes.abs() * pace)
    return slopes.sign() * torch.minimum(time[:, None] * pace, room)


def _time_to(gain: Tensor, walls: Tensor, speeds: Tensor) -> Tensor:
    """When Σ speed * min(t, wall) reaches the gain, (N,); the last wall where it never does. Walls, speeds (N, d)."""
    walls, order = walls.sort(dim=1)
    speeds = speeds.gather(1, order)
    # before the k-th wall the pixels from k on still move
    moving = speeds.flip(1).cumsum(dim=1).flip(1)
    lengths = torch.diff(walls, dim=1, prepend=torch.zeros_like(walls[:, :1]))
    gained = (moving * lengths).cumsum(dim=1)
    piece = torch.searchsorted(gained, gain[:, None].contiguous()).clamp(max=walls.shape[1] - 1)
    missing = gain - (gained - moving * lengths).gather(1, piece).squeeze(1)
    speed = moving.gather(1, piece).squeeze(1)
    begin = (walls - lengths).gather(1, piece).squeeze(1)
    time = begin + missing / torch.where(speed > 0, speed, 1)
    return torch.minimum(time, walls[:, -1])
