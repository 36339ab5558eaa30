"""The contract of an attack."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..core.contexts import evaluating
from ..core.losses import OBJECTIVES, KlObjective, cross_entropy, select_rows
from ..core.norms import NORMS
from ..core.protocols import Attack, AttackResult, Batch, HasRemarks, Objective
from ..core.run_attack import exceeds_eps, is_in_unit_range
from ..core.traits import AttackTraits, read_parameter
from .fixtures import (
    all_close,
    batch_unchanged,
    copy_state,
    require,
    require_traits,
    tiny_batch,
    tiny_model,
)

SEED = 3


def check_attack(
    attack: Attack, model: nn.Module | None = None, batch: Batch | None = None
) -> None:
    """Check the images, logits and counts of an attack, and that it leaves the model unchanged.

    Images stay in the ε-ball and in [0, 1]. They depend on the seed and on the image's index, not
    on the batch. The attack is a frozen dataclass without a network.
    """
    model = tiny_model() if model is None else model
    batch = tiny_batch() if batch is None else batch
    _check_identity(attack)
    _check_traits(attack)
    objective = _CountingObjective(cross_entropy)
    with evaluating(model):
        with _model_unchanged(model), batch_unchanged(batch, "the attack"):
            result = _run(attack, model, batch, objective)
        _check_images(attack, result.images, batch)
        _check_outputs(result, model, batch)
        _check_maximises(attack, result, model, batch, objective)
        _check_repeatable(attack, result, model, batch)
        _check_without_logits(attack, result, model, batch)
        _check_rows(attack, model, batch)
        _check_zero_radius(attack, model, batch)
    # defenses may attack in train mode, where batch-norm updates its statistics
    with _train_mode(model), _model_unchanged(model, buffers=False):
        _run(attack, model, batch, cross_entropy)


def _run(attack: Attack, model: nn.Module, batch: Batch, objective: Objective) -> AttackResult:
    return attack(model, batch, objective, seed=SEED)


def _check_identity(attack: Any) -> None:  # noqa: ANN401 - it may be no dataclass
    is_dataclass = dataclasses.is_dataclass(attack)
    is_frozen = is_dataclass and type(attack).__dataclass_params__.frozen
    require(is_frozen, "an attack is a frozen dataclass: its fields are its identity in records")
    held = [
        field.name
        for field in dataclasses.fields(attack)
        if isinstance(getattr(attack, field.name), nn.Module | Tensor)
    ]
    require(not held, f"an attack holds numbers, not a network or tensors: {', '.join(held)}")
    remarks = list(attack.remarks(2)) if isinstance(attack, HasRemarks) else []
    require(
        all(isinstance(remark, str) for remark in remarks), "`remarks` yields something but text"
    )


def _check_traits(attack: Attack) -> None:
    traits = require_traits(attack, AttackTraits, "the attack")
    require(
        traits.objective in OBJECTIVES,
        f"the trait `objective` is {traits.objective!r}, not one of {', '.join(OBJECTIVES)}",
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
    eps = read_parameter(attack, "eps")
    if eps is not None:
        norm = read_parameter(attack, "norm") or _only_norm(attack)
        is_outside = exceeds_eps(NORMS[norm].size(images - batch.images), eps)
        require(~is_outside.any(), f"images left the {norm} ball of radius {eps}")


def _only_norm(attack: Attack) -> str:
    """Return the norm of an attack without a parameter `norm`."""
    norms = attack.traits.norms
    return next(iter(norms)) if len(norms) == 1 else "linf"


def _check_outputs(result: AttackResult, model: nn.Module, batch: Batch) -> None:
    require(result.logits is not None, "the result has no logits although they are needed")
    logits = result.require_logits()
    has_graph = result.images.requires_grad or logits.requires_grad
    require(not has_graph, "the result has a graph: detach it, or use torch.no_grad()")
    with torch.no_grad():
        is_consistent = all_close(logits, model(result.images), rtol=1e-5)
    require(is_consistent, "logits are not those of the returned images")
    survived = result.steps_survived
    is_count = (
        survived.shape == batch.labels.shape
        and not survived.is_floating_point()
        and bool((survived >= 0).all())
    )
    require(is_count, "steps_survived is not one count per image")


def _check_without_logits(
    attack: Attack, result: AttackResult, model: nn.Module, batch: Batch
) -> None:
    with _model_unchanged(model), batch_unchanged(batch, "the attack"):
        without_logits = attack(model, batch, cross_entropy, seed=SEED, need_logits=False)
    is_same = torch.equal(without_logits.images, result.images) and torch.equal(
        without_logits.steps_survived, result.steps_survived
    )
    require(is_same, "need_logits=False changes the images or steps_survived")


def _check_maximises(
    attack: Attack,
    result: AttackResult,
    model: nn.Module,
    batch: Batch,
    objective: "_CountingObjective",
) -> None:
    with torch.no_grad():
        loss_before = cross_entropy(model(batch.images), batch.labels).mean()
    loss_after = cross_entropy(result.require_logits(), batch.labels).mean()
    require(loss_after >= loss_before, "the attack lowers the loss")
    # an attack that stops early gives no margins, so it may have an objective of its own
    is_used = objective.calls > 0 or attack.traits.stops_early
    require(is_used, "the attack does not use the given objective")


def _check_repeatable(attack: Attack, result: AttackResult, model: nn.Module, batch: Batch) -> None:
    torch.rand(1)  # changes the state of torch's generator, on which nothing may depend
    again = _run(attack, model, batch, cross_entropy).images
    require(
        torch.equal(result.images, again),
        "the same seed gives other images: use random numbers of wmr_cli.core.rng",
    )
    count = len(batch.labels)
    some_reversed = torch.arange(count).flip(0)[:: max(count // 3, 1)]
    one_alone = torch.tensor([count // 2])
    for rows in (some_reversed, one_alone):
        images = _run(attack, model, batch.select(rows), cross_entropy).images
        require(
            all_close(images, result.images[rows]),
            "an image's result depends on the other images of its batch",
        )


def _check_rows(attack: Attack, model: nn.Module, batch: Batch) -> None:
    """Check that an objective with state per image is used with the matching rows."""
    with torch.no_grad():
        objective = _RowObjective(KlObjective.from_logits(model(batch.images)))
    result = _run(attack, model, batch, objective)
    _check_images(attack, result.images, batch)


def _check_zero_radius(attack: Attack, model: nn.Module, batch: Batch) -> None:
    if read_parameter(attack, "eps") is None:
        return
    attack = dataclasses.replace(attack, eps=0.0)  # type: ignore[type-var]
    images = _run(attack, model, batch, cross_entropy).images
    require(all_close(images, batch.images, atol=1e-6), "with a radius of 0 images change")


class _CountingObjective:
    """An objective that counts its calls."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self.calls = 0

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        self.calls += 1
        return self._objective(logits, labels)


