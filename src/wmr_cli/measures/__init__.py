"""Rows in, numbers out: NumPy and float64 only. One implementation for `evaluate`, `report` and notebooks."""

from .accuracy import WeightedAccuracy, plain_accuracy, weighted_accuracy
from .audit import probability_margins, ranked_accuracy, tempered_accuracy
from .intervals import Estimate, logit_delta, wilson
from .score import accuracy, at_alpha, correct, crafted_accuracy, sampled_accuracy
from .weights import exponential_log_weights, normalized_weights
from .worst import worst_rows

__all__ = [
    "Estimate",
    "WeightedAccuracy",
    "accuracy",
    "at_alpha",
    "correct",
    "crafted_accuracy",
    "exponential_log_weights",
    "logit_delta",
    "normalized_weights",
    "plain_accuracy",
    "probability_margins",
    "ranked_accuracy",
    "sampled_accuracy",
    "tempered_accuracy",
    "weighted_accuracy",
    "wilson",
    "worst_rows",
]
