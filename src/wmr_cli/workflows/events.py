"""What a walk tells whoever follows it: the command line draws it, the log stores it, a test collects it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..storage.records import Record


@dataclass(frozen=True)
class Message:
    """A line for the user to read."""

    text: str
    warns: bool = False


@dataclass(frozen=True)
class TrainingStarted:
    """Training begins, or goes on, at `epoch`."""

    epoch: int
    epochs: int
    steps_per_epoch: int


@dataclass(frozen=True)
class StepDone:
    """One optimizer step."""

    epoch: int
    step: int
    images: int


@dataclass(frozen=True)
class EpochDone:
    """One epoch, saved. `entry` is its line of log.jsonl."""

    epoch: int
    epochs: int
    entry: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingDone:
    """The run is complete."""

    folder: Path
    checkpoint: Path
    seconds: float


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


Event = (
    Message
    | TrainingStarted
    | StepDone
    | EpochDone
    | TrainingDone
    | EvaluationStarted
    | ImagesDone
    | EvaluationDone
    | AttackDone
    | ImportDone
)
