"""Save and resume a run, and react to signals between steps.

resume.safetensors holds all that the next step depends on: weights, optimizer, and the state of
other parts. The order of batches, the noise and the learning rate are functions of seed and step.
"""

import json
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import msgspec
import torch
from torch import Tensor, nn

from ..core.protocols import HasState
from ..core.traits import read_parameter
from ..errors import BadFile, BrokenContract, RunFolderError
from ..reading import parse_json
from ..runtime.distributed import Ranks
from ..spec import MAX_THREADS
from ..storage import checkpoints
from ..storage.checkpoints import load_tensors, save_tensors
from ..storage.runs import RunFolder, open_run
from .monitoring import DIVERGED_HINT, LogEntry
from .setup import TrainingSetup

OVERWRITE_HINT = "start again with `overwrite=True`"


@dataclass(frozen=True)
class Progress:
    """Completed epochs, completed steps of the next one, and the best validation score so far."""

    epoch: int = 0
    step_in_epoch: int = 0
    best: float | None = None
    stale: int = 0
    """Validations since that score."""


def open_training(
    stack: ExitStack, run: TrainingSetup, path: Path, *, resume: bool, overwrite: bool
) -> tuple[RunFolder, Progress]:
    """Open the run folder until the stack is closed, and restore the state in it."""
    folder = RunFolder(path)
    ranks = run.runtime.ranks
    # rank 0 alone holds the lock of the folder and writes to it
    if ranks.is_first:
        stack.enter_context(open_run(path, run.config, resume=resume, overwrite=overwrite))
    # the other ranks read only after rank 0 has checked the folder
    ranks.barrier()
    progress = restore_state(folder, run)
    places = ranks.all_gather(torch.tensor([progress.epoch, progress.step_in_epoch]))
    if (places != places[0]).any():
        raise RunFolderError(
            f"{path} is not the same folder for all processes",
            hint="put it on a disk that all nodes share",
        )
    if ranks.is_first:
        _repair_folder(folder, run, progress)
    ranks.barrier()
    return folder, progress


def _repair_folder(folder: RunFolder, run: TrainingSetup, progress: Progress) -> None:
    """Make log and weights match the restored state."""
    # an interruption between log and state leaves an epoch that will be trained again
    entries = folder.read_log()
    folder.write_log([entry for entry in entries if entry["epoch"] <= progress.epoch])
    # at the end of an epoch the state holds weights that the user may have removed
    if progress.epoch and not progress.step_in_epoch:
        for file, model in _weight_files(folder, run).items():
            if not file.exists():
                write_weights(file, run, model, progress.epoch)


def save_state(folder: RunFolder, run: TrainingSetup, progress: Progress) -> None:
    """Write resume.safetensors; all ranks must call this."""
    ranks = run.runtime.ranks
    # on all ranks: a part may gather its state from them
    states = {owner: part.state() for owner, part in stateful_parts(run).items()}
    if ranks.is_first:
        _write_state(folder, run, progress, states)
    # a rank that ends earlier could make a launcher kill rank 0 while it writes
    ranks.barrier()


def save_epoch(
    folder: RunFolder, run: TrainingSetup, entry: LogEntry, progress: Progress
) -> Progress:
    """Write the weights, the log and the state after an epoch."""
    score = entry.get(f"val_a_{run.config.select}")
    is_best = score is not None and (progress.best is None or score > progress.best)
    stale = 0 if is_best else progress.stale + (score is not None)
    progress = Progress(entry["epoch"], best=score if is_best else progress.best, stale=stale)
    if stops_early(run, progress):
        entry["stopped"] = describe_early_stop(run, progress)
    files = _weight_files(folder, run)
    if is_best:
        files[folder.best] = run.model
    if run.runtime.ranks.is_first:
        for file, model in files.items():
            write_weights(file, run, model, progress.epoch)
        folder.write_log([*folder.read_log(), entry])
    # the state last: after an interruption before it, a resumed run validates the epoch again
    run.statistics.clear()
    save_state(folder, run, progress)
    return progress


def stops_early(run: TrainingSetup, progress: Progress) -> bool:
    """Whether `patience` ends the run before its last epoch."""
    patience = run.config.patience
    is_last = progress.epoch >= run.schedule_config.epochs
    return patience is not None and progress.stale >= patience and not is_last


def describe_early_stop(run: TrainingSetup, progress: Progress) -> str:
    """Return why a run is complete before its last epoch, for the log and the user."""
    noun = "validation" if progress.stale == 1 else "validations"
    return (
        f"stopped early after epoch {progress.epoch} of {run.schedule_config.epochs}:"
        f" val_a_{run.config.select} did not improve in {progress.stale} {noun}"
    )


