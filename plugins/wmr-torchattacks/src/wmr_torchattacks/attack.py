"""An attack of torchattacks (Kim 2020, arXiv:2010.01950) with the contract of wmr."""

import contextlib
import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import torch
import torchattacks
from torch import Tensor, nn

from wmr_cli import BadInput, UnknownName, did_you_mean
from wmr_cli.core import (
    NORMS,
    OBJECTIVES,
    AttackResult,
    AttackTraits,
    Batch,
    Objective,
    pick_stronger,
    project_to_ball,
    rng,
    run_restarts,
)

from . import families
from .network import CountingModel, frozen_parameters
from .random_numbers import seed_by_index

OWN_NAMES = {
    "eps": ("eps", "max_epsilon"),
    "steps": ("steps", "num_iter_set", "nb_iter"),
    "step": ("alpha",),
}
"""Our names of parameters, and the names that torchattacks may use for each."""
FIXED_OPTIONS = ("model", "norm", "eps", "max_epsilon", "seed", "n_classes")
"""Options that follow from the threat model, the dataset and the seed."""


@dataclasses.dataclass(frozen=True)
class FromTorchattacks:
    """The attack `name` of torchattacks. (N, C, H, W) in [0, 1].

    It maximises its own loss; the given objective only selects among restarts and the clean image.
    With `alone` every image is attacked in a batch of its own. `from_torchattacks` adds a field for
    each option of torchattacks.
    """

    name: str
    norm: Literal["linf", "l2"] = "linf"
    eps: float = 8 / 255
    steps: int | None = None
    step: float | None = None
    restarts: int = 1
    alone: bool = False

    @property
    def traits(self) -> AttackTraits:
        # the objective by which restarts are compared; some attacks have an option of this name
        loss = self.options.get("loss", "ce")
        return AttackTraits(
            objective=loss if loss in OBJECTIVES else "ce",
            stops_early=self.name in families.STOP_EARLY,
        )

    @property
    def options(self) -> dict[str, Any]:
        """Options of torchattacks that the user set."""
        common = {field.name for field in dataclasses.fields(FromTorchattacks)}
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in common
        }

    def remarks(self, num_classes: int) -> Iterator[str]:
        """Yield how this attack differs from those of wmr."""
        if not self.traits.stops_early:
            yield (
                f"torchattacks' {self.name} maximises its own, unweighted loss: "
                "A_tr is measured on the images of A_sa, and training attacks are unweighted"
            )
        if self.name in families.NEAREST:
            yield (
                f"torchattacks' {self.name} searches for the nearest misclassified image; "
                "results outside the ε-ball are projected onto it"
            )
        if self.name == "GN":
            yield (
                "torchattacks' GN adds noise of its own `std`, whatever eps; "
                "results outside the ε-ball are projected onto it"
            )
        if self.depends_on_batch:
            yield (
                f"results of torchattacks' {self.name} may depend on other images of the batch; "
                "alone=true attacks one at a time"
            )

    @property
    def depends_on_batch(self) -> bool:
        """Whether an image's result depends on the other images of its batch."""
        return not self.alone and (
            self.name in families.DEPEND_ON_BATCH or self.options.get("n_restarts", 1) > 1
        )

    def __call__(
        self,
        model: nn.Module,
        batch: Batch,
        objective: Objective,
        *,
        seed: int,
        need_logits: bool = True,
    ) -> AttackResult:
        with torch.no_grad():
            logits = model(batch.images)
        is_correct = logits.argmax(dim=1) == batch.labels
        clean = AttackResult(batch.images, is_correct.long(), logits)

        def run(rows: Tensor, restart: int) -> AttackResult:
            groups = rows.split(1) if self.alone else (rows,)
            return _join(
                [
                    self._attack_once(model, batch.select(part), clean.select(part), seed, restart)
                    for part in groups
                ]
            )

        found = run_restarts(
            run,
            model,
            batch,
            objective,
            restarts=self.restarts,
            stops_early=self.traits.stops_early,
        )
        best = pick_stronger(clean, found, objective, batch.labels)
        return dataclasses.replace(best, steps_survived=found.steps_survived)

    def _attack_once(
        self, model: nn.Module, batch: Batch, clean: AttackResult, seed: int, restart: int
    ) -> AttackResult:
        """Run torchattacks and project into the ε-ball; where the result is NaN, keep the image."""
        images = batch.images
        labels = batch.labels
        counting_model = CountingModel(model, labels)
        fixed = {
            "norm": {"linf": "Linf", "l2": "L2"}[self.norm],
            "n_classes": clean.require_logits().shape[1],
        }
        fixed["seed"] = rng.derive_seed("torchattacks", seed, restart) % 2**31
        with (
            torch.enable_grad(),
            frozen_parameters(model),
            seed_by_index(batch.index, seed, restart),
            contextlib.redirect_stdout(sys.stderr),  # stdout belongs to results
        ):
            try:
                attack = self._build(counting_model, fixed)
                attack.set_device(images.device)
                moved = attack(images, labels)
            except Exception as error:
                # the model accepts these images, so any exception is a failure of torchattacks
                raise self._describe_failure(error, images) from error
        moved = moved.detach().to(images.dtype)
        is_finite = moved.isfinite().flatten(1).all(dim=1)
        moved = torch.where(is_finite[:, None, None, None], moved, images)
        moved = project_to_ball(images, moved, NORMS[self.norm], self.eps)
        with torch.no_grad():
            logits = model(moved)
        steps_survived = counting_model.steps_survived(self.steps or 1, clean.steps_survived)
        return AttackResult(moved, steps_survived, logits)

    def _build(self, model: nn.Module, fixed: Mapping[str, Any]) -> Any:
        kind = getattr(torchattacks, self.name)
        names = _own_names(kind)
        ours = {names[key]: getattr(self, key) for key in OWN_NAMES if key in names}
        taken = {key: value for key, value in fixed.items() if key in _parameters(kind)}
        return kind(model, **ours, **taken, **self.options)

    def _describe_failure(self, error: Exception, images: Tensor) -> BadInput:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        channels = images.shape[1]
        hint = "check its options" if self.options else "choose another attack"
        if channels != 3:
            hint = f"some of its attacks need 3 channels; these images have {channels}"
        return BadInput(f"torchattacks' {self.name} fails on these images: {reason}", hint=hint)


