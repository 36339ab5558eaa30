"""Accuracy on the validation set during training, clean and under a short attack."""

from typing import Any

import torch
from torch import nn

from .. import measures
from ..config import TrainConfig
from ..core.data.splits import read_ahead
from ..core.nn.fusion import SAMPLE_SIZE
from ..core.protocols import Evidence, ObservesValidation
from ..core.rng import derive_seed
from ..evaluation.evaluator import Evaluator, stack_rows
from ..storage.records import Rows
from .setup import TrainingSetup, validation_alpha

OBSERVED_LOGITS = frozenset({"clean", "uniform"})
"""Rows whose logits are the evidence of a kernel that observes the validation set."""


def validate_if_due(run: TrainingSetup, epoch: int) -> dict[str, Any]:
    """Validate the model and its averaged weights after this epoch, counted from 1.

    Return metrics for the log: none in epochs that are not validated.
    """
    every = run.config.validate_every
    is_last = epoch == run.schedule_config.epochs
    is_due = every > 0 and (epoch % every == 0 or is_last)
    kernel = run.kernel
    # a kernel that learns from the validation set sees it after every epoch
    if not (is_due or isinstance(kernel, ObservesValidation)):
        return {}
    rows = evaluate_validation_set(run, run.model)
    if isinstance(kernel, ObservesValidation):
        kernel.observe(make_evidence(rows, run.runtime.device))
    if not is_due:
        return {}
    metrics = compute_metrics(rows, run.config)
    if run.average is not None:
        averaged = compute_metrics(evaluate_validation_set(run, run.average.model), run.config)
        metrics |= {f"ema_{name}": value for name, value in averaged.items()}
    return metrics


def evaluate_validation_set(run: TrainingSetup, model: nn.Module) -> Rows:
    """Evaluate the `val` split, divided among the ranks; every rank returns all rows."""
    ranks = run.runtime.ranks
    split = run.validation_split
    evaluator = make_validation_evaluator(run, model)
    positions = ranks.share(torch.arange(len(split)))
    batch_size = max(run.config.batch_size // ranks.count, 1)
    # a small split may leave a rank without images
    batches = read_ahead(split, positions.split(batch_size)) if len(positions) else ()
    parts = list(evaluator.evaluate_batches(batches, run.runtime.device))
    # every rank needs all rows: kernels observe them, and the best epoch follows from them
    own_rows = stack_rows(parts) if parts else None
    return stack_rows([rows for rows in ranks.gather_objects(own_rows) if rows is not None])


def make_validation_evaluator(run: TrainingSetup, model: nn.Module) -> Evaluator:
    """Make the evaluator of a model with the validation attack."""
    config = run.config
    split = run.validation_split
    sample = split.batch(torch.arange(min(SAMPLE_SIZE, len(split)))).to(run.runtime.device)
    evaluator = Evaluator(
        model=model,
        attack=run.validation_attack,
        norm=config.norm,
        eps=config.eps,
        num_classes=run.source.num_classes,
        # the same noise in every epoch, so that epochs are compared under equal attacks
        seed=derive_seed("validate", config.seed),
        kernels={validation_alpha(config): run.validation_kernel},
        # a second attack on the weighted objective, only if its accuracy selects the best weights
        runs_weighted_attack=config.select == "tr",
        # ranks exchange all rows, and only a kernel that observes them needs logits
        logit_prefixes=OBSERVED_LOGITS
        if isinstance(run.kernel, ObservesValidation)
        else frozenset(),
    )
    return evaluator.prepare(sample.images, layout=config.layout, fuse=config.fold)


def make_evidence(rows: Rows, device: torch.device) -> Evidence:
    """Return the evidence of the validation set under attack."""
    columns = {
        "logits": "uniform/logits",
        "labels": "label",
        "index": "index",
        "clean_logits": "clean/logits",
        "loss": "uniform/loss",
    }
    tensors = {name: torch.from_numpy(rows[column]) for name, column in columns.items()}
    return Evidence(**{name: tensor.to(device) for name, tensor in tensors.items()})


def compute_metrics(rows: Rows, config: TrainConfig) -> dict[str, Any]:
    """Return A_nat, A_rob, A_sa and, if it was measured, A_tr, with their intervals."""
    alpha = validation_alpha(config)
    estimates = {
        "val_a_nat": measures.accuracy(rows, "clean"),
        "val_a_rob": measures.accuracy(rows, "uniform"),
        "val_a_sa": measures.sampled_accuracy(rows, measures.MARGIN_KERNEL, alpha),
        "val_a_tr": measures.crafted_accuracy(rows, measures.MARGIN_KERNEL, alpha),
    }
    metrics: dict[str, Any] = {}
    for name, estimate in estimates.items():
        if estimate is not None:
            metrics[name] = estimate.value
            metrics[f"{name}_low"] = estimate.low
            metrics[f"{name}_high"] = estimate.high
    return metrics
