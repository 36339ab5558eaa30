"""Per-image rows to A_nat, A_rob, A_sa, A_tr and the losses behind DRO. Any alpha, without attacking again.

Rows are arrays with one entry per image: `label`, and `prediction`, `margin`, … under `clean/`, `uniform/` (the
unweighted attack) and `weighted@2.0/` (the weighted attack of A_tr). A kernel other than the paper's stores its
log-weights as a row; the paper's follow from the margins.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .accuracy import Outcome
from .intervals import Estimate
from .weights import Floats, exponential_log_weights

Rows = Mapping[str, NDArray[Any]]


def at_alpha(name: str, alpha: float | None) -> str:
    """The name of a row that belongs to one alpha: `weighted@2.0`; `weighted` for a kernel without one."""
    return name if alpha is None else f"{name}@{float(alpha)!r}"


def correct(rows: Rows, prefix: str) -> NDArray[np.bool_]:
    """Which images are right, by their predictions."""
    return np.asarray(rows[f"{prefix}/prediction"] == rows["label"])


def plain_outcome(rows: Rows, prefix: str) -> Outcome | None:
    """What is behind A_nat (`clean`) or A_rob (`uniform`); none where that was not measured."""
    return Outcome(correct(rows, prefix)) if f"{prefix}/prediction" in rows else None


def sampled_outcome(rows: Rows, kernel: str, alpha: float | None) -> Outcome | None:
    """What is behind A_sa: the images of the unweighted attack, sampled by weight."""
    return _weighted(rows, "uniform", at_alpha("uniform/log_weight", alpha), kernel, alpha)


def crafted_outcome(rows: Rows, kernel: str, alpha: float | None) -> Outcome | None:
    """What is behind A_tr: crafted by the weighted attack and sampled by weight."""
    prefix = at_alpha("weighted", alpha)
    return _weighted(rows, prefix, f"{prefix}/log_weight", kernel, alpha)


def accuracy(rows: Rows, prefix: str) -> Estimate | None:
    """A_nat (`clean`) or A_rob (`uniform`); none where that was not measured."""
    return _estimated(plain_outcome(rows, prefix))


def sampled_accuracy(rows: Rows, kernel: str, alpha: float | None) -> Estimate | None:
    """A_sa; none where its weights are not known."""
    return _estimated(sampled_outcome(rows, kernel, alpha))


def crafted_accuracy(rows: Rows, kernel: str, alpha: float | None) -> Estimate | None:
    """A_tr; none where its attack was not run."""
    return _estimated(crafted_outcome(rows, kernel, alpha))


def attacked_losses(rows: Rows, name: str) -> Floats | None:
    """Losses (N,) of the images of the unweighted attack: `ce`, `margin` (minus the logit margin) or `zero-one`.

    None where they were not measured: an attack that stops early knows right from wrong and nothing else.
    """
    if name == "zero-one":
        return (~correct(rows, "uniform")).astype(np.float64) if "uniform/prediction" in rows else None
    row, sign = {"ce": ("uniform/loss", 1.0), "margin": ("uniform/logit_margin", -1.0)}[name]
    return sign * np.asarray(rows[row], dtype=np.float64) if row in rows else None


def _estimated(outcome: Outcome | None) -> Estimate | None:
    return None if outcome is None else outcome.estimate()


def _weighted(rows: Rows, prefix: str, stored: str, kernel: str, alpha: float | None) -> Outcome | None:
    logs: Floats
    if f"{prefix}/margin" not in rows:
        return None
    if stored in rows:
        logs = np.asarray(rows[stored], dtype=np.float64)
    elif kernel == "exp" and alpha is not None:
        logs = exponential_log_weights(rows[f"{prefix}/margin"], alpha)
    else:
        return None
    return Outcome(correct(rows, prefix), logs)
