"""The cost of an evaluation before it is run: model passes, time and memory. No torch."""

from collections.abc import Iterable
from typing import Any

import msgspec

from .tables.escaping import csv_text

CSV_HEADINGS = (
    "run", "attack", "norm", "eps", "images", "stored", "forward", "backward", "max_forward",
    "max_backward", "seconds", "max_seconds", "measured_images",
)  # fmt: skip
"""Names of columns, and of the fields of a task in JSON."""


class TaskCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of one attack at one eps.

    Passes are per image, over all values of alpha and restarts and with the clean pass. For an
    attack that stops early, `forward`, `backward` and `seconds` are those of the measured images,
    and null if attacking these takes too long; the upper bounds are those of images that it never
    misclassifies. For any other attack both are equal.
    """

    run: str
    attack: str
    norm: str
    eps: float
    images: int
    """images to attack, once per seed; 0 if a record exists"""
    stored: bool
    forward: float | None
    backward: float | None
    max_forward: float
    max_backward: float
    seconds: float | None
    max_seconds: float
    measured_images: int
    """images that were attacked to the end; 0 if the time is that of a part of a batch"""
    stops_early: bool


class EvaluationCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of evaluating one checkpoint: its tasks, and what they share."""

    tasks: list[TaskCost]
    verifier_seconds: float
    device: str
    batch_size: int
    peak_memory: int | None
    """bytes: of the process on the CPU, allocated on an accelerator; null if not known"""

    @property
    def seconds(self) -> float | None:
        """Expected seconds; None if they are not known for one of the attacks."""
        known = [task.seconds for task in self.tasks if task.seconds is not None]
        return self.verifier_seconds + sum(known) if len(known) == len(self.tasks) else None

    @property
    def max_seconds(self) -> float:
        """Upper bound of the seconds."""
        return self.verifier_seconds + sum(task.max_seconds for task in self.tasks)


def costs_to_csv(costs: Iterable[EvaluationCost]) -> str:
    """Return a CSV row per task."""
    tasks = [msgspec.to_builtins(task) for cost in costs for task in cost.tasks]
    return csv_text(CSV_HEADINGS, [[task[name] for name in CSV_HEADINGS] for task in tasks])


def costs_to_json(costs: Iterable[EvaluationCost]) -> list[dict[str, Any]]:
    """Return the costs for JSON, each with the seconds of all its tasks."""
    return [
        {
            **msgspec.to_builtins(cost),
            "seconds": cost.seconds,
            "max_seconds": cost.max_seconds,
        }
        for cost in costs
    ]