def from_torchattacks(
    name: str,
    norm: Literal["linf", "l2"] = "linf",
    eps: float = 8 / 255,
    steps: int | None = None,
    step: float | None = None,
    restarts: int = 1,
    alone: bool = False,
    **options: Any,
) -> FromTorchattacks:
    """Return the attack `name`. Without `step` the step size keeps torchattacks' ratio to eps.

    Any other option, such as decay=0.9, is passed to torchattacks.
    """
    families.check_fits(name, norm)
    kind = getattr(torchattacks, name)
    _check_options(name, _parameters(kind), options)
    steps = _one_of(name, kind, "steps", steps, options)
    step = _one_of(name, kind, "step", step, options)
    names, defaults = _own_names(kind), _parameters(kind)
    if "steps" in names and steps is None:
        steps = defaults[names["steps"]].default
    if "step" in names and step is None:
        step = defaults[names["step"]].default * (eps / defaults[names["eps"]].default)
    if (
        eps < 0
        or restarts < 1
        or (steps is not None and steps < 1)
        or (step is not None and step < 0)
    ):
        hint = "`eps` and `step` are at least 0, `steps` and `restarts` at least 1"
        raise BadInput(f"torchattacks' {name} cannot be run", hint=hint)
    fields = [(key, Any) for key in options]
    made = dataclasses.make_dataclass(
        name, fields, bases=(FromTorchattacks,), frozen=True, kw_only=True
    )
    attack: FromTorchattacks = made(
        name=name,
        norm=norm,
        eps=eps,
        steps=steps,
        step=step,
        restarts=restarts,
        alone=alone,
        **options,
    )
    _try(attack)
    return attack


def _parameters(kind: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(kind).parameters


def _own_names(kind: Callable[..., Any]) -> dict[str, str]:
    """Return torchattacks' names of our parameters, for those that this attack has."""
    parameters = _parameters(kind)
    found = {
        ours: next((own for own in names if own in parameters), None)
        for ours, names in OWN_NAMES.items()
    }
    return {ours: own for ours, own in found.items() if own is not None}


def _check_options(
    name: str, parameters: Mapping[str, inspect.Parameter], options: Mapping[str, Any]
) -> None:
    for key in options:
        if key in FIXED_OPTIONS:
            raise BadInput(
                f"{key} of torchattacks:{name} is set elsewhere", hint=f"leave out {key}=…"
            )
        if key not in parameters:
            free = [*(own for own in parameters if own not in FIXED_OPTIONS), "restarts", "alone"]
            raise UnknownName(f"torchattacks' {name} has no {key!r}", hint=did_you_mean(key, free))


def _one_of(
    name: str, kind: Callable[..., Any], ours: str, value: Any, options: dict[str, Any]
) -> Any:
    """Return a parameter set by our name or by torchattacks' own, which is removed from options."""
    own = _own_names(kind).get(ours)
    if own in options:
        if value is not None:
            raise BadInput(
                f"{ours} and {own} of torchattacks:{name} are the same", hint="keep one of the two"
            )
        return options.pop(own)
    if own is None and value is not None:
        flag = "--step-size" if ours == "step" else f"--{ours}"
        raise BadInput(
            f"torchattacks' {name} has no {ours!r}", hint=f"leave out {ours}=… or {flag}"
        )
    return value


def _try(attack: FromTorchattacks) -> None:
    """Build the attack once for a dummy network, so that invalid options are refused early."""
    try:
        # a layer without random initialisation: torch's generator stays as it is
        attack._build(nn.LayerNorm(1), {"norm": "Linf", "n_classes": 10, "seed": 0})
    except Exception as error:  # torchattacks has no exception class of its own
        raise BadInput(
            f"torchattacks' {attack.name} cannot be built: {error}", hint="check its options"
        ) from error


def _join(parts: list[AttackResult]) -> AttackResult:
    """Concatenate the results of parts of a batch."""
    return AttackResult(
        torch.cat([part.images for part in parts]),
        torch.cat([part.steps_survived for part in parts]),
        torch.cat([part.require_logits() for part in parts]),
    )