@dataclasses.dataclass(frozen=True, eq=False)
class _RowObjective:
    """An objective with state per image, which requires as many logits as it has rows."""

    inner: KlObjective

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        num_rows = len(self.inner.natural)
        require(
            len(logits) == num_rows,
            f"the objective of {num_rows} images is called for {len(logits)}: "
            "use select_rows(objective, rows)",
        )
        return self.inner(logits, labels)

    def __getitem__(self, rows: Tensor) -> "_RowObjective":
        part = select_rows(self.inner, rows)
        assert isinstance(part, KlObjective)
        return _RowObjective(part)


@contextmanager
def _train_mode(model: nn.Module) -> Iterator[None]:
    with evaluating(model):  # restores the mode of every module
        model.train()
        yield


@contextmanager
def _model_unchanged(model: nn.Module, *, buffers: bool = True) -> Iterator[None]:
    """Require that the code inside leaves the model unchanged.

    Parameters have gradients meanwhile, as in the middle of a training step.
    """
    own_gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        # ones: a changed or reset gradient is detected
        parameter.grad = torch.ones_like(parameter)
    state = copy_state(model)
    modes = [module.training for module in model.modules()]
    requires_grad = [parameter.requires_grad for parameter in model.parameters()]
    ignored = set() if buffers else {name for name, _ in model.named_buffers()}
    try:
        yield
        is_same_mode = modes == [module.training for module in model.modules()]
        require(is_same_mode, "the attack changed the model's mode")
        after = copy_state(model)
        names = sorted(state.keys() - ignored)
        changed = [name for name in names if not torch.equal(state[name], after[name])]
        require(not changed, f"the attack changed {', '.join(changed)} of the model")
        is_same = requires_grad == [parameter.requires_grad for parameter in model.parameters()]
        require(is_same, "the attack changed requires_grad of the parameters")
        has_own_gradients = all(
            parameter.grad is not None and bool((parameter.grad == 1).all())
            for parameter in model.parameters()
        )
        require(
            has_own_gradients,
            "the attack changed the gradients of the parameters: "
            "use torch.autograd.grad with respect to the images",
        )
    finally:
        for name, parameter in model.named_parameters():
            parameter.grad = own_gradients[name]
