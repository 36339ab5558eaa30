"""Random numbers of somebody else's code as a function of (seed, image index, restart, draw), whatever batch it works on."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from wmr_cli.core import rng

UNIFORM = {torch.rand, torch.rand_like, Tensor.uniform_}
NORMAL = {torch.randn, torch.randn_like, Tensor.normal_}
OTHER = {
    torch.randint,
    torch.randint_like,
    torch.randperm,
    torch.bernoulli,
    Tensor.bernoulli_,
    Tensor.random_,
}
PER_IMAGE = (2, 4)
"""Dimensions of a draw that has its own numbers for each image: (N, classes) or (N, C, H, W). Sides and places have fewer."""


@contextmanager
def drawn_by(index: Tensor, seed: int, restart: int) -> Iterator[None]:
    """Inside, torch draws for the images of this index (N,); outside, its generators are as they were."""
    device = index.device
    kind = "cuda" if device.type == "cpu" else device.type
    others = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(devices=others, device_type=kind), _Draws(index, seed, restart):
        yield


class _Draws(TorchFunctionMode):
    """Numbers every draw. One with rows for the images gets its numbers from their index, any other from its own number."""

    def __init__(self, index: Tensor, seed: int, restart: int) -> None:
        super().__init__()
        self._index, self._seed, self._restart, self._draws = index, seed, restart, 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in UNIFORM and func not in NORMAL and func not in OTHER:
            return func(*args, **kwargs)
        self._draws += 1
        self._seed_generators()
        drawn = func(*args, **kwargs)
        images = len(self._index)
        if func in OTHER or drawn.ndim not in PER_IMAGE or not len(drawn) or len(drawn) % images:
            return drawn
        # several rows of one image stand together
        like = torch.empty(
            images, len(drawn) // images, *drawn.shape[1:], device=self._index.device
        )
        make = rng.uniform if func in UNIFORM else rng.normal
        fresh = make(like, self._index, self._seed, self._restart, step=self._draws).reshape(
            drawn.shape
        )
        with torch.no_grad():
            drawn.copy_(_scaled(func, fresh, args, kwargs))
        return drawn

    def _seed_generators(self) -> None:
        # not torch.manual_seed, which notes the whole stack where CUDA has not been used yet
        number = rng.derive_seed("draw", self._seed, self._restart, self._draws)
        torch.default_generator.manual_seed(number)
        if self._index.device.type == "cuda":
            torch.cuda.manual_seed(number)


def _scaled(func: Any, fresh: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """As the caller of `uniform_(from, to)` or `normal_(mean, std)` asked."""
    names = {Tensor.uniform_: ("from", "to"), Tensor.normal_: ("mean", "std")}.get(func)
    if names is None:
        return fresh
    given = dict(zip(names, args[1:], strict=False)) | kwargs
    first: float = given.get(names[0], 0.0)
    second: float = given.get(names[1], 1.0)
    return first + (second - first) * fresh if func is Tensor.uniform_ else first + second * fresh