def _weight_files(folder: RunFolder, run: TrainingSetup) -> dict[Path, nn.Module]:
    """Return the files that every epoch replaces, and their models."""
    files = {folder.last: run.model}
    if run.average is not None:
        files[folder.ema] = run.average.model
    return files


def write_weights(file: Path, run: TrainingSetup, model: nn.Module, epoch: int) -> None:
    """Write a checkpoint with the settings that it was trained with."""
    alpha = read_parameter(run.kernel, "alpha")
    extra = None if run.extra is None else run.extra.data
    checkpoints.save(
        file,
        model.state_dict(),
        run.config,
        run.source,
        alpha_train=alpha,
        epoch=epoch,
        extra=extra,
    )


def best_epoch(entries: list[LogEntry], select: str) -> int | None:
    """Return the epoch of best.safetensors: the first with the highest score."""
    name = f"val_a_{select}"
    validated = [entry for entry in entries if name in entry]
    if not validated:
        return None
    best = max(validated, key=lambda entry: entry[name])
    return int(best["epoch"])


class PerRankState:
    """The state of a part that differs between ranks, gathered into one file."""

    def __init__(self, part: HasState, ranks: Ranks) -> None:
        self._part = part
        self._ranks = ranks

    def state(self) -> dict[str, Tensor]:
        """Return the states of all ranks, under `rank/name`."""
        own = {name: tensor.cpu() for name, tensor in self._part.state().items()}
        return {
            f"{rank}/{name}": tensor
            for rank, state in enumerate(self._ranks.gather_objects(own))
            for name, tensor in state.items()
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore the state of this rank."""
        ranks = 1 + max(int(name.partition("/")[0]) for name in state)
        if ranks != self._ranks.count:
            raise RunFolderError(
                f"the run was started by {ranks} processes, and its defense has state in each",
                hint=f"resume with `devices={ranks}`, or {OVERWRITE_HINT}",
            )
        prefix = f"{self._ranks.index}/"
        own = {
            name.removeprefix(prefix): tensor
            for name, tensor in state.items()
            if name.startswith(prefix)
        }
        self._part.load_state(own)


def stateful_parts(run: TrainingSetup) -> dict[str, HasState]:
    """Return the parts with a state, by their prefix in resume.safetensors."""
    # the prefixes are those of wmr 0.1
    parts: dict[str, object] = {
        "kernel": run.kernel,
        "defense": run.defense,
        "average": run.average,
        "tally": run.statistics,
        "scale": run.runtime.loss_scale,
    }
    stateful = {owner: part for owner, part in parts.items() if isinstance(part, HasState)}
    if run.defense.traits.state_per_rank:
        stateful["defense"] = PerRankState(stateful["defense"], run.runtime.ranks)
    return stateful


def _write_state(
    folder: RunFolder,
    run: TrainingSetup,
    progress: Progress,
    states: Mapping[str, Mapping[str, Tensor]],
) -> None:
    for name, parameter in run.model.named_parameters():
        if not torch.isfinite(parameter).all():
            place = f"epoch {progress.epoch + 1}, step {progress.step_in_epoch}"
            # refused: it would replace the last state that can be resumed
            raise BrokenContract(f"{place}: parameter {name} is not finite", hint=DIVERGED_HINT)
    tensors: dict[str, Tensor] = {}
    for name, tensor in run.model.state_dict().items():
        tensors[f"model/{name}"] = tensor
    for position, values in run.optimizer.state_dict()["state"].items():
        for name, value in values.items():
            if value is not None:
                tensors[f"optimizer/{position}/{name}"] = torch.as_tensor(value)
    for owner, state in states.items():
        for name, tensor in state.items():
            tensors[f"{owner}/{name}"] = tensor
    header = {
        "epoch": str(progress.epoch),
        # the key of 0.1
        "step": str(progress.step_in_epoch),
        "best": json.dumps(progress.best),
        "drawn": json.dumps(run.source.random_split_sha256),
    }
    if run.config.patience is not None:
        header["stale"] = json.dumps(progress.stale)
    if run.extra is not None:
        header["extra"] = json.dumps(run.extra.data.sha256)
    if run.runtime.threads is not None:
        header["threads"] = json.dumps(run.runtime.threads)
        header["processes"] = json.dumps(run.runtime.ranks.count)
    save_tensors(folder.resume, tensors, header)


def restore_state(folder: RunFolder, run: TrainingSetup) -> Progress:
    """Restore the saved state of a run. A new run starts at epoch 0."""
    if not folder.resume.exists():
        return Progress()
    tensors, header = load_tensors(folder.resume)
    stored = _read_header(folder, header)
    if stored.drawn != run.source.random_split_sha256:
        raise RunFolderError(
            f"the data of {folder.path} have changed: the training set would be another one",
            hint=f"restore the data, or {OVERWRITE_HINT}",
        )
    if stored.extra != (None if run.extra is None else run.extra.data.sha256):
        raise RunFolderError(
            f"the extra images or labels of {folder.path} have changed",
            hint="restore the data and the checkpoint of `extra_labels`, resume on the same kind"
            f" of device, or {OVERWRITE_HINT}",
        )
    # other processes divide the work in another way, so the old threads would not keep the bits
    if stored.processes == run.runtime.ranks.count:
        run.runtime.use_threads(stored.threads)
    states: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        owner, _, rest = name.partition("/")
        states.setdefault(owner, {})[rest] = tensor
    try:
        run.model.load_state_dict(states.get("model", {}))
        optimizer_state = _make_optimizer_state(states.get("optimizer", {}), run.optimizer)
        run.optimizer.load_state_dict(optimizer_state)
        for owner, part in stateful_parts(run).items():
            # a part without tensors left nothing in the file
            if owner in states:
                part.load_state(states[owner])
    except (KeyError, IndexError, ValueError, RuntimeError) as error:
        raise BadFile(
            f"{folder.resume} cannot be resumed from: {error}", hint=OVERWRITE_HINT
        ) from None
    return Progress(stored.epoch, stored.step, stored.best, stored.stale)


class _Header(msgspec.Struct):
    """The header of resume.safetensors, each value as JSON."""

    epoch: Annotated[int, msgspec.Meta(ge=0, le=2**31)]
    step: Annotated[int, msgspec.Meta(ge=0, le=2**31)]
    best: Annotated[float, msgspec.Meta(ge=0, le=1)] | None
    drawn: str | None
    """Hash of a random split."""
    stale: Annotated[int, msgspec.Meta(ge=0, le=2**31)]
    """Validations since the best one, of a run with `patience`."""
    extra: str | None
    """Hash of the extra images."""
    threads: Annotated[int, msgspec.Meta(ge=1, le=MAX_THREADS)] | None
    """Threads of each process on a CPU."""
    processes: int | None


def _read_header(folder: RunFolder, header: Mapping[str, str]) -> _Header:
    """Return the saved progress, and the hashes of the data that it was trained on."""
    try:
        # missing in early files, or with other settings
        defaults = dict.fromkeys(("drawn", "extra", "threads", "processes"), "null")
        texts = {"step": "0", "stale": "0", **defaults, **header}
        values = {key: parse_json(texts[key]) for key in _Header.__struct_fields__}
        return msgspec.convert(values, _Header)
    except (KeyError, ValueError) as error:
        raise BadFile(
            f"the header of {folder.resume} cannot be read: {error}", hint=OVERWRITE_HINT
        ) from None


def _make_optimizer_state(
    tensors: dict[str, Tensor], optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    """Return the argument of `load_state_dict` for tensors named `position/key`."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        position, _, key = name.partition("/")
        parameter = parameters[int(position)]
        # in the memory format of the parameter: other strides may be summed in another order
        if tensor.shape == parameter.shape:
            tensor = torch.empty_like(parameter).copy_(tensor)
        state.setdefault(int(position), {})[key] = tensor
    return {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}


DEFERRED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Ctrl-C, a request to end, and the warnings of Slurm and submitit before the time limit."""
SAVE_REQUEST = 1
"""Less than the number of any deferred signal, so that the largest request of all ranks wins."""


class SignalHandler:
    """Defers signals to the end of a step, and requests a checkpoint every few minutes."""

    def __init__(self, save_minutes: float) -> None:
        self._seconds = 60 * save_minutes
        self._last_saved = time.monotonic()
        self.signal: int = 0
        """The first signal that was received, or 0."""

    @property
    def request(self) -> int:
        """The number of a received signal, `SAVE_REQUEST` if it is time to save, or 0."""
        if self.signal:
            return self.signal
        is_due = self._seconds > 0 and time.monotonic() - self._last_saved >= self._seconds
        return SAVE_REQUEST if is_due else 0

    def note_saved(self) -> None:
        """Start the interval to the next checkpoint."""
        self._last_saved = time.monotonic()

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Only remember signals inside, but let a second Ctrl-C interrupt."""
        # Python allows signal handlers in the main thread only
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def remember(number: int, frame: FrameType | None) -> None:
            if self.signal and number == signal.SIGINT:
                signal.default_int_handler(number, frame)
            self.signal = self.signal or number

        previous: dict[int, Any] = {}
        try:
            for number in DEFERRED_SIGNALS:
                # `nohup` ignores signals on purpose
                if signal.getsignal(number) is not signal.SIG_IGN:
                    previous[number] = signal.signal(number, remember)
            yield
        finally:
            for deferred, handler in previous.items():
                signal.signal(deferred, handler)
