"""The hooks of a plugin. Each returns a list of `Entry`: names and text only.

The entry-point group is `wmr`. The docstring of a hook describes the target of its entries, and
`wmr_cli.testing` checks it.
"""

from collections.abc import Iterable

import pluggy

from .registry import Entry

hookspec = pluggy.HookspecMarker("wmr")
hookimpl = pluggy.HookimplMarker("wmr")

KIND_OF_HOOK = {
    "wmr_models": "model",
    "wmr_datasets": "dataset",
    "wmr_defenses": "defense",
    "wmr_kernels": "kernel",
    "wmr_attacks": "attack",
    "wmr_verifiers": "verifier",
    "wmr_loggers": "logger",
    "wmr_checkpoints": "checkpoint",
    "wmr_commands": "command",
    "wmr_losses": "defense",
}


@hookspec
def wmr_models() -> Iterable[Entry]:  # type: ignore[empty-body]
    """make(num_classes=, input_shape=(C, H, W), **params) -> nn.Module on images in [0, 1]."""


@hookspec
def wmr_datasets() -> Iterable[Entry]:  # type: ignore[empty-body]
    """make(root=, **params) -> DataSource."""


@hookspec
def wmr_defenses() -> Iterable[Entry]:  # type: ignore[empty-body]
    """make(**params) -> Defense: one training step."""


@hookspec
def wmr_kernels() -> Iterable[Entry]:  # type: ignore[empty-body]
    """make(**params) -> Kernel: per-image log-weights."""


@hookspec
def wmr_attacks() -> Iterable[Entry]:  # type: ignore[empty-body]
    """make(**params) -> Attack."""


@hookspec
def wmr_verifiers() -> Iterable[Entry]:  # type: ignore[empty-body]
    """make(**params) -> Verifier: lower bounds of logit differences over the ε-ball."""


@hookspec
def wmr_loggers() -> Iterable[Entry]:  # type: ignore[empty-body]
    """make(**params) -> Logger: copies the log of a run to another tool."""


@hookspec
def wmr_checkpoints() -> Iterable[Entry]:  # type: ignore[empty-body]
    """find(root=, **params) -> Path of a checkpoint or run folder, or Spec of a model."""


@hookspec
def wmr_commands() -> Iterable[Entry]:  # type: ignore[empty-body]
    """command(**parameters): a function with parameters of Typer, which becomes `wmr NAME`."""


@hookspec
def wmr_losses() -> Iterable[Entry]:  # type: ignore[empty-body]
    """Return entries as `wmr_defenses`, whose name in 0.1 this was."""
