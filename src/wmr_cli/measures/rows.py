"""Compute A_nat, A_rob, A_sa, A_tr and the losses of DRO from stored rows, at any alpha.

Rows are arrays with one entry per image: `label`, and `prediction`, `margin`, … under `clean/`,
`uniform/` (the unweighted attack) and `weighted@2.0/` (the weighted attack of A_tr). Log-weights
of the paper's kernel follow from the margins; other kernels store theirs as rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .accuracy import Floats, Outcome, exponential_log_weights
from .intervals import Estimate

Rows = Mapping[str, NDArray[Any]]
MARGIN_KERNEL = "exp"
"""The kernel whose log-weights follow from the stored margins, at any alpha.

Records store it by this name, and reports must read them without loading any component.
"""


def at_alpha(name: str, alpha: float | None) -> str:
    """Return the row name for one alpha, e.g. `weighted@2.0`; the plain name without alpha."""
    if alpha is None:
        return name
    # repr of a float is part of the file format: 2 and 2.0 are the same row
    return f"{name}@{float(alpha)!r}"


def correct(rows: Rows, prefix: str) -> NDArray[np.bool_]:
    """Return which images are classified correctly, (N,)."""
    return np.asarray(rows[f"{prefix}/prediction"] == rows["label"])


def plain_outcome(rows: Rows, prefix: str) -> Outcome | None:
    """Return the outcome for A_nat (`clean`) or A_rob (`uniform`); None if not measured."""
    if f"{prefix}/prediction" not in rows:
        return None
    return Outcome(correct(rows, prefix))


def sampled_outcome(rows: Rows, kernel: str, alpha: float | None) -> Outcome | None:
    """Return the outcome for A_sa: images of the unweighted attack, sampled by weight."""
    return _weighted(rows, "uniform", at_alpha("uniform/log_weight", alpha), kernel, alpha)


def crafted_outcome(rows: Rows, kernel: str, alpha: float | None) -> Outcome | None:
    """Return the outcome for A_tr: images of the weighted attack, sampled by weight."""
    prefix = at_alpha("weighted", alpha)
    return _weighted(rows, prefix, f"{prefix}/log_weight", kernel, alpha)


def accuracy(rows: Rows, prefix: str) -> Estimate | None:
    """Return A_nat (`clean`) or A_rob (`uniform`); None if not measured."""
    return _estimate(plain_outcome(rows, prefix))


def sampled_accuracy(rows: Rows, kernel: str, alpha: float | None) -> Estimate | None:
    """Return A_sa with its interval; None if its weights are not known."""
    return _estimate(sampled_outcome(rows, kernel, alpha))


def crafted_accuracy(rows: Rows, kernel: str, alpha: float | None) -> Estimate | None:
    """Return A_tr with its interval; None if its attack was not run."""
    return _estimate(crafted_outcome(rows, kernel, alpha))


def attacked_losses(rows: Rows, name: str) -> Floats | None:
    """Return the losses (N,) under the unweighted attack: `ce`, `margin` or `zero-one`.

    The margin loss is minus the logit margin. The result is None if the loss was not measured:
    attacks that stop early leave only predictions, and so only the zero-one loss.
    """
    if name == "zero-one":
        if "uniform/prediction" not in rows:
            return None
        return (~correct(rows, "uniform")).astype(np.float64)
    row, sign = {"ce": ("uniform/loss", 1.0), "margin": ("uniform/logit_margin", -1.0)}[name]
    if row not in rows:
        return None
    return sign * np.asarray(rows[row], dtype=np.float64)


def _estimate(outcome: Outcome | None) -> Estimate | None:
    if outcome is None:
        return None
    return outcome.estimate()


def _weighted(
    rows: Rows, prefix: str, stored: str, kernel: str, alpha: float | None
) -> Outcome | None:
    logs: Floats
    # attacks that stop early have no margins, and weights of their images mean nothing
    if f"{prefix}/margin" not in rows:
        return None
    # stored weights first: kernels may depend on more than the margin
    if stored in rows:
        logs = np.asarray(rows[stored], dtype=np.float64)
    elif kernel == MARGIN_KERNEL and alpha is not None:
        logs = exponential_log_weights(rows[f"{prefix}/margin"], alpha)
    else:
        return None
    return Outcome(correct(rows, prefix), logs)


def worst_rows(attacks: Sequence[Rows]) -> dict[str, NDArray[Any]]:
    """Return the worst case of each image over several attacks on the same images.

    A successful attack takes precedence over an unsuccessful one, then the lower logit margin
    decides. If an attack has no margins, the result has only predictions.
    """
    first = attacks[0]
    for other in attacks[1:]:
        for name in ("index", "label"):
            if not np.array_equal(first[name], other[name]):
                raise ValueError("the attacks were run on different images")
    # clean rows do not depend on the attack
    worst = {
        name: values
        for name, values in first.items()
        if "/" not in name or name.startswith("clean/")
    }
    predictions = [name for name in first if name.endswith("/prediction")]
    for prefix in dict.fromkeys(name.rpartition("/")[0] for name in predictions):
        if prefix != "clean" and all(f"{prefix}/prediction" in rows for rows in attacks):
            worst |= _pick_worst(attacks, prefix)
    return worst


def _pick_worst(attacks: Sequence[Rows], prefix: str) -> dict[str, NDArray[Any]]:
    is_correct = np.stack([correct(rows, prefix) for rows in attacks])
    # rows that all attacks have: those of one image come from one attack, and stay consistent
    names = [
        name
        for name in attacks[0]
        if name.startswith(f"{prefix}/") and all(name in rows for rows in attacks)
    ]
    if f"{prefix}/logit_margin" in names:
        margins = np.stack([rows[f"{prefix}/logit_margin"] for rows in attacks]).astype(np.float64)
        # the last key of lexsort is the primary one: misclassified first, then the lowest margin
        chosen = np.lexsort((margins, is_correct), axis=0)[0]
    else:
        names = [f"{prefix}/prediction"]
        chosen = is_correct.argmin(axis=0)
    images = np.arange(len(chosen))
    return {name: np.stack([rows[name] for rows in attacks])[chosen, images] for name in names}
