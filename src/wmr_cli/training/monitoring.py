"""What a run reports: statistics of an epoch, and warnings about its log."""

import math
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from ..core.protocols import StepReport
from ..errors import BrokenContract, WmrError
from ..runtime.accelerators import HostCopy
from ..runtime.distributed import Ranks

LogEntry = dict[str, Any]
"""One line of log.jsonl: the number of its epoch, and metrics by name."""

DIVERGED_HINT = "try a smaller `lr` or `clip_grad=1`; what was saved before is kept"
ONE_RANK = Ranks()

SUMS = (
    "images",
    "loss",
    "correct",
    "margin",
    "weight",
    "weight_squared",
    "weight_on_misclassified",
    "images_seen_clean",
    "correct_clean",
    "correct_before_attack",
    "misclassified_by_attack",
)
"""What is summed over images, in the order of the tensor that checkpoints hold."""


@dataclass(frozen=True)
class AttackOutcome:
    """Images that an attack received correctly classified, and those it made misclassified.

    Boolean, (N,) each.
    """

    was_correct: Tensor
    was_flipped: Tensor


class EpochStatistics:
    """Sums over the steps of an epoch and all ranks.

    They are in float64 and in the order of the steps, so that a resumed run logs the same numbers.
    On a GPU the values of a step are read while the next one runs, so that the host need not wait.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Start an epoch."""
        self._sums = torch.zeros(len(SUMS), dtype=torch.float64)
        self._steps = 0
        self._relative_sample_size = 0.0
        self._largest_weight = 0.0
        self._waiting: deque[StepValues] = deque()

    def add(self, report: StepReport, outcome: AttackOutcome | None = None) -> None:
        """Start the copy of a step's values to the CPU; `collect` adds them to the sums."""
        self._waiting.append(StepValues.copy(report, outcome))

    def collect(self, ranks: Ranks = ONE_RANK, *, leave: int = 0) -> list[tuple[int, float]]:
        """Add all steps but the newest `leave`, over all ranks, to the sums.

        Return the number of each step in the epoch, and its mean loss.
        """
        collected = []
        while len(self._waiting) > leave:
            number = self._steps
            collected.append((number, self._add_values(self._waiting.popleft(), ranks)))
        return collected

    def _add_values(self, values: "StepValues", ranks: Ranks) -> float:
        """Add a step of every rank, and return its mean loss."""
        of_ranks = ranks.all_gather(values.sum_images())
        sums = of_ranks[:, :-1].sum(dim=0)
        step = dict(zip(SUMS, sums.tolist(), strict=True))
        self._sums += sums
        self._steps += 1
        # effective sample size over batch size: 1 for equal weights, 1/N if one image has them all
        if step["weight_squared"]:
            sample_size = step["weight"] ** 2 / step["weight_squared"]
            self._relative_sample_size += sample_size / step["images"]
        self._largest_weight = max(self._largest_weight, float(of_ranks[:, -1].max()))
        return float(step["loss"] / step["images"])

    def summary(self) -> dict[str, float]:
        """Return means over the training images of the epoch, under the names of log.jsonl."""
        total = dict(zip(SUMS, self._sums.tolist(), strict=True))
        images = total["images"]
        # the weights of all images are 0 if a kernel ignores the whole epoch
        misclassified_weight = 0.0
        if total["weight"]:
            misclassified_weight = total["weight_on_misclassified"] / total["weight"]
        entry = {
            "loss": total["loss"] / images,
            "train_accuracy": total["correct"] / images,
            "margin_mean": total["margin"] / images,
            "weight_mean": total["weight"] / images,
            "weight_max": self._largest_weight,
            "weight_ess": self._relative_sample_size / self._steps,
            "weight_on_wrong": misclassified_weight,
        }
        # not every defense classifies clean images, and not every attack counts its steps
        if total["images_seen_clean"]:
            entry["train_clean_accuracy"] = total["correct_clean"] / total["images_seen_clean"]
        if total["correct_before_attack"]:
            flipped = total["misclassified_by_attack"]
            entry["attack_success"] = flipped / total["correct_before_attack"]
        return entry

    def state(self) -> dict[str, Tensor]:
        """Return the sums of the steps collected so far; `collect` all of them before."""
        others = [self._steps, self._relative_sample_size, self._largest_weight]
        return {"sums": self._sums, "others": torch.tensor(others, dtype=torch.float64)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self._sums = state["sums"].clone()
        steps, self._relative_sample_size, self._largest_weight = state["others"].tolist()
        self._steps = int(steps)


@dataclass(frozen=True, eq=False)
class StepValues:
    """Values per image of a training step, on their way to the CPU."""

    flat: HostCopy
    sizes: dict[str, int]
    """Number of values by name, in their order in `flat`."""

    @classmethod
    def copy(cls, report: StepReport, outcome: AttackOutcome | None) -> "StepValues":
        """Start the copy of all values of a step, as one tensor."""
        optional = {
            "clean_correct": report.clean_correct,
            "was_correct": None if outcome is None else outcome.was_correct,
            "was_flipped": None if outcome is None else outcome.was_flipped,
        }
        parts = {
            "losses": report.losses,
            "weights": report.weights,
            "margins": report.margins,
            "correct": report.correct,
            **{name: values for name, values in optional.items() if values is not None},
        }
        sizes = {name: len(values) for name, values in parts.items()}
        dtype = reduce(torch.promote_types, (values.dtype for values in parts.values()))
        flat = torch.cat([values.to(report.losses.device, dtype) for values in parts.values()])
        return cls(HostCopy.start(flat), sizes)

    def sum_images(self) -> Tensor:
        """Return the sums over this rank's images, in the order of `SUMS`, and the largest weight.

        Wait for the copy if it is not complete.
        """
        # float32 sums over many images lose digits
        parts = self.flat.wait().double().split(list(self.sizes.values()))
        values = dict(zip(self.sizes, parts, strict=True))
        none = torch.zeros(0, dtype=torch.float64)
        weights = values["weights"]
        clean_correct = values.get("clean_correct", none)
        sums = [
            torch.tensor(len(weights)),
            values["losses"].sum(),
            values["correct"].sum(),
            values["margins"].sum(),
            weights.sum(),
            weights.square().sum(),
            weights[values["correct"] == 0].sum(),
            torch.tensor(len(clean_correct)),
            clean_correct.sum(),
            values.get("was_correct", none).sum(),
            values.get("was_flipped", none).sum(),
            weights.max(),
        ]
        return torch.stack([value.double() for value in sums])


COLLAPSED_EPOCHS = 2
"""Warn after this many epochs at chance in a row."""
CHANCE_RATIO = 1.15
"""An accuracy up to this multiple of guessing is at chance, within `CHANCE_MARGIN`."""
CHANCE_MARGIN = 0.02
"""An accuracy at chance exceeds guessing by at most this fraction of the images."""
COLLAPSE_CAUSES = (
    "usual causes: a learning rate that is too high (halve `lr`, or add `warmup=0.05` or"
    " `clip_grad=1`), an attack at full strength from the first step (`eps_ramp=0.4`), weights that"
    " are too large (a smaller `alpha`, or `normalize=batch`)"
)
NO_SUCCESS = (
    "the attack changed no prediction on the training images of this epoch: check eps, steps and"
    " step size. If they are as intended, the network may mask its gradients;"
    " `wmr evaluate --checks` tests that"
)
FULL_SUCCESS = (
    "the attack changed every correct prediction on the training images of this epoch, so the"
    " network learns nothing robust: try a smaller `eps`, or `eps_ramp=0.4`"
)


def check_losses(losses: Iterable[tuple[int, float]], epoch: int) -> float | None:
    """Raise if the loss of a step is not finite: no further step can repair the weights.

    Return the last loss, if there is one. Mean losses are equal on all ranks, so that all raise.
    """
    last = None
    for step, loss in losses:
        if not math.isfinite(loss):
            place = f"epoch {epoch + 1}, step {step + 1}"
            raise BrokenContract(f"{place}: the loss is not finite", hint=DIVERGED_HINT)
        last = loss
    return last


@contextmanager
def locate_errors(epoch: int, step: int) -> Iterator[None]:
    """Add epoch and step to the message of an error inside."""
    try:
        yield
    except WmrError as problem:
        place = f"epoch {epoch + 1}, step {step + 1}"
        # the same class: callers distinguish errors of the user from those of a component
        raise type(problem)(f"{place}: {problem}", hint=problem.hint) from problem


def guessing_accuracy(labels: Tensor) -> float:
    """Return the accuracy of always predicting the largest class."""
    return float(labels.bincount().max()) / len(labels)


def new_warnings(entries: list[LogEntry], guessing: float, eps: float) -> Iterator[str]:
    """Yield the warnings of the last epoch of a log that the epoch before it does not have."""
    now = _find_causes(entries, guessing, eps)
    before = _find_causes(entries[:-1], guessing, eps)
    for cause, text in now.items():
        if cause not in before:
            yield text


def _find_causes(entries: list[LogEntry], guessing: float, eps: float) -> dict[str, str]:
    """Return warnings by cause, for the last epoch of a log."""
    causes: dict[str, str] = {}
    if not entries:
        return causes
    recent = entries[-COLLAPSED_EPOCHS:]
    are_at_chance = all(_is_at_chance(entry, guessing) for entry in recent)
    if len(recent) == COLLAPSED_EPOCHS and are_at_chance:
        percent = f"{100 * guessing:.0f} %"
        causes["collapse"] = (
            f"accuracy has been at chance ({percent}) for {COLLAPSED_EPOCHS} epochs;"
            f" {COLLAPSE_CAUSES}"
        )
    last = entries[-1]
    success = last.get("attack_success")
    # while eps is ramped up, it may still be too small for any success
    if success == 0 and last["eps"] >= eps:
        causes["no success"] = NO_SUCCESS
    if success == 1 and not _is_at_chance(last, guessing):
        causes["full success"] = FULL_SUCCESS
    return causes


def _is_at_chance(entry: LogEntry, guessing: float) -> bool:
    """Whether an epoch's accuracy is that of a constant prediction."""
    # prefer clean images: under attack even a good network may be below chance
    names = ("val_a_nat", "train_clean_accuracy", "train_accuracy")
    accuracy: float = next(entry[name] for name in names if name in entry)
    return accuracy <= min(CHANCE_RATIO * guessing, guessing + CHANCE_MARGIN)
