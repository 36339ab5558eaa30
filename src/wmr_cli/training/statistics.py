"""What an epoch's steps saw, summed up over all ranks: what was paid, and the health of the weights."""

import torch
from torch import Tensor

from ..core.protocols import StepReport
from ..runtime.distributed import Ranks

ONE_RANK = Ranks()
Fooling = tuple[Tensor, Tensor]
"""Who was right before the attack, and who of those is wrong after it, (N,) each."""
SUMS = (
    "images", "loss", "correct", "margin", "weight", "weight_squared", "weight_on_wrong",
    "seen_clean", "clean_correct", "attacked", "fooled",
)  # fmt: skip
"""Per step and rank. `attacked` counts the images that were right before the first step of the attack."""


class Tally:
    """Sums in float64, in the order of the steps, so that a run that was stopped goes on to the same numbers."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin an epoch."""
        self._sums = torch.zeros(len(SUMS), dtype=torch.float64)
        self._steps, self._ess, self._largest = 0, 0.0, 0.0

    def add(
        self, report: StepReport, fooling: Fooling | None = None, ranks: Ranks = ONE_RANK
    ) -> float:
        """Take in a step of every rank; its mean loss."""
        sums, largest = _summed(report, fooling), report.weights.max().cpu().double()
        parts = ranks.all_gather(torch.cat([sums, largest[None]]))
        sums, largest = parts[:, :-1].sum(dim=0), parts[:, -1].max()
        step = dict(zip(SUMS, sums.tolist(), strict=True))
        self._sums += sums
        self._steps += 1
        # one for equal weights, one over the batch's size where a single image has them all
        self._ess += (
            step["weight"] ** 2 / step["weight_squared"] / step["images"]
            if step["weight_squared"]
            else 0.0
        )
        self._largest = max(self._largest, float(largest))
        return float(step["loss"] / step["images"])

    def summary(self) -> dict[str, float]:
        """Means over the epoch's training images; the effective sample size of a batch as a share of it."""
        total = dict(zip(SUMS, self._sums.tolist(), strict=True))
        entry = {
            "loss": total["loss"] / total["images"],
            "train_accuracy": total["correct"] / total["images"],
            "margin_mean": total["margin"] / total["images"],
            "weight_mean": total["weight"] / total["images"],
            "weight_max": self._largest,
            "weight_ess": self._ess / self._steps,
            "weight_on_wrong": total["weight_on_wrong"] / total["weight"]
            if total["weight"]
            else 0.0,
        }
        if total["seen_clean"]:
            entry["train_clean_accuracy"] = total["clean_correct"] / total["seen_clean"]
        if total["attacked"]:
            entry["attack_success"] = total["fooled"] / total["attacked"]
        return entry

    def state(self) -> dict[str, Tensor]:
        """Where the epoch stands."""
        return {
            "sums": self._sums,
            "others": torch.tensor([self._steps, self._ess, self._largest], dtype=torch.float64),
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Bring back what `state` gave."""
        self._sums = state["sums"].clone()
        steps, self._ess, self._largest = state["others"].tolist()
        self._steps = int(steps)


def _summed(report: StepReport, fooling: Fooling | None) -> Tensor:
    losses, weights, margins = (
        values.cpu().double() for values in (report.losses, report.weights, report.margins)
    )
    correct, clean = report.correct.cpu(), report.clean_correct
    sums = (
        len(losses), losses.sum(), correct.sum(), margins.sum(), weights.sum(), weights.square().sum(), weights[~correct].sum(),
        *((0, 0) if clean is None else (len(clean), clean.sum())),
        *((0, 0) if fooling is None else (each.sum() for each in fooling)),
    )  # fmt: skip
    return torch.stack([torch.as_tensor(value, dtype=torch.float64).cpu() for value in sums])
