"""Events of a running workflow: the command line draws them, the log stores them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .reporting.costs import EvaluationCost
from .storage.records import Record


class Event:
    """Base class of everything that a workflow yields."""


@dataclass(frozen=True)
class Message(Event):
    """A line for the user to read."""

    text: str
    is_warning: bool = False


@dataclass(frozen=True)
class TrainingStarted(Event):
    """Training starts or resumes at `step` of `epoch`, both counted from 0."""

    epoch: int
    step: int
    epochs: int
    steps_per_epoch: int


@dataclass(frozen=True)
class StepDone(Event):
    """One training step. `images` and the mean `loss` cover all ranks."""

    epoch: int
    """Counted from 1."""
    step: int
    """Counted from 0, over the whole run."""
    images: int
    loss: float | None
    """The newest one that is known; on a GPU that of the step before."""


@dataclass(frozen=True)
class EpochDone(Event):
    """One epoch, saved. `entry` is its line of log.jsonl."""

    epoch: int
    epochs: int
    entry: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingDone(Event):
    """The run is complete."""

    folder: Path
    checkpoint: Path
    seconds: float
    entries: list[dict[str, Any]] = field(default_factory=list)
    """The lines of log.jsonl."""
    best: int | None = None
    """The epoch of best.safetensors."""


@dataclass(frozen=True)
class TrainingStopped(Event):
    """A signal ended the run after `step` steps of `epoch`; the state is saved."""

    folder: Path
    signal: int
    epoch: int
    step: int


@dataclass(frozen=True)
class EvaluationStarted(Event):
    """The measurement of one record starts: `total` images."""

    label: str
    total: int


@dataclass(frozen=True)
class ImagesDone(Event):
    """`done` of `total` images are finished."""

    done: int
    total: int


@dataclass(frozen=True)
class AttackPartStarted(Event):
    """A part of an attack such as `apgd-t` starts on the `images` that are left of `total`.

    `total` counts the images that are attacked together, usually fewer than all.
    """

    name: str
    images: int
    total: int


@dataclass(frozen=True)
class EvaluationDone(Event):
    """One record and the path of its rows. `stored` means that it existed before."""

    record: Record
    rows: Path
    stored: bool = False


@dataclass(frozen=True)
class EvaluationEstimated(Event):
    """What an evaluation would cost."""

    cost: EvaluationCost


@dataclass(frozen=True)
class AttackDone(Event):
    """Adversarial images were computed. `summary` is printed by the command."""

    summary: dict[str, Any]


@dataclass(frozen=True)
class ImportDone(Event):
    """Foreign weights were saved as a checkpoint for this dataset and threat model."""

    checkpoint: Path
    dataset: str
    norm: str
    eps: float
