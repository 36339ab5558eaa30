"""What an attack promises."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..core.contexts import evaluating
from ..core.losses import cross_entropy
from ..core.norms import NORMS
from ..core.objectives import OBJECTIVES, KlObjective, select_rows
from ..core.protocols import Attack, AttackResult, Batch, HasRemarks, Objective
from ..core.run_attack import exceeds_eps, is_in_unit_range
from ..core.traits import AttackTraits, read_parameter
from .assertions import all_close, batch_unchanged, copy_state, require, require_traits
from .fixtures import tiny_batch, tiny_model

SEED = 3


def check_attack(
    attack: Attack, model: nn.Module | None = None, batch: Batch | None = None
) -> None:
    """In the ball and in [0, 1]; its logits are those of its images; a function of (seed, index) and not of the batch;
    it climbs the objective it is given and leaves the model as it was. A frozen dataclass without a network inside.
    """
    model, batch = model or tiny_model(), batch or tiny_batch()
    _check_identity(attack)
    objective = _Asked(cross_entropy)
    with evaluating(model):
        with _unchanged(model), batch_unchanged(batch, "the attack"):
            result = _run(attack, model, batch, objective)
        _check_images(attack, result.images, batch)
        _check_outputs(result, model, batch)
        _check_climbing(attack, result, model, batch, objective)
        _check_repeatable(attack, result, model, batch)
        _check_without_logits(attack, result, model, batch)
        _check_rows(attack, model, batch)
        _check_no_radius(attack, model, batch)
    with (
        _training(model),
        _unchanged(model, buffers=False),
    ):  # where batch statistics follow the images, as they should
        _run(attack, model, batch, cross_entropy)


def _run(attack: Attack, model: nn.Module, batch: Batch, objective: Objective) -> AttackResult:
    return attack(model, batch, objective, seed=SEED)


def _check_identity(attack: Any) -> None:
    parameters = getattr(type(attack), "__dataclass_params__", None)
    is_frozen = parameters is not None and parameters.frozen
    require(is_frozen, "an attack is a frozen dataclass: its fields are its identity in records")
    held = [
        field.name
        for field in dataclasses.fields(attack)
        if isinstance(getattr(attack, field.name), nn.Module | Tensor)
    ]
    require(not held, f"an attack holds numbers, never a network or tensors: {', '.join(held)}")
    traits = require_traits(attack, AttackTraits, "the attack")
    require(
        traits.objective in OBJECTIVES,
        f"the trait `objective` is {traits.objective!r}, not one of {', '.join(OBJECTIVES)}",
    )
    unknown = sorted(traits.norms - NORMS.keys())
    require(
        not unknown,
        f"the trait `norms` has {', '.join(unknown)}, not only {', '.join(NORMS)}",
    )
    remarks = list(attack.remarks(2)) if isinstance(attack, HasRemarks) else []
    require(
        all(isinstance(remark, str) for remark in remarks),
        "`remarks` yields something other than sentences",
    )


def _check_images(attack: Attack, images: Tensor, batch: Batch) -> None:
    require(
        images.shape == batch.images.shape,
        f"images of shape {tuple(images.shape)} for {tuple(batch.images.shape)}",
    )
    require(
        images.dtype == batch.images.dtype,
        f"images of type {images.dtype} for {batch.images.dtype}",
    )
    require(is_in_unit_range(images).all(), "images left [0, 1]")
    norm = read_parameter(attack, "norm") or "linf"
    eps = read_parameter(attack, "eps")
    if eps is not None:
        is_outside = exceeds_eps(NORMS[norm].size(images - batch.images), eps)
        require(~is_outside.any(), f"images left the {norm} ball of radius {eps}")


def _check_outputs(result: AttackResult, model: nn.Module, batch: Batch) -> None:
    require(result.logits is not None, "the result has no logits although they are needed")
    logits = result.require_logits()
    carries = result.images.requires_grad or logits.requires_grad
    require(not carries, "results carry a graph: detach them, or work under torch.no_grad()")
    with torch.no_grad():
        is_theirs = all_close(logits, model(result.images), rtol=1e-5)
    require(is_theirs, "logits are not those of the returned images")
    survived = result.steps_survived
    counts = (
        survived.shape == batch.labels.shape
        and not survived.is_floating_point()
        and bool((survived >= 0).all())
    )
    require(counts, "steps_survived is not one count per image")


def _check_without_logits(
    attack: Attack, result: AttackResult, model: nn.Module, batch: Batch
) -> None:
    with _unchanged(model), batch_unchanged(batch, "the attack"):
        made = attack(model, batch, cross_entropy, seed=SEED, need_logits=False)
    same = torch.equal(made.images, result.images) and torch.equal(
        made.steps_survived, result.steps_survived
    )
    require(same, "need_logits=False changes the images or steps_survived")


def _check_climbing(
    attack: Attack, result: AttackResult, model: nn.Module, batch: Batch, objective: "_Asked"
) -> None:
    with torch.no_grad():
        before = cross_entropy(model(batch.images), batch.labels).mean()
    require(
        cross_entropy(result.require_logits(), batch.labels).mean() >= before,
        "the attack does not climb: it lowers the loss",
    )
    if not attack.traits.stops_early:
        require(
            objective.was_asked,
            "the attack climbs something else: it never asks for the objective that it is given",
        )


def _check_repeatable(attack: Attack, result: AttackResult, model: nn.Module, batch: Batch) -> None:
    torch.rand(1)  # whoever draws from torch's own generator goes on from elsewhere
    again = _run(attack, model, batch, cross_entropy).images
    require(
        torch.equal(result.images, again),
        "the same seed gives other images: draw from wmr_cli.core.rng",
    )
    count = len(batch.labels)
    for rows in (torch.arange(count).flip(0)[:: max(count // 3, 1)], torch.tensor([count // 2])):
        found = _run(attack, model, batch.select(rows), cross_entropy).images
        require(
            all_close(found, result.images[rows]),
            "an image's result depends on the other images of its batch",
        )


def _check_rows(attack: Attack, model: nn.Module, batch: Batch) -> None:
    """An objective may know something of each image; here it insists on being asked about as many as it knows."""
    with torch.no_grad():
        objective = _PerImage(KlObjective.from_logits(model(batch.images)))
    result = _run(attack, model, batch, objective)
    _check_images(attack, result.images, batch)


def _check_no_radius(attack: Any, model: nn.Module, batch: Batch) -> None:
    if "eps" not in {field.name for field in dataclasses.fields(attack)}:
        return
    images = _run(dataclasses.replace(attack, eps=0.0), model, batch, cross_entropy).images
    require(all_close(images, batch.images, atol=1e-6), "with a radius of 0 images move")


class _Asked:
    """An objective that remembers whether anybody asked for it."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self.was_asked = False

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        self.was_asked = True
        return self._objective(logits, labels)


