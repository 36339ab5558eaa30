"""Where a run stands: everything that the next step depends on, in one safetensors file.

The order of batches, the noise and the learning rate are functions of seed and step, so the weights, the optimizer and
whatever else keeps a state are all there is.

Signals that wait: the step in hand is finished and saved first.
"""

import json
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Annotated, Any, Protocol

import msgspec
import torch
from torch import Tensor, nn

from ..core.protocols import DataSource
from ..errors import BadFile, BrokenContract, RunFolderError
from ..reading import parse_json
from ..runtime.distributed import Ranks
from ..storage.checkpoints import load_tensors, save_tensors
from ..storage.runs import RunFolder
from .monitoring import DIVERGED_HINT


@dataclass(frozen=True)
class Progress:
    """How many epochs are done, how many steps of the next one, and the best held-out score so far."""

    epoch: int = 0
    step: int = 0
    best: float | None = None


class Stateful(Protocol):
    """A part that keeps something from step to step beside weights and optimizer. All ranks ask for it at once."""

    def state(self) -> Mapping[str, Tensor]:
        """What it keeps."""
        ...

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Bring back what `state` gave."""
        ...


class OfEachRank:
    """The state of a part that is another one on every rank, kept together."""

    def __init__(self, part: Stateful, ranks: Ranks) -> None:
        self._part = part
        self._ranks = ranks

    def state(self) -> dict[str, Tensor]:
        """The states of all ranks."""
        mine = {name: tensor.cpu() for name, tensor in self._part.state().items()}
        states = self._ranks.gather_objects(mine)
        return {
            f"{rank}/{name}": tensor
            for rank, state in enumerate(states)
            for name, tensor in state.items()
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Bring back this rank's."""
        ranks = 1 + max(int(name.partition("/")[0]) for name in state)
        if ranks != self._ranks.count:
            problem = (
                f"the run was begun by {ranks} processes, and its defense keeps something in each"
            )
            raise RunFolderError(
                problem, hint=f"go on with --devices {ranks}, or start anew with --overwrite"
            )
        mine = f"{self._ranks.index}/"
        self._part.load_state(
            {
                name.removeprefix(mine): tensor
                for name, tensor in state.items()
                if name.startswith(mine)
            }
        )


def store(
    folder: RunFolder,
    progress: Progress,
    source: DataSource,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    states: Mapping[str, Mapping[str, Tensor]],
) -> None:
    """Write the state after a step, if it is one to go on from; `states` are those of the other parts."""
    tensors: dict[str, Tensor] = {
        f"model/{name}": tensor for name, tensor in model.state_dict().items()
    }
    for position, values in optimizer.state_dict()["state"].items():
        tensors |= {
            f"optimizer/{position}/{name}": torch.as_tensor(value)
            for name, value in values.items()
            if value is not None
        }
    for owner, state in states.items():
        tensors |= {f"{owner}/{name}": tensor for name, tensor in state.items()}
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            place = f"epoch {progress.epoch + 1}, step {progress.step}"
            raise BrokenContract(
                f"{place}: {name} of the network is not finite", hint=DIVERGED_HINT
            )
    drawn = json.dumps(source.random_split_sha256)
    header = {
        "epoch": str(progress.epoch),
        "step": str(progress.step),
        "best": json.dumps(progress.best),
        "drawn": drawn,
    }
    save_tensors(folder.resume, tensors, header)


def restore(
    folder: RunFolder,
    source: DataSource,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    stateful: Mapping[str, Stateful],
) -> Progress:
    """Bring everything back to where the run stood; a fresh run stands at its beginning."""
    if not folder.resume.exists():
        return Progress()
    tensors, header = load_tensors(folder.resume)
    progress, drawn = _read_header(folder, header)
    if drawn != source.random_split_sha256:
        raise RunFolderError(
            f"the data of {folder.path} have changed since it began: other images would be trained on",
            hint="put the data back as they were, or start anew with --overwrite",
        )
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        owner, _, rest = name.partition("/")
        parts.setdefault(owner, {})[rest] = tensor
    try:
        model.load_state_dict(parts.get("model", {}))
        optimizer.load_state_dict(_optimizer_state(parts.get("optimizer", {}), optimizer))
        for owner, part in stateful.items():
            if owner in parts:
                part.load_state(parts[owner])
    except (KeyError, IndexError, ValueError, RuntimeError) as error:
        raise BadFile(
            f"{folder.resume} cannot be resumed from: {error}", hint="start anew with --overwrite"
        ) from None
    return progress


def _read_header(folder: RunFolder, header: Mapping[str, str]) -> tuple[Progress, str | None]:
    """Return where the run was saved, and the hash of its division of the data."""
    try:
        written = {"step": "0", "drawn": "null", **header}
        stored = msgspec.convert(
            {key: parse_json(written[key]) for key in _Header.__struct_fields__}, _Header
        )
    except (KeyError, ValueError) as error:
        raise BadFile(
            f"the header of {folder.resume} cannot be read: {error}",
            hint="start anew with --overwrite",
        ) from None
    return Progress(stored.epoch, stored.step, stored.best), stored.drawn


class _Header(msgspec.Struct):
    """The header of resume.safetensors, each value as JSON."""

    epoch: Annotated[int, msgspec.Meta(ge=0, le=2**31)]
    step: Annotated[int, msgspec.Meta(ge=0, le=2**31)]
    best: Annotated[float, msgspec.Meta(ge=0, le=1)] | None
    drawn: str | None


def _optimizer_state(
    tensors: dict[str, Tensor], optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        position, _, key = name.partition("/")
        parameter = parameters[int(position)]
        # laid out as its parameter is: other strides might be added up in another order
        is_alike = tensor.shape == parameter.shape
        state.setdefault(int(position), {})[key] = (
            torch.empty_like(parameter).copy_(tensor) if is_alike else tensor
        )
    return {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""Ctrl-C, the polite end, and the warning that schedulers send before they take a machine away."""
SAVE = 1
"""What calls for saving alone; the numbers of the signals are larger, so that of several calls the largest counts."""


class Calls:
    """What has been called for while steps were taken: 0, `SAVE` or the number of a signal."""

    def __init__(self, save_minutes: float) -> None:
        self._seconds = 60 * save_minutes
        self._saved = time.monotonic()
        self.signal: int = 0

    @property
    def pending(self) -> int:
        is_due = self._seconds and time.monotonic() - self._saved >= self._seconds
        return self.signal or (SAVE if is_due else 0)

    def saved(self) -> None:
        """The clock starts anew."""
        self._saved = time.monotonic()

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Signals are noted instead of obeyed; the second Ctrl-C is obeyed."""
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread hears signals
            return
        before: dict[int, Any] = {}

        def note(number: int, frame: FrameType | None) -> None:
            if self.signal and number == signal.SIGINT:
                signal.default_int_handler(number, frame)
            self.signal = self.signal or number

        try:
            heard = [each for each in SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
            before |= {each: signal.signal(each, note) for each in heard}
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
