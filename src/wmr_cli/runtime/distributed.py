"""Ranks: the processes that share one run, and what they exchange.

All methods of `Ranks` do nothing, or return their input, when there is one process.
"""

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, TypeVar

import torch
from torch import Tensor

from ..errors import BadInput, BrokenContract, WmrError, out_of_memory
from . import failures
from .failures import RESUME_HINT

T = TypeVar("T")
_SOURCE_LINE = re.compile(r"\[[^][]*\.(?:cc|cpp|h|hpp):\d+\] *")
"""Where in its source code gloo has raised an error."""


@dataclass(frozen=True)
class Ranks:
    """The processes of a run. `index` is this process's rank, `node` its machine."""

    index: int = 0
    count: int = 1
    local_index: int = 0
    node: int = 0
    device: torch.device = field(default_factory=torch.get_default_device)

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and reports for all ranks."""
        return self.index == 0

    @property
    def is_first_of_node(self) -> bool:
        """Whether this process is the first one on its machine."""
        return self.local_index == 0

    def share(self, values: Tensor) -> Tensor:
        """Return this rank's contiguous part of `values`; sizes of parts differ by one at most."""
        return values.tensor_split(self.count)[self.index]

    def all_gather(self, values: Tensor) -> Tensor:
        """Gather equally shaped values of all ranks, (ranks, ...), on the CPU."""
        if self.count == 1:
            return values[None]
        # NCCL exchanges tensors on its GPU only
        own = values.to(self.device)
        parts = [torch.empty_like(own) for _ in range(self.count)]
        torch.distributed.all_gather(parts, own)
        return torch.stack(parts).cpu()

    def all_gather_varying(self, values: Tensor, total: int) -> Tensor:
        """Gather values (N, ...) of each rank's `share` of `total` images, in their order."""
        if self.count == 1:
            return values
        sizes = [len(part) for part in torch.arange(total).tensor_split(self.count)]
        # all_gather needs equal shapes: pad to the largest share, cut the padding afterwards
        padding = values.new_zeros(max(sizes) - len(values), *values.shape[1:])
        padded = torch.cat([values, padding])
        parts = [torch.empty_like(padded) for _ in sizes]
        torch.distributed.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    def all_reduce(self, values: Tensor, operation: Literal["sum", "mean", "max"]) -> Tensor:
        """Reduce equally shaped values element by element over all ranks."""
        if self.count == 1:
            return values
        # all_reduce works in place, and the caller keeps its values
        reduced = values.detach().clone()
        operations = torch.distributed.ReduceOp
        is_gloo_mean = operation == "mean" and torch.distributed.get_backend() == "gloo"
        if is_gloo_mean:  # gloo has no AVG
            torch.distributed.all_reduce(reduced, op=operations.SUM)
            return reduced / self.count
        op = {"sum": operations.SUM, "mean": operations.AVG, "max": operations.MAX}[operation]
        torch.distributed.all_reduce(reduced, op=op)
        return reduced

    def max(self, value: int) -> int:
        """Return the largest value of all ranks."""
        if self.count == 1:
            return value
        return int(self.all_gather(torch.tensor(value)).max())

    def gather_objects(self, value: T) -> list[T]:
        """Gather a picklable value of every rank, in the order of ranks."""
        if self.count == 1:
            return [value]
        values = [value] * self.count
        torch.distributed.all_gather_object(values, value)
        return values

    def broadcast(self, value: T) -> T:
        """Return the value of rank 0 on every rank."""
        if self.count == 1:
            return value
        values = [value]
        torch.distributed.broadcast_object_list(values, src=0)
        return values[0]

    def barrier(self) -> None:
        """Wait until all ranks have reached this call."""
        # not torch's barrier: on NCCL it guesses the GPU of a rank
        self.max(0)

    @contextmanager
    def describe_errors(self) -> Iterator[None]:
        """Turn an unexpected error of one of several ranks into one that names the rank."""
        try:
            yield
        except Exception as error:
            is_described = isinstance(error, WmrError) or failures.is_connection_error(error)
            if self.count == 1 or is_described:
                raise
            raise describe_error(error) from error


