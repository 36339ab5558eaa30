"""A network up to one of its layers, without knowing how it is written."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from ...errors import BadInput


class _Reached(Exception):
    """The way out of a forward pass, not an error."""

    def __init__(self, found: Any) -> None:
        self.found = found


def find_first_layer(model: nn.Module, images: Tensor) -> nn.Module:
    """The layer with parameters of its own, and no layers inside, that a forward pass enters first."""

    def entered(module: nn.Module, args: Any) -> None:
        raise _Reached(module)

    leaves = [
        module
        for module in model.modules()
        if not any(module.children()) and any(True for _ in module.parameters())
    ]
    handles = [module.register_forward_pre_hook(entered) for module in leaves]
    try:
        model(images)
    except _Reached as reached:
        layer: nn.Module = reached.found
        return layer
    finally:
        for handle in handles:
            handle.remove()
    raise BadInput(
        "the network has no first layer that can be found", hint="name one: yopo:layer=…"
    )


def forward_up_to(model: nn.Module, layer: nn.Module, images: Tensor) -> Tensor:
    """What a layer gives for these images; the layers after it are not run."""

    def left(module: nn.Module, args: Any, output: Any) -> None:
        raise _Reached(output)

    handle = layer.register_forward_hook(left)
    try:
        model(images)
    except _Reached as reached:
        output: Tensor = reached.found
        return output
    finally:
        handle.remove()
    raise BadInput("a forward pass does not reach the layer", hint="name another with yopo:layer=…")


@contextmanager
def record_outputs(layer: nn.Module) -> Iterator[list[Tensor]]:
    """What the layer gives inside, as tensors that keep their gradient."""
    seen: list[Tensor] = []

    def left(module: nn.Module, args: Any, output: Any) -> Tensor:
        output.retain_grad()
        seen.append(output)
        copy: Tensor = output.clone()  # the next layer may write into what it is given
        return copy

    handle = layer.register_forward_hook(left)
    try:
        yield seen
    finally:
        handle.remove()
