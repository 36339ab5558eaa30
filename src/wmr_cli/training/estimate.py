"""How long a run would take, from a few of its steps; nothing is written."""

import math
import time
from dataclasses import dataclass

import torch

from ..core.protocols import Split
from ..registry import Registry
from ..runtime import components
from .loop import batches
from .schedules import Pace
from .setup import Assembly
from .validation import make_validation_evaluator

STEPS, SECONDS = 5, 20.0
"""So many steps are measured after the first, or as many as fit into this time, and one at least."""


@dataclass(frozen=True)
class Estimate:
    """Seconds of one epoch's steps, of one look at held-out images, and of the whole run."""

    epoch: float
    look: float
    run: float


def estimate(run: Assembly, registry: Registry) -> Estimate:
    """Take a few steps at full strength and look at a batch of held-out images."""
    config = run.config
    steps, look = math.ceil(len(run.split) / config.batch_size), 0.0
    epoch = steps * _seconds_per_step(run)
    if config.validate_every or hasattr(run.kernel, "observe"):
        val = components.get_split(run.source, "val")
        look = _seconds_per_look(run, registry, val) * (1 if run.average is None else 2)
    epochs = run.timetable.epochs
    every = 1 if hasattr(run.kernel, "observe") else config.validate_every
    looks = math.ceil(epochs / every) if every else 0
    return Estimate(epoch, look, epochs * epoch + looks * look)


def _seconds_per_step(run: Assembly) -> float:
    """The first step is not counted: it warms up what later ones use."""
    todo = batches(run.split, run.config, epoch=0)
    started, counted = time.perf_counter(), 0
    for number, positions in enumerate(todo[: STEPS + 1]):
        if number == 1:
            started = time.perf_counter()
        if run.runtime.ranks.max(int(bool(counted) and time.perf_counter() - started > SECONDS)):
            break
        after_warm_up = run.timetable.epochs - 1
        run.learner.begin_step(
            after_warm_up, number, Pace(run.config.lr), len(positions), judged=False
        )
        run.step(run.split.batch(run.runtime.ranks.share(positions)), epoch=0)
        counted += number > 0
    return (time.perf_counter() - started) / max(counted, 1)


def _seconds_per_look(run: Assembly, registry: Registry, val: Split) -> float:
    evaluator = make_validation_evaluator(
        run.model, run.source, run.config, run.validation, registry
    )
    batch = val.batch(torch.arange(min(len(val), run.config.batch_size))).to(
        run.runtime.device, evaluator.memory_format
    )
    started = time.perf_counter()
    evaluator.evaluate_batch(batch)
    return (time.perf_counter() - started) * len(val) / len(batch.labels) / run.runtime.ranks.count
