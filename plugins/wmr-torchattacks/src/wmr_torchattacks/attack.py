"""An attack of torchattacks (Kim 2020, arXiv:2010.01950), kept to the ball, to the seed and to the model it was given."""

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
from .draws import drawn_by
from .network import Watched, parameters_at_rest

OWN_NAMES = {
    "eps": ("eps", "max_epsilon"),
    "steps": ("steps", "num_iter_set", "nb_iter"),
    "step": ("alpha",),
}
"""What torchattacks calls a radius, a number of steps and the size of a step."""
SETTLED = ("model", "norm", "eps", "max_epsilon", "seed", "n_classes")
"""What the ball, the data and --seed say."""


@dataclasses.dataclass(frozen=True)
class FromTorchattacks:
    """The attack `name` of torchattacks. (N, C, H, W) in [0, 1] to the same.

    It climbs a loss of its own, whatever objective it is given; the objective chooses between its restarts and the clean
    image. With `alone` every image is attacked by itself. `from_torchattacks` adds a field for each option of torchattacks.
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
        # an option `loss` of torchattacks is its own; by ours its restarts are compared
        loss = self.options.get("loss", "ce")
        return AttackTraits(
            objective=loss if loss in OBJECTIVES else "ce",
            stops_early=self.name in families.STOP_EARLY,
        )

    @property
    def options(self) -> dict[str, Any]:
        """What the user set beyond the common fields."""
        common = {field.name for field in dataclasses.fields(FromTorchattacks)}
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in common
        }

    def remarks(self, num_classes: int) -> Iterator[str]:
        """What a user of this attack should know."""
        if not self.traits.stops_early:
            yield (
                f"torchattacks' {self.name} climbs a loss of its own and does not see weights: "
                "A_tr is measured on the images of A_sa, and training crafts as without weights"
            )
        if self.name in families.NEAREST:
            yield f"torchattacks' {self.name} looks for the nearest image; what it finds outside the ball is pulled to its edge"
        if self.name == "GN":
            yield "torchattacks' GN adds noise of its own `std`, whatever eps; what leaves the ball is pulled to its edge"
        if self.sees_the_batch:
            yield f"what torchattacks' {self.name} finds may depend on other images of the batch; alone=true takes one at a time"

    @property
    def sees_the_batch(self) -> bool:
        """Whether an image's result is another one in another batch."""
        return not self.alone and (
            self.name in families.SEE_THE_BATCH or self.options.get("n_restarts", 1) > 1
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
        """What torchattacks makes of these images, brought back into the ball; where it makes no numbers, the image itself."""
        images, labels = batch.images, batch.labels
        watched = Watched(model, labels)
        settled = {
            "norm": {"linf": "Linf", "l2": "L2"}[self.norm],
            "n_classes": clean.require_logits().shape[1],
        }
        settled["seed"] = rng.derive_seed("torchattacks", seed, restart) % 2**31
        with (
            torch.enable_grad(),
            parameters_at_rest(model),
            drawn_by(batch.index, seed, restart),
            contextlib.redirect_stdout(sys.stderr),  # stdout belongs to results
        ):
            try:
                attack = self._build(watched, settled)
                attack.set_device(images.device)
                moved = attack(images, labels)
            except Exception as error:  # of any kind: the network has taken these images, so it is torchattacks that cannot
                raise self._cannot(error, images) from error
        moved = moved.detach().to(images.dtype)
        is_number = moved.isfinite().flatten(1).all(dim=1)
        moved = project_to_ball(
            images,
            torch.where(is_number[:, None, None, None], moved, images),
            NORMS[self.norm],
            self.eps,
        )
        with torch.no_grad():
            logits = model(moved)
        steps_survived = watched.steps_survived(self.steps or 1, clean.steps_survived)
        return AttackResult(moved, steps_survived, logits)

    def _build(self, model: nn.Module, settled: Mapping[str, Any]) -> Any:
        kind = getattr(torchattacks, self.name)
        names = _own_names(kind)
        ours = {names[key]: getattr(self, key) for key in OWN_NAMES if key in names}
        taken = {key: value for key, value in settled.items() if key in _parameters(kind)}
        return kind(model, **ours, **taken, **self.options)

    def _cannot(self, error: Exception, images: Tensor) -> BadInput:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        channels = images.shape[1]
        hint = "see to its options" if self.options else "choose another attack"
        if channels != 3:
            hint = f"some of its attacks take colour images alone, and these have {channels} channel{'s' * (channels > 1)}"
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
    """The attack `name` in this ball. Without `step` the step keeps the ratio to eps that torchattacks gives it.

    Any other option, such as decay=0.9, is handed to torchattacks.
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
        hint = "eps and step are not negative; steps and restarts are 1 or more"
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
    """Our names of what this attack has, to its own."""
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
        if key in SETTLED:
            raise BadInput(
                f"{key} of torchattacks:{name} is set elsewhere", hint=f"leave out {key}=…"
            )
        if key not in parameters:
            free = [*(own for own in parameters if own not in SETTLED), "restarts", "alone"]
            raise UnknownName(f"torchattacks' {name} has no {key!r}", hint=did_you_mean(key, free))


def _one_of(
    name: str, kind: Callable[..., Any], ours: str, value: Any, options: dict[str, Any]
) -> Any:
    """A number that the user may set by our name or by torchattacks' own, which is taken out of the options."""
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
    """Build it once for a network of no importance, so that an option it refuses is told before any work."""
    try:
        # a network that draws nothing when it is made: the global random numbers stay as they are
        attack._build(nn.LayerNorm(1), {"norm": "Linf", "n_classes": 10, "seed": 0})
    except Exception as error:  # of any kind: torchattacks has none of its own
        raise BadInput(
            f"torchattacks' {attack.name} cannot be built: {error}", hint="see to its options"
        ) from error


def _join(parts: list[AttackResult]) -> AttackResult:
    """Concatenate the results of parts of a batch."""
    return AttackResult(
        torch.cat([part.images for part in parts]),
        torch.cat([part.steps_survived for part in parts]),
        torch.cat([part.require_logits() for part in parts]),
    )
