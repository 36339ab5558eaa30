"""How a check speaks, and what several checks ask."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from ..core.protocols import Batch, HasState
from ..core.traits import Traits, read_traits
from ..errors import BrokenContract


def require(is_kept: bool | Tensor, broken: str) -> None:
    """Raise AssertionError with `broken` unless the promise is kept. Not an `assert`: that is dropped by `python -O`."""
    if not bool(is_kept):
        raise AssertionError(broken)


def all_close(first: Tensor, second: Tensor, atol: float = 1e-5, rtol: float = 0.0) -> bool:
    """Equal up to rounding; infinities are equal to themselves, NaN to nothing."""
    return first.shape == second.shape and torch.allclose(first, second, atol=atol, rtol=rtol)


def tensors_equal(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    """The same names with the same bits."""
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


def copy_state(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, by value: writing through `.data` leaves no other trace."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


@contextmanager
def batch_unchanged(batch: Batch, who: str) -> Iterator[None]:
    """What happens inside does not write into the batch."""
    before = deepcopy(batch)
    yield
    for name in ("images", "labels", "index"):
        require(
            torch.equal(getattr(before, name), getattr(batch, name)),
            f"{who} wrote into the {name} that it was given",
        )


def require_traits(component: object, kind: type[Traits], what: str) -> Traits:
    """Return the traits of a component; raise AssertionError where `wmr` would refuse them."""
    try:
        return read_traits(component, kind, what)
    except BrokenContract as error:
        raise AssertionError(f"{error}: {error.hint}") from error


def check_state(part: Any, fresh: Any, who: str) -> None:
    """`state()` gives tensors that `load_state` of a fresh part brings back. A part without state has neither."""
    if not isinstance(part, HasState):
        return
    state = part.state()
    is_dict = isinstance(state, dict) and all(isinstance(value, Tensor) for value in state.values())
    require(is_dict, f"`state()` of {who} is not a dict of tensors")
    if state:  # an empty one is not stored, so it is not brought back either
        fresh.load_state({name: tensor.clone() for name, tensor in state.items()})
        require(
            tensors_equal(state, fresh.state()),
            f"what `load_state` of {who} is given does not come back from `state()`",
        )
