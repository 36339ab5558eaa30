"""Bound the margins of images over their ε-ball with a verifier, once per threat model."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from ..core.contexts import evaluating
from ..core.protocols import Batch, LogitBounds, Verifier
from ..core.run_attack import ABSOLUTE_TOLERANCE, RELATIVE_TOLERANCE
from ..errors import BrokenContract
from ..measures import (
    VERIFIED_LOGIT_MARGIN,
    VERIFIED_MARGIN,
    bound_probability_margin,
    find_contradictions,
)
from ..storage.records import Rows

MAX_NAMED_IMAGES = 20
"""An error names at most this many images."""
LOWEST_LOGIT_MARGIN = -1e300
"""Stored for a bound of minus infinity: stored margins are finite."""


@dataclass(frozen=True, kw_only=True)
class Certifier:
    """A verifier for one model and ε-ball. Attacks on the same images share its bounds."""

    verifier: Verifier
    model: nn.Module
    """Without fusion: verifiers read its layers."""
    norm: str
    eps: float
    num_classes: int
    cache: dict[bytes, Rows] = field(default_factory=dict)
    """Rows by image index: all attacks cut the images into the same batches."""

    def bound_margins(self, batch: Batch) -> Rows:
        """Return lower bounds of the logit margin and the probability margin of each image."""
        key = batch.index.cpu().numpy().tobytes()
        if key not in self.cache:
            with evaluating(self.model):
                bounds = self.verifier(
                    self.model,
                    batch,
                    norm=self.norm,
                    # attacks may leave the ball by their rounding errors
                    eps=self.eps * (1 + RELATIVE_TOLERANCE) + ABSOLUTE_TOLERANCE,
                    num_classes=self.num_classes,
                )
            differences = check_bounds(bounds, batch, self.num_classes).numpy()
            least = np.maximum(differences.min(axis=1), LOWEST_LOGIT_MARGIN)
            self.cache[key] = {
                VERIFIED_LOGIT_MARGIN: least,
                VERIFIED_MARGIN: bound_probability_margin(differences),
            }
        return self.cache[key]


def check_bounds(bounds: object, batch: Batch, num_classes: int) -> Tensor:
    """Return the differences (N, K) of a verifier on the CPU, in float64; refuse other results."""
    shape = (len(batch.labels), num_classes)
    hint = "a verifier returns LogitBounds of true minus other logits, with +inf for the true class"
    # plugins may return any object
    if not isinstance(bounds, LogitBounds) or not isinstance(bounds.differences, Tensor):
        raise BrokenContract(f"the verifier returned a {type(bounds).__name__}", hint=hint)
    differences = bounds.differences.detach().cpu().double()
    if differences.shape != shape:
        raise BrokenContract(f"the bounds have shape {tuple(differences.shape)}", hint=hint)
    is_true = torch.nn.functional.one_hot(batch.labels.cpu(), num_classes).bool()
    if differences.isnan().any() or not torch.equal(differences == torch.inf, is_true):
        raise BrokenContract("a bound is NaN, or +inf for another class", hint=hint)
    return differences


def refuse_contradictions(rows: Rows, verifier: str) -> None:
    """Raise if an image in the ball violates its verified bound: no result would be reliable."""
    found = find_contradictions(rows)
    if found is None or not found.any():
        return
    images = rows["index"][found].tolist()
    named = ", ".join(map(str, images[:MAX_NAMED_IMAGES]))
    more = f" and {len(images) - MAX_NAMED_IMAGES} more" if len(images) > MAX_NAMED_IMAGES else ""
    raise BrokenContract(
        f"images {named}{more}: an image in the ε-ball violates the bound that the verifier "
        f"{verifier!r} has shown, so that the verifier, or the arithmetic, is unsound",
        hint="report this to the author of the verifier, with the model and these images",
    )
