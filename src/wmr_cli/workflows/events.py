"""What a walk tells whoever follows it: the command line draws it, the log stores it, a test collects it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..storage.records import Record
from .trials import Bench


@dataclass(frozen=True)
class Message:
    """A line for the user to read."""

    text: str
    warns: bool = False


@dataclass(frozen=True)
class TrainingStarted:
    """Training begins, or goes on, at this step of `epoch`, both counted from 0."""

    epoch: int
    step: int
    epochs: int
    steps_per_epoch: int


@dataclass(frozen=True)
class StepDone:
    """One step: its epoch counted from 1, its number in the run from 0, the images of all ranks and their mean loss."""

    epoch: int
    step: int
    images: int
    loss: float


@dataclass(frozen=True)
class EpochDone:
    """One epoch, saved. `entry` is its line of log.jsonl."""

    epoch: int
    epochs: int
    entry: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingDone:
    """The run is complete. `entries` are the lines of log.jsonl, `best` is the epoch of best.safetensors."""

    folder: Path
    checkpoint: Path
    seconds: float
    entries: list[dict[str, Any]] = field(default_factory=list)
    best: int | None = None


@dataclass(frozen=True)
class TrainingStopped:
    """A signal ended the run after `step` steps of `epoch`; everything is saved."""

    folder: Path
    signal: int
    epoch: int
    step: int


@dataclass(frozen=True)
class EvaluationStarted:
    """One record begins: `total` images in all."""

    label: str
    total: int


@dataclass(frozen=True)
class ImagesDone:
    """`done` of `total` images are finished."""

    done: int
    total: int


@dataclass(frozen=True)
class EvaluationDone:
    """One record, with the place of its rows; `stored` where it had been recorded before."""

    record: Record
    rows: Path
    stored: bool = False


@dataclass(frozen=True)
class AttackDone:
    """Adversarial images were made; `summary` is what the command prints."""

    summary: dict[str, Any]


@dataclass(frozen=True)
class ImportDone:
    """Weights from elsewhere are a checkpoint now, for this data set and this ball."""

    checkpoint: Path
    dataset: str
    norm: str
    eps: float


@dataclass(frozen=True)
class BenchDone:
    """Rates were measured, and settings to recommend found."""

    found: Bench


Event = (
    Message
    | TrainingStarted
    | StepDone
    | EpochDone
    | TrainingDone
    | TrainingStopped
    | EvaluationStarted
    | ImagesDone
    | EvaluationDone
    | AttackDone
    | ImportDone
    | BenchDone
)
