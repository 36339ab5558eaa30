"""`RunningAccuracyMetric`: `measures.RunningAccuracy` as a metric of torchmetrics.

This module needs the extra `torchmetrics`, so that nothing else in the package imports it.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .core.losses import probability_margin
from .core.run_attack import predictions

# before torchmetrics, which imports torchvision
from .core.torchvision_compat import torchvision  # noqa: F401
from .errors import missing_extra
from .measures import Estimate, RunningAccuracy

try:
    from torchmetrics import Metric
except ModuleNotFoundError:
    raise missing_extra("torchmetrics") from None

__all__ = ["RunningAccuracyMetric"]


class RunningAccuracyMetric(Metric):
    """Plain accuracy, and accuracy weighted by exp(-alpha * margin), of all images seen so far.

    With the logits of clean images it is A_nat, with those of attacked images A_rob and A_sa.
    Keywords are those of `torchmetrics.Metric`.

    ```python
    from wmr_cli.torchmetrics import RunningAccuracyMetric

    metric = RunningAccuracyMetric(alphas=(2.0,))
    metric.update(attacked.logits, batch.labels)
    print(metric.compute()["weighted@2.0"])
    ```
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    def __init__(self, alphas: Iterable[float] = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.alphas = tuple(dict.fromkeys(map(float, alphas)))
        # torchmetrics merges metrics whose states have equal names and values. States of other
        # alphas can be equal, as after a batch of margins 0, so the name contains the alphas.
        self._state_name = "_".join(["numbers", *map(_to_identifier, self.alphas)])
        self.add_state(
            self._state_name,
            _to_tensor(RunningAccuracy(self.alphas)),
            dist_reduce_fx=partial(_merge_states, alphas=self.alphas),
        )

    @property
    def running(self) -> RunningAccuracy:
        """The state of this process, whose `compute` gives values with their intervals."""
        return RunningAccuracy.from_numbers(self._numbers.numpy(force=True), self.alphas)

    @property
    def _numbers(self) -> Tensor:
        numbers: Tensor = getattr(self, self._state_name)
        return numbers

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add images by their logits (N, C) and labels (N,)."""
        # as `evaluate`: on the CPU, because not every device supports float64
        logits = preds.detach().cpu().double()
        labels = target.detach().cpu()
        running = self.running
        correct = predictions(logits) == labels
        running.update(correct.numpy(), probability_margin(logits, labels).numpy())
        setattr(self, self._state_name, _to_tensor(running).to(self._numbers.device))

    def compute(self) -> dict[str, Tensor]:
        """Return `plain` and for each alpha `weighted@2.0`, with `_low`, `_high` and `_ess`."""
        plain, weighted = self.running.compute()
        values = _list_values("plain", plain)
        for alpha, estimate in weighted.items():
            values |= _list_values(f"weighted@{alpha!r}", estimate)
        device = self._numbers.device
        return {
            name: torch.tensor(value, dtype=torch.float64, device=device)
            for name, value in values.items()
        }


def _list_values(name: str, estimate: Estimate) -> dict[str, float]:
    values = {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
    return values if estimate.ess is None else {**values, f"{name}_ess": estimate.ess}


def _to_identifier(alpha: float) -> str:
    """Return `2p0` for 2.0 and `m1em05` for -1e-05."""
    return repr(alpha).replace(".", "p").replace("-", "m").replace("+", "")


def _to_tensor(running: RunningAccuracy) -> Tensor:
    return torch.from_numpy(running.numbers())


def _merge_states(states: Tensor, alphas: tuple[float, ...]) -> Tensor:
    """Merge the states of several processes or batches, (K, numbers) to (numbers,)."""
    merged = RunningAccuracy(alphas)
    for numbers in states.numpy(force=True):
        merged = merged.merge(RunningAccuracy.from_numbers(numbers, alphas))
    return _to_tensor(merged).to(states.device)
