"""In what a measurement departs from the paper's, where the two may stand side by side all the same.

The paper's settings are those of the presets `paper/…`: its own numbers and, where it is silent, those of the code it builds on.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from ...config import resolve
from ...errors import BadInput
from ...spec import Spec, exact, in_proportion, number
from ...storage.records import Record

IMAGES = 10_000
RESTARTS = {"authors-eval": 10}
"""Of attacks whose usual number is not 1."""
SCRIPTED = {"cifar10": 0.0031}
"""The step size of the released evaluation, where it is not that of the training log."""
NOT_RECORDED = "settings of training not recorded"
WORDS = {
    "norm": "norm of training", "attack": "attack of training", "steps": "steps of training",
    "step_size": "step size of training", "attack_mode": "mode of the network under attack", "weight_grad": "gradient of weights",
    "normalize": "weights normalised by", "max_weight": "largest weight", "batch_size": "batch size",
    "augment": "augmentation", "optimizer": "optimizer",
    "lr": "learning rate", "momentum": "momentum", "weight_decay": "weight decay", "decay": "decay of",
    "clip_grad": "gradients clipped at", "label_smoothing": "label smoothing", "schedule": "schedule", "milestones": "milestones",
    "gamma": "gamma", "warmup": "warm-up", "eps_ramp": "ramp of ε", "alpha_ramp": "ramp of α", "precision": "precision",
}  # fmt: skip
"""Settings of training that change what comes out, as a reader is told of them."""
ONLY_WITH = {"milestones": "schedule", "gamma": "schedule", "momentum": "optimizer"}
"""Settings that mean nothing where another one differs already."""
CHOSEN = {"best.safetensors": "the best weights", "ema.safetensors": "averaged weights"}


@cache
def settings_of(dataset: str, defense: str) -> dict[str, Any]:
    """How the paper trained with a defense on a data set, and evaluated."""
    found: dict[str, Any] = msgspec.to_builtins(resolve({"preset": f"paper/{dataset}", "defense": defense}))
    return found


def departures(record: Record, dataset: str, radii: Iterable[float]) -> Iterator[str]:
    """Everything that is known to differ; `radii` are those of training in the paper's rows."""
    facts = record.checkpoint
    defense = Spec.parse(facts.defense)
    usual = settings_of(dataset, defense.name)
    expected = Spec.parse(usual["model"])
    if not _is_network(facts.model, expected):
        yield f"network {facts.model} for {expected.name}"
    yield from _differ(defense, Spec.parse(usual["defense"]))
    chosen = CHOSEN.get(Path(facts.path).name)
    if chosen is not None:
        yield f"{chosen} for the last"
    if facts.config is None:
        yield NOT_RECORDED
    else:
        stopped = facts.epoch if chosen is None and facts.epoch != facts.config.get("epochs") else None
        yield from _of_training(facts.config, usual, stopped, sorted(set(radii)))
    yield from _of_attack(record, dataset, usual)
    if record.dataset.n != IMAGES:
        yield f"{record.dataset.n} test images for {IMAGES}"


def _is_network(text: str, expected: Spec) -> bool:
    try:
        found = Spec.parse(text)
    except BadInput:  # a name from elsewhere
        return False
    return found.name == expected.name and not any(_differ(found, expected))


def _differ(mine: Spec, theirs: Spec) -> Iterator[str]:
    """Parameters that are given and are not those of the paper."""
    if mine.value is not None:
        yield f"{mine.name} {mine.value}"
    for key, value in mine.params.items():
        usual = theirs.params.get(key)
        if usual is None or not _same(value, usual):
            yield f"{key} {value}" + ("" if usual is None else f" for {usual}")


def _same(value: object, usual: object) -> bool:
    try:
        return number(str(value)) == number(str(usual))
    except BadInput:
        return str(value) == str(usual)


def _of_training(own: Mapping[str, Any], usual: Mapping[str, Any], stopped: int | None, radii: list[float]) -> Iterator[str]:
    epochs = own.get("epochs", usual["epochs"])
    if epochs != usual["epochs"]:
        yield f"{epochs} epochs for {usual['epochs']}"
    if stopped is not None:
        yield f"weights after {stopped} epochs for {epochs}"
    if "eps" in own and own["eps"] not in radii:
        yield f"ε of training {exact(own['eps'])} for {' or '.join(map(exact, radii))}"
    different = [name for name in WORDS if name in own and own[name] != usual[name]]
    yield from (
        f"{WORDS[name]} {_text(own[name], name)} for {_text(usual[name], name)}"
        for name in different
        if ONLY_WITH.get(name) not in different
    )


def _text(value: Any, name: str) -> str:
    if value is None:
        return "of the attack's own" if name == "step_size" else "none"
    if isinstance(value, float):
        return exact(value)
    return "/".join(map(str, value)) or "none" if isinstance(value, list | tuple) else str(value)


def _of_attack(record: Record, dataset: str, usual: Mapping[str, Any]) -> Iterator[str]:
    spec, eps, usual_step = Spec.parse(record.attack.spec), record.threat.eps, usual["evaluate"]["step_size"]
    restarts = RESTARTS.get(spec.name, 1)
    if record.attack.restarts != restarts:
        yield f"restarts {record.attack.restarts} for {restarts}"
    known = {usual_step, in_proportion(usual_step, eps, usual["eps"])}
    if spec.name == "authors-eval" and dataset in SCRIPTED:
        known.add(SCRIPTED[dataset])
    given = spec.params.get("step", exact(_default_step(spec, eps)))
    if not any(_same(given, exact(step)) for step in known):
        yield f"step size {given} for {exact(usual_step)}"
    if str(spec.params.get("start", "uniform")) != "uniform":
        yield f"start {spec.params['start']} for uniform"
    if str(spec.params.get("keep", "last")) != "last":
        yield f"the {spec.params['keep']} step for the last"


def _default_step(spec: Spec, eps: float) -> float:
    return eps / 10 if spec.name == "authors-eval" else 2.5 * eps / max(int(str(spec.params["steps"])), 1)
