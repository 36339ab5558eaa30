"""Compute accuracies, intervals and worst cases from rows, with NumPy in float64.

`evaluate`, `report` and notebooks share this one implementation. Confidence intervals of A_nat,
A_rob, A_sa and A_tr are in `intervals.py`.
"""

from .accuracy import (
    Accuracies,
    Outcome,
    RunningAccuracy,
    WeightedAccuracy,
    exponential_log_weights,
    normalized_weights,
    plain_accuracy,
    weighted_accuracy,
)
from .bootstrap import Difference, Resampled, Resamples, bootstrap, mean_of
from .calibration import (
    calibrated_accuracy,
    calibrated_losses,
    calibrating_temperature,
    probability_margins,
    ranked_accuracy,
    tempered_accuracy,
)
from .dro import RHOS, WorstCase, worst_accuracy, worst_case, worst_cases
from .intervals import (
    Estimate,
    Spread,
    logit_delta,
    mean_estimate,
    seeds_interval,
    spread,
    wilson,
)
from .rows import (
    MARGIN_KERNEL,
    accuracy,
    at_alpha,
    attacked_losses,
    correct,
    crafted_accuracy,
    crafted_outcome,
    plain_outcome,
    sampled_accuracy,
    sampled_outcome,
    worst_rows,
)

__all__ = [
    "MARGIN_KERNEL",
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
