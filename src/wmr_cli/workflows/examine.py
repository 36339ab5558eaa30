"""A batch to its per-image rows: clean, under the unweighted attack, and under the weighted attack of each alpha."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..core.contracts import Attack, Batch, Evidence, Kernel, Objective, Split
from ..core.guards import check_batch, check_log_weights, check_logits, guarded, predictions
from ..core.losses import cross_entropy
from ..core.margins import logit_margin, probability_margin
from ..core.modes import evaluating
from ..core.norms import NORMS
from ..core.objectives import objective_named, weighted_objective
from ..core.splits import ahead
from ..measures import at_alpha
from ..storage.records import Rows
from .parts import exact_float32


@dataclass(frozen=True)
class Examination:
    """One network under one attack. `kernels` holds the attacker's choice rule for each alpha (None: it has no alpha).

    The log-weights of the paper's kernel follow from the margins; those of any other are stored as rows.
    """

    model: nn.Module
    attack: Attack
    norm: str
    eps: float
    num_classes: int
    seed: int
    kernels: dict[float | None, Kernel] = field(default_factory=dict)
    attacks: bool = True
    gives_margins: bool = True
    crafts_by_weight: bool = True
    stores_log_weights: bool = False
    memory_format: torch.memory_format = torch.contiguous_format
    """the layout of the images, which that of all that follows goes by"""
    known: dict[bytes, Tensor] | None = None
    """clean logits of batches, by the index of their images: what several attacks on the same images share"""

    def rows(self, batch: Batch) -> Rows:
        """Every number is the image's own: the batch it came in leaves no trace beyond float rounding."""
        check_batch(batch, self.num_classes)
        with evaluating(self.model):
            logits = self._clean_logits(batch)
            rows = {"index": batch.index.cpu().numpy(), "label": batch.labels.cpu().numpy()}
            rows |= _judged("clean", logits, batch.labels)
            if self.attacks:
                rows |= self._attacked_rows(batch)
        return rows

    def _clean_logits(self, batch: Batch) -> Tensor:
        known, key = {} if self.known is None else self.known, batch.index.cpu().numpy().tobytes()
        if key not in known:
            with torch.no_grad():
                logits = self.model(batch.images)
            check_logits(logits, batch.index, self.num_classes)
            known[key] = logits.cpu()
        return known[key]

    def _attacked_rows(self, batch: Batch) -> Rows:
        loss = getattr(self.attack, "loss", "ce")
        uniform = self._logits_under(objective_named(loss), batch)
        rows = _judged("uniform", uniform, batch.labels)
        if not self.gives_margins:
            return {"uniform/prediction": rows["uniform/prediction"]}
        for alpha, kernel in self.kernels.items():
            stores = self.stores_log_weights and not getattr(kernel, "compares", False)
            if stores:
                rows[at_alpha("uniform/log_weight", alpha)] = _log_weights(kernel, uniform, batch)
            if self.crafts_by_weight:
                prefix, is_plain = at_alpha("weighted", alpha), getattr(kernel, "detached", False)
                crafted = uniform if is_plain else self._logits_under(weighted_objective(loss, kernel), batch)
                rows |= _judged(prefix, crafted, batch.labels)
                if stores:
                    rows[f"{prefix}/log_weight"] = _log_weights(kernel, crafted, batch)
        return rows

    def _logits_under(self, objective: Objective, batch: Batch) -> Tensor:
        return guarded(self.attack, self.model, batch, objective, self.seed, NORMS[self.norm], self.eps, self.num_classes).logits


def _judged(prefix: str, logits: Tensor, labels: Tensor) -> Rows:
    """Prediction, margins and loss of each image; float64, so that saturated probabilities make no false ties."""
    fine, labels = _fine(logits), labels.cpu()
    values = {
        "prediction": predictions(fine),
        "margin": probability_margin(fine, labels),
        "logit_margin": logit_margin(fine, labels).float(),
        "loss": cross_entropy(fine, labels).float(),
        "logits": fine.float(),
    }
    return {f"{prefix}/{name}": value.numpy() for name, value in values.items()}


def _log_weights(kernel: Kernel, logits: Tensor, batch: Batch) -> NDArray[Any]:
    fine, labels = _fine(logits), batch.labels.cpu()
    return _weigh(kernel, Evidence(fine, labels, batch.index.cpu(), loss=cross_entropy(fine, labels)))


def _weigh(kernel: Kernel, evidence: Evidence) -> NDArray[Any]:
    log_weights = kernel(evidence)
    check_log_weights(kernel, log_weights, len(evidence.labels))
    return log_weights.detach().double().numpy()


def _fine(logits: Tensor) -> Tensor:
    """In float64, on the CPU: not every device has it."""
    return logits.detach().cpu().double()


def walked(examination: Examination, batches: Iterable[Batch], device: Any) -> Iterator[Rows]:
    """The rows of each batch, in plain float32."""
    for batch in batches:
        with exact_float32():
            rows = examination.rows(batch.to(device, examination.memory_format))
        yield rows


def examined(examination: Examination, split: Split, positions: Tensor, batch_size: int, device: Any) -> Rows:
    """The rows of the images at these positions, a batch at a time."""
    return stack(list(walked(examination, ahead(split, positions.split(batch_size)), device)))


def compared(rows: Rows, kernels: Mapping[float | None, Kernel]) -> Rows:
    """The rows of all images, with the log-weights of kernels that weigh images against each other."""
    found = dict(rows)
    for alpha, kernel in kernels.items():
        weighted = at_alpha("weighted", alpha)
        for prefix, name in (("uniform", at_alpha("uniform/log_weight", alpha)), (weighted, f"{weighted}/log_weight")):
            if getattr(kernel, "compares", False) and f"{prefix}/logits" in rows:
                logits, labels, index, loss = (
                    torch.from_numpy(rows[row]) for row in (f"{prefix}/logits", "label", "index", f"{prefix}/loss")
                )
                found[name] = _weigh(kernel, Evidence(logits.double(), labels, index, loss=loss.double()))
    return found


def stack(parts: list[Rows]) -> Rows:
    """Rows of consecutive images as one."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
