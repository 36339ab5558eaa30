"""Rows in, numbers out: NumPy and float64 only. One implementation for `evaluate`, `report` and notebooks."""

from .accuracy import WeightedAccuracy, plain_accuracy, weighted_accuracy
from .dro import RHOS, WorstCase, worst_accuracy, worst_case, worst_cases
from .intervals import Estimate, logit_delta, wilson
from .score import accuracy, at_alpha, correct, crafted_accuracy, sampled_accuracy
from .weights import exponential_log_weights, normalized_weights

__all__ = [
    "RHOS",
    "Estimate",
    "WeightedAccuracy",
    "WorstCase",
    "accuracy",
    "at_alpha",
    "correct",
    "crafted_accuracy",
    "exponential_log_weights",
    "logit_delta",
    "normalized_weights",
    "plain_accuracy",
    "sampled_accuracy",
    "weighted_accuracy",
    "wilson",
    "worst_accuracy",
    "worst_case",
    "worst_cases",
]
