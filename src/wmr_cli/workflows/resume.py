"""Where a run stands: everything that the next epoch depends on, in one safetensors file.

The order of batches, the noise and the learning rate are functions of seed and step, so weights, optimizer and the
state of kernel and defense are all there is.
"""

import json
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core.contracts import DataSource
from ..errors import BadFile, RunFolderError
from ..storage.checkpoints import load_tensors, save_tensors
from ..storage.runs import RunFolder


@dataclass(frozen=True)
class Progress:
    """How many epochs are done, and the best held-out score so far."""

    epoch: int = 0
    best: float | None = None


def store(
    folder: RunFolder,
    progress: Progress,
    source: DataSource,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    **stateful: Any,
) -> None:
    """Write the state after an epoch; `stateful` are the kernel and the defense, where they keep any."""
    tensors: dict[str, Tensor] = {f"model/{name}": tensor for name, tensor in model.state_dict().items()}
    for position, values in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{position}/{name}": torch.as_tensor(value) for name, value in values.items() if value is not None}
    for owner, part in stateful.items():
        if hasattr(part, "state"):
            tensors |= {f"{owner}/{name}": tensor for name, tensor in part.state().items()}
    drawn = json.dumps(getattr(source, "drawn", None))
    save_tensors(folder.resume, tensors, {"epoch": str(progress.epoch), "best": json.dumps(progress.best), "drawn": drawn})


def restore(
    folder: RunFolder, source: DataSource, model: nn.Module, optimizer: torch.optim.Optimizer, **stateful: Any
) -> Progress:
    """Bring everything back to where the run stood, the log included; a fresh run stands at its beginning."""
    if not folder.resume.exists():
        folder.write_log([])
        return Progress()
    tensors, header = load_tensors(folder.resume)
    if json.loads(header.get("drawn", "null")) != getattr(source, "drawn", None):
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
        progress = Progress(int(header["epoch"]), json.loads(header["best"]))
    except (KeyError, ValueError, RuntimeError) as error:
        raise BadFile(f"{folder.resume} cannot be resumed from: {error}", hint="start anew with --overwrite") from None
    for owner, part in stateful.items():
        if owner in parts:
            part.load_state(parts[owner])
    folder.write_log([entry for entry in folder.read_log() if entry["epoch"] <= progress.epoch])
    return progress


def _optimizer_state(tensors: dict[str, Tensor], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        position, _, key = name.partition("/")
        state.setdefault(int(position), {})[key] = tensor
    return {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}
