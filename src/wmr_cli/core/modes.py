"""Modes that a `with` sets and puts back, whatever happens in between."""

from collections.abc import Iterator
from contextlib import contextmanager

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
