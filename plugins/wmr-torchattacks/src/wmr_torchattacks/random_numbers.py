"""Random numbers of third-party code as a function of (seed, image index, restart, call)."""

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
PER_IMAGE_NDIM = (2, 4)
"""Dimensions of random tensors per image: (N, classes) and (N, C, H, W). Others have fewer."""


@contextmanager
def seed_by_index(index: Tensor, seed: int, restart: int) -> Iterator[None]:
    """Make random tensors inside depend on each image's index (N,), not on the batch.

    The states of torch's generators are restored on exit.
    """
    device = index.device
    device_type = "cuda" if device.type == "cpu" else device.type
    devices = [] if device.type == "cpu" else [device]
    with (
        torch.random.fork_rng(devices=devices, device_type=device_type),
        _RandomCalls(index, seed, restart),
    ):
        yield


class _RandomCalls(TorchFunctionMode):
    """Counts random calls. Tensors with rows for the images are filled by their index."""

    def __init__(self, index: Tensor, seed: int, restart: int) -> None:
        super().__init__()
        self._index = index
        self._seed = seed
        self._restart = restart
        self._calls = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in UNIFORM and func not in NORMAL and func not in OTHER:
            return func(*args, **kwargs)
        self._calls += 1
        self._seed_generators()
        result = func(*args, **kwargs)
        num_images = len(self._index)
        is_per_image = (
            result.ndim in PER_IMAGE_NDIM and len(result) > 0 and len(result) % num_images == 0
        )
        if func in OTHER or not is_per_image:
            return result
        # torchattacks puts several rows of one image next to each other
        shape = (num_images, len(result) // num_images, *result.shape[1:])
        like = torch.empty(shape, device=self._index.device)
        sample = rng.uniform if func in UNIFORM else rng.normal
        values = sample(like, self._index, self._seed, self._restart, step=self._calls)
        with torch.no_grad():
            result.copy_(_apply_range(func, values.reshape(result.shape), args, kwargs))
        return result

    def _seed_generators(self) -> None:
        # not torch.manual_seed: before the first use of CUDA it stores the whole stack
        number = rng.derive_seed("draw", self._seed, self._restart, self._calls)
        torch.default_generator.manual_seed(number)
        if self._index.device.type == "cuda":
            torch.cuda.manual_seed(number)


def _apply_range(
    func: Any, values: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor:
    """Apply the arguments of `uniform_(from, to)` or `normal_(mean, std)`."""
    names = {Tensor.uniform_: ("from", "to"), Tensor.normal_: ("mean", "std")}.get(func)
    if names is None:
        return values
    given = dict(zip(names, args[1:], strict=False)) | kwargs
    first: float = given.get(names[0], 0.0)
    second: float = given.get(names[1], 1.0)
    if func is Tensor.uniform_:
        return first + (second - first) * values
    return first + second * values
