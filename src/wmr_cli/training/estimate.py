"""Estimate how long a run would take, from a few of its steps. Nothing is written."""

import math
import time
from dataclasses import dataclass

import torch

from ..core.protocols import ObservesValidation, Split
from ..runtime import datasets
from ..runtime.accelerators import synchronize
from .loop import count_steps, make_batches, train_step
from .optimization import StepSettings
from .setup import TrainingSetup
from .validation import make_validation_evaluator

MAX_TIMED_STEPS = 5
MAX_SECONDS = 20.0
"""No further step is started after this time, but one is always measured."""


@dataclass(frozen=True)
class Estimate:
    """Seconds of one epoch's steps, of one validation, and of the whole run."""

    epoch: float
    validation: float
    run: float


def estimate(run: TrainingSetup) -> Estimate:
    """Run a few training steps and validate on one batch."""
    config = run.config
    observes_validation = isinstance(run.kernel, ObservesValidation)
    epoch = count_steps(run) * _seconds_per_step(run)
    validation = 0.0
    if config.validate_every or observes_validation:
        split = datasets.get_split(run.source, "val")
        # averaged weights are validated in addition
        models = 1 if run.average is None else 2
        validation = models * _seconds_per_validation(run, split)
    epochs = run.schedule_config.epochs
    every = 1 if observes_validation else config.validate_every
    validations = math.ceil(epochs / every) if every else 0
    return Estimate(epoch, validation, epochs * epoch + validations * validation)


def _seconds_per_step(run: TrainingSetup) -> float:
    """Time steps at full strength, after one step of warm-up."""
    ranks = run.runtime.ranks
    started = time.perf_counter()
    timed_steps = 0
    batches = make_batches(run.split, run.config, epoch=0, extra=run.extra)
    for number, positions in enumerate(batches[: MAX_TIMED_STEPS + 1]):
        # the first step allocates memory and selects algorithms
        if number == 1:
            started = time.perf_counter()
        is_over_time = timed_steps > 0 and time.perf_counter() - started > MAX_SECONDS
        # all ranks must stop at the same step, as each step is a collective operation
        if ranks.max(int(is_over_time)):
            break
        # the last epoch, where warm-up and ramps are complete
        last_epoch = run.schedule_config.epochs - 1
        settings = StepSettings(run.config.lr)
        run.learner.begin_step(last_epoch, number, settings, len(positions), measure_success=False)
        train_step(run, next(run.batches.read([ranks.share(positions)], epoch=0)))
        timed_steps += number > 0
    synchronize(run.runtime.device)
    # an epoch of a single batch has only the warm-up step to time
    return (time.perf_counter() - started) / max(timed_steps, 1)


def _seconds_per_validation(run: TrainingSetup, split: Split) -> float:
    """Extrapolate from one batch to this rank's part of the split."""
    evaluator = make_validation_evaluator(run, run.model)
    positions = torch.arange(min(len(split), run.config.batch_size))
    batch = split.batch(positions).to(run.runtime.device, evaluator.memory_format)
    started = time.perf_counter()
    evaluator.evaluate_batch(batch)
    seconds_per_image = (time.perf_counter() - started) / len(batch.labels)
    return seconds_per_image * len(split) / run.runtime.ranks.count
