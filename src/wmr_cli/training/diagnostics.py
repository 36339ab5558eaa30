"""What a run should not be left alone with: a loss that is no number, a network at chance, an attack that fools nobody or all."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from ..errors import BrokenContract, WmrError
from .checkpointing import DIVERGED

STUCK = 2
"""So many epochs at chance in a row are one too many."""
NEAR, CLOSE = 1.15, 0.02
"""A network that has learnt nothing is right on its favourite class; so near to the largest class counts as chance."""
REMEDIES = (
    "usual causes: a learning rate that is too high (halve --lr, or add --warmup 0.05 or --clip-grad 1), an attack at full"
    " strength from the first step (--eps-ramp 0.4), weights that are too large (a smaller --alpha, or --normalize batch)"
)

NOBODY = (
    "the attack fooled not one training image in this epoch: are eps, steps and step size what you meant?"
    " If they are, the network may hide its gradients; `wmr evaluate --checks` looks into that"
)
EVERYBODY = (
    "the attack fooled every training image in this epoch, so nothing robust is learnt: try a smaller --eps, or let it grow with"
    " --eps-ramp 0.4"
)


def check_loss(loss: float, epoch: int, step: int) -> None:
    """A loss that is not a number cannot be repaired by another step."""
    if not math.isfinite(loss):
        raise BrokenContract(
            f"epoch {epoch + 1}, step {step + 1}: the loss is not finite", hint=DIVERGED
        )


@contextmanager
def placed(epoch: int, step: int) -> Iterator[None]:
    """What goes wrong inside says where."""
    try:
        yield
    except WmrError as problem:
        raise type(problem)(
            f"epoch {epoch + 1}, step {step + 1}: {problem}", hint=problem.hint
        ) from problem


def chance(labels: Tensor) -> float:
    """The accuracy of always guessing the largest class."""
    return float(labels.bincount().max()) / len(labels)


def warnings(entries: list[dict[str, Any]], guessing: float, eps: float) -> Iterator[str]:
    """What the log of a run in this ball gives cause for, once per cause: it is told when it begins."""
    now, before = (dict(_causes(part, guessing, eps)) for part in (entries, entries[:-1]))
    yield from (text for cause, text in now.items() if cause not in before)


def _causes(
    entries: list[dict[str, Any]], guessing: float, eps: float
) -> Iterator[tuple[str, str]]:
    if not entries:
        return
    last = entries[-STUCK:]
    if len(last) == STUCK and all(_is_at_chance(entry, guessing) for entry in last):
        yield (
            "chance",
            f"accuracy has been at chance ({100 * guessing:.0f} %) for {STUCK} epochs; {REMEDIES}",
        )
    entry = entries[-1]
    success = entry.get("attack_success")
    if success == 0 and entry["eps"] >= eps:  # a ball that still grows may be too small
        yield "none", NOBODY
    if success == 1 and not _is_at_chance(entry, guessing):
        yield "all", EVERYBODY


def _is_at_chance(entry: dict[str, Any], guessing: float) -> bool:
    """By the clean images where they were seen: under attack even a good network may do worse than chance."""
    accuracy = entry.get("val_a_nat", entry.get("train_clean_accuracy", entry["train_accuracy"]))
    return bool(accuracy <= min(NEAR * guessing, guessing + CLOSE))
