"""Rows in, numbers out: NumPy and float64 only. One implementation for `evaluate`, `report` and notebooks."""

from .accuracy import Outcome, WeightedAccuracy, plain_accuracy, weighted_accuracy
from .audit import (
    calibrated_accuracy,
    calibrated_losses,
    calibrating_temperature,
    probability_margins,
    ranked_accuracy,
    tempered_accuracy,
)
from .bootstrap import bootstrap
from .dro import RHOS, WorstCase, worst_accuracy, worst_case, worst_cases
from .intervals import Estimate, logit_delta, wilson
from .paired import Difference, Resampled, Resamples, mean_of
from .running import Accuracies, RunningAccuracy
from .score import (
    accuracy,
    at_alpha,
    attacked_losses,
    correct,
    crafted_accuracy,
    crafted_outcome,
    plain_outcome,
    sampled_accuracy,
    sampled_outcome,
)
from .seeds import Spread, mean_estimate, seeds_interval, spread
from .weights import exponential_log_weights, normalized_weights
from .worst import worst_rows

__all__ = [
    "RHOS",
    "Accuracies",
    "Difference",
    "Estimate",
    "Outcome",
    "Resampled",
    "Resamples",
    "RunningAccuracy",
    "Spread",
    "WeightedAccuracy",
    "WorstCase",
    "accuracy",
    "at_alpha",
    "attacked_losses",
    "bootstrap",
    "calibrated_accuracy",
    "calibrated_losses",
    "calibrating_temperature",
    "correct",
    "crafted_accuracy",
    "crafted_outcome",
    "exponential_log_weights",
    "logit_delta",
    "mean_estimate",
    "mean_of",
    "normalized_weights",
    "plain_accuracy",
    "plain_outcome",
    "probability_margins",
    "ranked_accuracy",
    "sampled_accuracy",
    "sampled_outcome",
    "seeds_interval",
    "spread",
    "tempered_accuracy",
    "weighted_accuracy",
    "wilson",
    "worst_accuracy",
    "worst_case",
    "worst_cases",
    "worst_rows",
]
