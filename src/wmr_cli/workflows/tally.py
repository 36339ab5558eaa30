"""What an epoch's steps saw, summed up: what was paid, and the health of the weights."""

import torch

from ..core.contracts import StepReport


class Tally:
    """Collects step reports; nothing leaves the device before the epoch ends."""

    def __init__(self) -> None:
        self._reports: list[StepReport] = []

    def add(self, report: StepReport) -> None:
        self._reports.append(report)

    def summary(self) -> dict[str, float]:
        """Means over the epoch's training images; the effective sample size of a batch as a share of it."""
        losses = torch.cat([report.losses for report in self._reports]).cpu().double()
        weights = torch.cat([report.weights for report in self._reports]).cpu().double()
        margins = torch.cat([report.margins for report in self._reports]).cpu().double()
        correct = torch.cat([report.correct for report in self._reports]).cpu()
        return {
            "loss": float(losses.mean()),
            "train_accuracy": float(correct.double().mean()),
            "margin_mean": float(margins.mean()),
            "weight_mean": float(weights.mean()),
            "weight_max": float(weights.max()),
            "weight_ess": float(torch.stack([_ess_share(report.weights) for report in self._reports]).mean()),
            "weight_on_wrong": float(weights[~correct].sum() / weights.sum()),
        }


def _ess_share(weights: torch.Tensor) -> torch.Tensor:
    """One for equal weights, one over the batch's size where a single image has them all."""
    return weights.sum() ** 2 / (weights**2).sum() / len(weights)
