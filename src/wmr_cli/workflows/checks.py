"""Was the attack weak rather than the model strong? Each check is a number and a verdict, on a subset of the images.

A check fails where an attack that should be the weaker one does better than the one that was run, by more than the interval
of its accuracy: then the reported robustness is that of the attack's blindness.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from .. import measures
from ..core.contracts import Attack, Batch
from ..core.guards import guarded, predictions
from ..core.modes import evaluating
from ..core.norms import NORMS
from ..core.objectives import objective_named
from ..core.splits import balanced_subset
from ..measures import Estimate
from ..registry import Registry
from ..spec import Spec
from ..storage.records import Check, Rows
from . import parts
from .examine import Examination
from .planning import Task

IMAGES, QUERIES = 256, 1000
"""How many images are looked at, and how often the black box may ask."""
TEMPERATURES = (0.5, 1.0, 2.0)
EFFORTS = ("steps", "queries", "restarts")
"""What makes an attack stronger when there is more of it."""
MOST_ZERO = 0.1
"""The share of images without a gradient that still passes."""


@dataclass(frozen=True)
class Suspect:
    """A network, the attack it withstood, and the images it is looked at with."""

    examination: Examination
    registry: Registry
    batches: list[Batch]
    task: Task

    def accuracy(self, attack: Attack, eps: float) -> Estimate:
        """Robust accuracy of the subset under another attack."""
        examination, right = self.examination, []
        objective = objective_named(getattr(attack, "loss", "ce"))
        for batch in self.batches:
            with evaluating(examination.model), parts.exact_float32():
                attacked = guarded(
                    attack, examination.model, batch, objective, examination.seed,
                    NORMS[examination.norm], eps, examination.num_classes,
                )  # fmt: skip
            right.append(predictions(attacked.logits) == batch.labels)
        return measures.plain_accuracy(torch.cat(right).cpu().numpy())

    def made(self, spec: str, eps: float | None = None, **params: int) -> Attack:
        """Another attack in the same ball, or in a larger one."""
        task = self.task
        return parts.attack(self.registry, Spec.parse(spec), norm=task.norm, eps=task.eps if eps is None else eps, **params)


def checked(task: Task, registry: Registry, examination: Examination, rows: Rows, device: torch.device) -> Iterator[Check]:
    """All checks of one record, each after the other."""
    positions = task.positions[balanced_subset(task.split.labels[task.positions], IMAGES, seed=0)]
    batches = [task.split.batch(part).to(device) for part in positions.split(task.config.batch_size)]
    suspect = Suspect(examination, registry, batches, task)
    usual = suspect.accuracy(task.attack, task.eps)
    for look in (_outputs, _repeatable, _without_autograd, _gradients):
        yield look(suspect)
    yield from _other_attacks(suspect, usual)
    yield from _temperature(task, rows)


def _outputs(suspect: Suspect) -> Check:
    """Probabilities in place of logits flatten every loss that expects logits."""
    model = suspect.examination.model
    with torch.no_grad(), evaluating(model):
        logits = torch.cat([model(batch.images) for batch in suspect.batches])
    are_shares = ((logits >= 0) & (logits <= 1)).all(dim=1) & ((logits.sum(dim=1) - 1).abs() < 1e-4)
    share = float(are_shares.double().mean())
    return _check("outputs are logits", share, share < 1, "share of images whose outputs are probabilities")


def _repeatable(suspect: Suspect) -> Check:
    """A network that draws lots has to be attacked on average, which none of these attacks does."""
    model, largest = suspect.examination.model, 0.0
    with torch.no_grad(), evaluating(model), parts.exact_float32():
        for batch in suspect.batches:
            largest = max(largest, float((model(batch.images) - model(batch.images)).abs().max()))
    return _check("two passes agree", largest, largest < 1e-4, "largest difference between two passes")


def _without_autograd(suspect: Suspect) -> Check:
    """A network that optimises something while it classifies hides what it does from the attack's gradient."""
    model, calls = suspect.examination.model, 0

    def counting(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            return original(*args, **kwargs)

        return call

    with evaluating(model), torch.no_grad(), _patched(counting):
        model(suspect.batches[0].images)
    return _check("no autograd inside", float(calls), calls == 0, "calls of autograd in one forward pass")


@contextmanager
def _patched(counting: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    # what `grad` and `backward` both come down to, by whatever name they were imported
    with mock.patch.object(torch.autograd, "_engine_run_backward", counting(torch.autograd._engine_run_backward)):  # type: ignore[attr-defined]
        yield


def _gradients(suspect: Suspect) -> Check:
    """Images without a gradient cannot be attacked by following it."""
    loss = objective_named(getattr(suspect.task.attack, "loss", "ce"))
    blind = [_is_blind(suspect.examination.model, batch, loss) for batch in suspect.batches]
    share = float(torch.cat(blind).double().mean())
    return _check("gradients are there", share, share <= MOST_ZERO, "share of images whose gradient is zero or not finite")


def _is_blind(model: nn.Module, batch: Batch, loss: Any) -> Tensor:
    images = batch.images.clone().requires_grad_()
    with evaluating(model), parts.exact_float32():
        (gradient,) = torch.autograd.grad(loss(model(images), batch.labels).sum(), images)
    flat = gradient.flatten(1)
    return (flat == 0).all(dim=1) | ~flat.isfinite().all(dim=1)


def _other_attacks(suspect: Suspect, usual: Estimate) -> Iterator[Check]:
    """Attacks that should be weaker, or no stronger than the interval allows, and one without limits."""
    task, registry = suspect.task, suspect.registry
    for name, spec in (
        ("noise does not win", "noise"),
        ("one step does not win", "fgsm"),
        ("a black box does not win", f"square:queries={QUERIES}"),
    ):
        found = suspect.accuracy(suspect.made(spec), task.eps)
        yield _check(name, found.value, found.value >= usual.low, f"accuracy under {spec}; {_ours(usual)}")
    parsed = Spec.parse(task.attack_spec)
    settable = [key for key in EFFORTS if registry.accepts("attack", parsed.name, key)]
    # what hands options on accepts any key, so the attack itself says what it has
    more = {key: 2 * value for key in settable if (value := getattr(task.attack, key, None))}
    if more:
        stronger = parsed.without("step", *more).with_params(**{key: str(value) for key, value in more.items()})
        found = suspect.accuracy(suspect.made(str(stronger)), task.eps)
        told = f"accuracy with {', '.join(f'{value} {key}' for key, value in more.items())}; {_ours(usual)}"
        yield _check("more steps do not help", found.value, found.value >= usual.low, told)
    else:
        yield Check("more steps do not help", usual.value, "note", "the attack has no steps or restarts to double")
    images = suspect.batches[0].images
    everything = 1.0 if task.norm == "linf" else float(images[0].numel() ** 0.5)
    found = suspect.accuracy(suspect.made(str(parsed.without("step")), eps=everything), everything)
    chance = 1 / suspect.examination.num_classes
    yield _check(
        "a huge ball leaves nothing", found.value, found.low <= chance, f"accuracy at eps {everything:g}, chance is {chance:g}"
    )


def _ours(usual: Estimate) -> str:
    return f"the attack's own is {usual.value:.3f}, its interval begins at {usual.low:.3f}"


def _temperature(task: Task, rows: Rows) -> Iterator[Check]:
    """A_sa moves with the scale of the logits although no decision does: how far, and what it is at a scale that is no choice."""
    alpha = max((alpha for alpha in task.kernels if alpha is not None), default=None)
    if alpha is None or task.config.kernel != "exp" or "uniform/logits" not in rows:
        return
    for temperature in TEMPERATURES:
        found = measures.tempered_accuracy(rows, alpha, temperature)
        yield Check(
            f"A_sa({alpha:g}) at temperature {temperature:g}", found.value, "note", "logits divided by it; no decision changes"
        )
    if np.isfinite(rows["uniform/logits"]).all():
        best = measures.calibrating_temperature(rows["uniform/logits"], rows["label"])
        text = f"at temperature {best:.3g}, where probabilities fit the attacked images best: the same for any scale"
        yield Check(f"A_sa({alpha:g}) calibrated", measures.tempered_accuracy(rows, alpha, best).value, "note", text)
    text = "margins replaced by their ranks: no scale at all, and no more than A_rob says"
    yield Check(f"A_sa({alpha:g}) by ranks", measures.ranked_accuracy(rows, alpha).value, "note", text)


def _check(name: str, value: float, passes: bool, text: str) -> Check:
    return Check(name, value, "pass" if passes else "fail", text)
