"""What notebooks and plugins may call."""

from pathlib import Path
from typing import Any

from torch import nn

from ..plugins import installed
from ..spec import Spec
from ..storage import checkpoints
from . import parts


def create(kind: str, spec: str | Spec, **given: Any) -> Any:
    """Build a component by name: `create("attack", "pgd:steps=20", eps=8 / 255)`.

    A model needs `num_classes` and `input_shape`, a data set needs `root`.
    """
    return installed().registry.create(kind, spec, **given)


def load(checkpoint: str | Path) -> nn.Module:
    """The network of a checkpoint with its weights, in eval mode."""
    return parts.restored(installed().registry, checkpoints.load(Path(checkpoint)))
