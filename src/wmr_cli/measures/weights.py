"""The attacker's choice: weights of images, as logarithms until they are normalised."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def exponential_log_weights(margins: ArrayLike, alpha: float) -> Floats:
    """The paper's kernel exp(-alpha * margin), as a logarithm."""
    return -alpha * np.asarray(margins, dtype=np.float64)


def normalized_weights(log_weights: ArrayLike) -> Floats:
    """Weights that sum to one; no log-weight is too large."""
    logs = np.asarray(log_weights, dtype=np.float64)
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum())
