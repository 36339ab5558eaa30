"""Modes that a `with` sets and puts back, whatever happens in between."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode inside; on the way out every module has the flag it had before."""
    were_training = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, was_training in were_training:
            module.training = was_training


@contextmanager
def on_device(model: nn.Module, device: torch.device) -> Iterator[None]:
    """On this device inside; on the way out every parameter, gradient and buffer is the one it was, where it was.

    Nothing is copied back: what was there before is kept and put in its place again.
    """
    parameters = [(module, dict(module._parameters)) for module in model.modules()]
    buffers = [(module, dict(module._buffers)) for module in model.modules()]
    contents = [(parameter, parameter.data, parameter.grad) for parameter in model.parameters()]
    if all(tensor.device == device for tensor in (*model.parameters(), *model.buffers())):
        yield
        return
    try:
        model.to(device)
        yield
    finally:
        for parameter, data, grad in contents:
            parameter.grad = None  # a gradient must be where its parameter is, at every moment
            parameter.data = data
            parameter.grad = grad
        for module, held in parameters:
            module._parameters.update(held)
        for module, kept in buffers:
            module._buffers.update(kept)


@contextmanager
def plain_autograd(device: torch.device) -> Iterator[None]:
    """Inside, gradients can be taken and nothing is cast to another precision, whatever mode the caller is in."""
    casts = torch.is_autocast_enabled(device.type)
    with (
        torch.inference_mode(False),
        torch.autocast(device.type, enabled=False) if casts else nullcontext(),
    ):
        yield


def model_device(model: nn.Module) -> torch.device:
    """Where a network is; one without parameters and buffers works anywhere, and so where torch works by default."""
    first = next(
        (tensor for tensors in (model.parameters(), model.buffers()) for tensor in tensors), None
    )
    return torch.get_default_device() if first is None else first.device