def describe_error(error: Exception) -> WmrError:
    """Return an error that names this rank, for the user."""
    watch = failures.current_watch()
    index = 0 if watch is None else watch.index
    if failures.is_connection_error(error):
        reason = _SOURCE_LINE.sub("", str(error)).partition("\n")[0].partition(". ")[0]
        text = f"process {index} has lost the connection to another one: {reason}"
        return BrokenContract(text, RESUME_HINT)
    problem = f"process {index} failed: {type(error).__name__}: {error}"
    return out_of_memory(error) or BrokenContract(problem, RESUME_HINT)


def watch_failures(ranks: Ranks) -> None:
    """Connect all ranks, so that the failure of one ends all of them."""
    is_one_node = ranks.max(ranks.node) == 0
    listener = None
    if ranks.is_first:
        listener = failures.open_listener(failures.LOOPBACK if is_one_node else "")
    port = 0 if listener is None else listener.getsockname()[1]
    port, secret = ranks.broadcast((port, secrets.token_hex()))
    if listener is not None:
        peers = failures.accept_ranks(listener, secret, ranks.count)
    else:
        host = failures.LOOPBACK if is_one_node else os.environ["MASTER_ADDR"]
        peers = failures.connect_to_rank_0(host, port, secret, ranks.index)
    failures.start_watch(ranks.index, peers)


def exchange_before_connection(ranks: Ranks, value: str) -> list[str]:
    """Gather a text of every rank through the key-value store of the launcher.

    NCCL connects the GPUs in the first exchange of tensors, and refuses to if two are the same.
    """
    # torch has no public function for the store of a group that exists
    store = torch.distributed.distributed_c10d._get_default_store()
    store.set(f"wmr-value-{ranks.index}", value)
    return [store.get(f"wmr-value-{index}").decode() for index in range(ranks.count)]


def limit_waiting(timeout: timedelta) -> None:
    """Let a rank fail that waits longer than this for the others, from now on."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        # torch has no public function for a group that exists
        torch.distributed.distributed_c10d._set_pg_timeout(timeout)


def leave_group(status: int = 0) -> None:
    """Leave the other ranks without a failure; the status of a signal ends them, too."""
    watch = failures.current_watch()
    if watch is not None:
        watch.finish(status)
    torch.distributed.destroy_process_group()


def exit_rank(status: object) -> None:
    """End one of several processes without shutting down the interpreter; return if there is one.

    Threads of torch may still hold tensors. Freeing them during interpreter shutdown aborts.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    code = status if isinstance(status, int) else int(status is not None)
    watch = failures.current_watch()
    if watch is None or not watch.has_failed:
        leave_group(code)
        # another rank may have failed meanwhile
        if watch is None or not watch.has_failed:
            failures.end_process(code)
    failures.ignore_termination()
    # the group is not destroyed: that would wait, for ranks that have failed
    watch.wait_for_answer()
    failures.report_if_due(watch)
    failures.end_process(watch.status)


def read_launcher() -> tuple[int, int] | None:
    """Return (processes per node, nodes) started by torchrun or Slurm, or None without either."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        per_node = _read_count("LOCAL_WORLD_SIZE")
        return per_node, _read_count("WORLD_SIZE") // per_node
    is_interactive = os.environ.get("SLURM_JOB_NAME") in ("bash", "interactive")
    # a batch script that does not call srun has no step, and is one process
    is_step = "SLURM_PROCID" in os.environ and "SLURM_STEP_ID" in os.environ
    if not is_step or is_interactive or _read_count("SLURM_NTASKS", default="1") == 1:
        return None
    if "SLURM_NTASKS_PER_NODE" not in os.environ:
        raise BadInput(
            "Slurm does not set SLURM_NTASKS_PER_NODE",
            hint="use --ntasks-per-node instead of --ntasks",
        )
    per_node = _read_count("SLURM_NTASKS_PER_NODE")
    return per_node, _read_count("SLURM_NNODES", default="1")


def _read_count(name: str, default: str = "") -> int:
    """Read a positive number that torchrun or Slurm has set."""
    text = os.environ.get(name, default)
    if not re.fullmatch("0*[1-9][0-9]{0,8}", text):
        raise BadInput(
            f"{name} is {text!r} in the environment, not a count",
            hint="start with torchrun or srun, or unset it",
        )
    return int(text)
