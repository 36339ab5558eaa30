"""What a notebook asks of a network, checked before the network or an image is touched."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import nn

from ..config import METRICS, EvaluateConfig
from ..core.contracts import Attack, Split
from ..core.norms import NORMS
from ..core.streams import Stream
from ..errors import BadInput, UnknownName, did_you_mean
from ..registry import Registry
from ..spec import Spec, number
from ..storage import checkpoints
from . import combining, parts
from .planning import Task, choice_rules


@dataclass(frozen=True)
class Question:
    """An attack in its ball, and what is to be measured under it."""

    attack: Attack
    attack_spec: str
    norm: str
    eps: float
    config: EvaluateConfig


def asked(
    registry: Registry,
    attack: str | Spec | Attack,
    norm: str | None,
    eps: float | None,
    *,
    alphas: Iterable[float] | None,
    rhos: Iterable[float],
    kernel: str,
    metrics: Sequence[str],
    batch_size: int,
    seed: int,
) -> Question:
    """The question, or what is wrong with it."""
    made, spec, norm, eps = _attack(registry, attack, norm, eps)
    radii = _sizes("rhos", rhos)
    unknown = next((word for word in metrics if word not in METRICS), None)
    if unknown is not None:
        raise UnknownName(f"there is no metric {unknown!r}", hint=did_you_mean(unknown, METRICS))
    for what, value, least in (("batch_size", batch_size, 1), ("seed", seed, 0)):
        if value < least:
            raise BadInput(f"{what} is {value}", hint=f"it is {least} or more")
    config = EvaluateConfig(
        split="given",
        attacks=(spec,),
        eps=(eps,),
        alpha_test=None if alphas is None else _sizes("alphas", alphas),
        kernel=registry.settled("kernel", kernel),
        metrics=(*metrics, "dro") if radii else tuple(metrics),
        rho=radii or None,
        batch_size=batch_size,
        seed=seed,
    )
    return Question(made, spec, norm, eps, config)


def task_of(
    question: Question,
    registry: Registry,
    model: nn.Module,
    images: Split | Stream,
    input_shape: tuple[int, int, int],
    *,
    num_classes: int | None,
    name: str | None,
    dataset: str,
) -> Task:
    """The question put to a network, on images as far as they are known."""
    kind, config = type(model).__name__, question.config
    outputs = parts.count_outputs(model, kind, input_shape)
    if num_classes not in (None, outputs):
        raise BadInput(f"the model has {outputs} outputs, not {num_classes}", hint="leave out num_classes, or mend the model")
    network = checkpoints.of_network(name or kind, kind, model.state_dict(), outputs, input_shape)
    kernels = choice_rules(registry, config, network)
    for rule in kernels.values():
        combining.check_reach(rule, images)
    specs = {"kernel": config.kernel}
    if _has_a_name(registry, question.attack_spec):
        specs["attack"] = question.attack_spec
    return Task(
        checkpoint=network,
        config=config,
        dataset=dataset,
        split=images,
        positions=torch.arange(len(images)),
        attack=question.attack,
        attack_spec=question.attack_spec,
        norm=question.norm,
        eps=question.eps,
        kernels=kernels,
        code=registry.used(specs),
    )


def _attack(
    registry: Registry, attack: str | Spec | Attack, norm: str | None, eps: float | None
) -> tuple[Attack, str, str, float]:
    """The attack with its spec and its ball, which is its own or that of the caller."""
    if isinstance(attack, str):
        attack = Spec.parse(attack)
    if isinstance(attack, Spec):
        spec = attack.absolute()
        fixed = {} if spec.is_local else registry.find("attack", spec.name).entry.params
        radius = spec.params.get("eps")
        ball = _ball(norm, eps, spec.params.get("norm", fixed.get("norm")), None if radius is None else number(str(radius)))
        spec = spec.without("eps", "norm")
        made = parts.attack(registry, spec, norm=ball[0], eps=ball[1])
        return made, parts.described(made, spec, registry), *ball
    if not callable(attack):
        raise BadInput(f"a {type(attack).__name__} is no attack", hint='name one, such as "pgd:steps=20", or create it')
    ball = _ball(norm, eps, getattr(attack, "norm", None), getattr(attack, "eps", None))
    return attack, parts.described(attack, parts.spec_of(attack, registry), registry), *ball


def _ball(norm: str | None, eps: float | None, own_norm: Any, own_eps: Any) -> tuple[str, float]:
    """Norm and radius as the caller says, or the attack of itself."""
    norm, eps = _agreed("norm", norm, own_norm) or "linf", _agreed("eps", eps, own_eps)
    if norm not in NORMS:
        raise UnknownName(f"there is no norm {norm!r}", hint=did_you_mean(norm, NORMS))
    if eps is None:
        raise BadInput("nobody says how far an attacker may go", hint="write eps=8 / 255")
    (radius,) = _sizes("eps", [eps])
    return norm, radius


def _agreed(what: str, asked: Any, own: Any) -> Any:
    """What the caller says and what the attack says of itself must not contradict each other."""
    if asked is not None and own is not None and asked != own:
        raise BadInput(f"{what} is {asked}, and the attack has {own}", hint="say it once")
    return own if asked is None else asked


def _sizes(what: str, values: Iterable[Any]) -> tuple[float, ...]:
    """Numbers that are finite and not negative, each once, in ascending order."""
    given = list(values)
    for value in given:
        if not (isinstance(value, Real) and math.isfinite(value) and float(value) >= 0):
            raise BadInput(f"{what}: {value!r} is no such number", hint="it is finite and not negative, such as 8 / 255 or 2.0")
    return tuple(sorted({float(value) for value in given}))


def _has_a_name(registry: Registry, spec: str) -> bool:
    """Whether a spec leads to a component; a class of the caller's own has none."""
    parsed = Spec.parse(spec)
    return parsed.is_local or parsed.name in registry.names("attack")
