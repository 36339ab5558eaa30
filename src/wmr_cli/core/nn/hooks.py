"""Run a model up to one of its layers, for any architecture."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from ...errors import BadInput


class _StopForward(Exception):
    """Ends a forward pass early and carries its result; it is not an error."""

    def __init__(self, result: object) -> None:
        self.result: Any = result


def find_first_layer(model: nn.Module, images: Tensor) -> nn.Module:
    """Return the first layer with its own parameters, and without sublayers, in a forward pass."""

    def stop(module: nn.Module, args: object) -> None:
        raise _StopForward(module)

    # pre-hooks of leaves: a container is entered before the layers inside it
    handles = [module.register_forward_pre_hook(stop) for module in _list_leaves(model)]
    try:
        model(images)
    except _StopForward as stopped:
        layer: nn.Module = stopped.result
        return layer
    finally:
        for handle in handles:
            handle.remove()
    raise BadInput("the first layer of the model was not found", hint="name one: yopo:layer=…")


def find_output_layers(model: nn.Module, images: Tensor, outputs: int) -> list[nn.Module]:
    """Return the last layers of a forward pass that compute this many outputs for each image.

    They start with the last layer that has a weight matrix, in the order of the pass and not in
    that of the definition. The list is empty if the last layer has other outputs.
    """
    called: list[tuple[nn.Module, bool]] = []

    def note(module: nn.Module, args: object, output: object) -> None:
        is_wide = isinstance(output, Tensor) and output.shape[1:2] == (outputs,)
        called.append((module, is_wide))

    handles = [module.register_forward_hook(note) for module in _list_leaves(model)]
    try:
        model(images)
    finally:
        for handle in handles:
            handle.remove()
    layers: list[nn.Module] = []
    for module, is_wide in reversed(called):
        if not is_wide:
            return []
        layers.append(module)
        if any(parameter.ndim > 1 for parameter in module.parameters()):
            return layers
    return []


def _list_leaves(model: nn.Module) -> list[nn.Module]:
    """Return the layers with parameters and without sublayers."""
    return [
        module
        for module in model.modules()
        if not any(module.children()) and any(True for _ in module.parameters())
    ]


def forward_up_to(model: nn.Module, layer: nn.Module, images: Tensor) -> Tensor:
    """Return the output of a layer; the layers after it are not run."""

    def stop(module: nn.Module, args: object, output: object) -> None:
        raise _StopForward(output)

    # an exception is the only way to skip the rest of an arbitrary forward pass
    handle = layer.register_forward_hook(stop)
    try:
        model(images)
    except _StopForward as stopped:
        output: Tensor = stopped.result
        return output
    finally:
        handle.remove()
    raise BadInput(
        "the forward pass does not reach the layer", hint="name another one: yopo:layer=…"
    )


@contextmanager
def record_outputs(layer: nn.Module) -> Iterator[list[Tensor]]:
    """Record the outputs of a layer inside, as tensors that keep their gradient."""
    outputs: list[Tensor] = []

    def record(module: nn.Module, args: object, output: Tensor) -> Tensor:
        output.retain_grad()
        outputs.append(output)
        # a copy: the next layer may work in place
        return output.clone()

    handle = layer.register_forward_hook(record)
    try:
        yield outputs
    finally:
        handle.remove()
