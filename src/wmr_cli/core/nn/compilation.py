"""Compile networks and the steps of attacks with torch, or run them eagerly and say why.

A step of an attack is one graph: forward pass, backward pass to the images, step and projection.
"""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from ..contexts import AttackStep

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

BACKEND = "inductor"
MAX_VARIANTS = 16
"""Compiled variants of one function: two batch sizes, several objectives and modes.

By default torch allows 8, and computes further ones eagerly.
"""


class Compiler:
    """Compiles the functions of one training; what cannot be compiled runs eagerly."""

    def __init__(self, *, uses_graphs: bool = False) -> None:
        """Launch each compiled step of an attack as one device graph if `uses_graphs`."""
        self._uses_graphs = uses_graphs
        self._compiles = True
        self._traces_steps = traces_gradients()
        self._compiled: dict[object, Any] = {}
        self._problems: list[str] = []
        if not self._traces_steps:
            self._problems.append(
                "attack steps are not compiled as a whole:"
                " this version of torch cannot trace gradients"
            )

    def take_problems(self) -> list[str]:
        """Return what was not compiled since the last call, and why."""
        problems = self._problems
        self._problems = []
        return problems

    def compile_network(self, network: nn.Module) -> nn.Module:
        """Return a compiled module that shares all parameters with the network."""
        if network not in self._compiled:
            # sizes are constants: a training has at most two batch sizes
            self._compiled[network] = torch.compile(network, backend=BACKEND, dynamic=False)
        compiled: nn.Module = self._compiled[network]
        return compiled

    def run(
        self,
        compiled: Callable[Parameters, Result],
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> Result:
        """Call a compiled network, or its original if it cannot be compiled."""
        if self._compiles:
            try:
                with _settings():
                    return compiled(*args, **kwargs)
            except _compilation_errors() as error:
                self._problems.append(f"the network is not compiled: {_shorten(error)}")
                self._compiles = False
        with _force_eager():
            return compiled(*args, **kwargs)

    def compile_step(self, step: AttackStep, like: Tensor) -> AttackStep:
        """Return the step for images like these, compiled."""
        # one per argument: two arguments that are the same tensor would be compiled separately
        constants: dict[tuple[int, float], Tensor] = {}

        def run(network: nn.Module, *args: object) -> tuple[Tensor, ...]:
            tensors = list(args)
            for position, value in enumerate(args):
                # a ramp changes eps in every step, and each number would be compiled again
                if isinstance(value, (int, float)):
                    key = (position, value)
                    if key not in constants:
                        constants[key] = like.new_full((), value)
                    tensors[position] = constants[key]
            return self.run_step(step, network, *tensors)

        return run

    def run_step(self, step: AttackStep, network: nn.Module, *args: Any) -> tuple[Tensor, ...]:
        """Run a step of an attack as one graph, or with a compiled network, or eagerly."""
        if self._compiles and self._traces_steps:
            try:
                with _settings():
                    results = self._as_one_graph(step)(network, *args)
            except _compilation_errors() as error:
                reason = _shorten(error)
                self._problems.append(f"attack steps are not compiled as a whole: {reason}")
                self._traces_steps = False
            else:
                # the next launch of a device graph overwrites its results
                return tuple(each.clone() for each in results) if self._uses_graphs else results
        if not self._compiles:
            return step(network, *args)
        return step(functools.partial(self.run, self.compile_network(network)), *args)

    def _as_one_graph(self, step: AttackStep) -> AttackStep:
        if step not in self._compiled:
            self._compiled[step] = torch.compile(
                step,
                backend=BACKEND,
                mode="reduce-overhead" if self._uses_graphs else None,
                dynamic=False,
                fullgraph=True,
            )
        compiled: AttackStep = self._compiled[step]
        return compiled


def traces_gradients() -> bool:
    """Whether this version of torch can trace `torch.autograd.grad`."""
    from torch._dynamo import config

    return hasattr(config, "trace_autograd_ops")


def _settings() -> AbstractContextManager[object]:
    from torch._dynamo import config

    # the name of torch 2.4 and 2.5
    limit = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    settings: dict[str, object] = {limit: MAX_VARIANTS}
    if traces_gradients():
        settings["trace_autograd_ops"] = True
    context: AbstractContextManager[object] = config.patch(settings)
    return context


def _compilation_errors() -> tuple[type[Exception], ...]:
    from torch._dynamo import exc

    # the second is not in every version
    names = ("TorchDynamoException", "FailOnRecompileLimitHit")
    return tuple(vars(exc)[name] for name in names if hasattr(exc, name))


def _force_eager() -> AbstractContextManager[object]:
    # since torch 2.6; before, the error is raised again
    if not hasattr(torch.compiler, "set_stance"):
        return nullcontext()
    context: AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return context


def _shorten(error: Exception) -> str:
    # the first line may name the backend alone
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join([f"{type(error).__name__}:", *lines[:2]])