@dataclasses.dataclass(frozen=True, eq=False)
class _PerImage:
    inner: KlObjective

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        require(
            len(logits) == len(self.inner.natural),
            f"the objective of {len(self.inner.natural)} images was asked about {len(logits)}: take select_rows(objective, rows)",
        )
        return self.inner(logits, labels)

    def __getitem__(self, rows: Tensor) -> "_PerImage":
        part = select_rows(self.inner, rows)
        assert isinstance(part, KlObjective)
        return _PerImage(part)


@contextmanager
def _training(model: nn.Module) -> Iterator[None]:
    """Train mode inside: a defense may ask for attacks in it."""
    with evaluating(model):  # which puts every flag back
        model.train()
        yield


@contextmanager
def _unchanged(model: nn.Module, *, buffers: bool = True) -> Iterator[None]:
    """What happens inside leaves the model as it was. Gradients are there, as in the middle of a training step."""
    own: dict[str, Any] = {name: parameter.grad for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    state, modes = copy_state(model), [module.training for module in model.modules()]
    wants = [parameter.requires_grad for parameter in model.parameters()]
    free = set() if buffers else {name for name, _ in model.named_buffers()}
    try:
        yield
        require(
            modes == [module.training for module in model.modules()],
            "the attack changed the model's mode",
        )
        after = copy_state(model)
        changed = [
            name for name in state.keys() - free if not torch.equal(state[name], after[name])
        ]
        require(not changed, f"the attack changed {', '.join(sorted(changed))} of the model")
        is_same = wants == [parameter.requires_grad for parameter in model.parameters()]
        require(is_same, "the attack changed which parameters of the model want gradients")
        kept = all(
            parameter.grad is not None and bool((parameter.grad == 1).all())
            for parameter in model.parameters()
        )
        require(
            kept,
            "the attack changed the gradients of the parameters: use torch.autograd.grad with respect to the images",
        )
    finally:
        for name, parameter in model.named_parameters():
            parameter.grad = own[name]
