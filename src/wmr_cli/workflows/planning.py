"""What an evaluation will do, settled before it starts: which images, which attack in which ball, which choice rules."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from ..config import EvaluateConfig
from ..core.contracts import Attack, DataSource, Kernel, Split
from ..core.splits import balanced_subset
from ..errors import BadInput
from ..registry import Registry
from ..spec import Spec, exact, in_proportion, number
from ..storage import records
from ..storage.checkpoints import IMPORTED, Checkpoint
from . import combining, parts


@dataclass(frozen=True)
class Task:
    """One checkpoint under one attack in one ball, on these images."""

    checkpoint: Checkpoint
    config: EvaluateConfig
    dataset: str
    split: Split
    positions: Tensor
    attack: Attack
    attack_spec: str
    norm: str
    eps: float
    kernels: dict[float | None, Kernel]
    """the attacker's choice rule for each alpha_test; None is the key of a kernel without alpha"""
    code: dict[str, str]
    """plugins and local files that take part, by version or hash"""

    @property
    def restarts(self) -> int:
        return getattr(self.attack, "restarts", 1)

    @property
    def gives_margins(self) -> bool:
        """An attack that leaves an image alone once it is fooled says nothing about its margin."""
        return not getattr(self.attack, "stops_early", False)

    @property
    def label(self) -> str:
        """What a progress bar calls it."""
        file = self.checkpoint.path
        run = file.parent.name if file.name == "last.safetensors" else str(Path(file.parent.name) / file.name)
        seeds = f", {self.config.repeats} seeds" if self.config.repeats > 1 else ""
        return f"{run} under {Spec.parse(self.attack_spec).name}, eps {exact(self.eps)}{seeds}"

    @property
    def id(self) -> str:
        """A hash of everything that determines the result."""
        is_whole = len(self.positions) == len(self.split)
        return records.record_id(
            {
                "schema": records.SCHEMA,
                "checkpoint": self.checkpoint.sha256,
                "data": [self.config.split, self.split.sha256, None if is_whole else self.positions.tolist()],
                "threat": [self.norm, self.eps],
                "attack": [self.attack_spec, self.restarts, self.config.seed],
                "kernel": [self.config.kernel, list(self.kernels)],
                "metrics": sorted(self.config.metrics),
                **({"checks": True} if self.config.checks else {}),
                "code": self.code,
                **self._extras(),
            }
        )

    @property
    def compares(self) -> bool:
        """Whether images are weighed against each other."""
        return any(getattr(kernel, "compares", False) for kernel in self.kernels.values())

    def _extras(self) -> dict[str, Any]:
        """What was asked beyond the usual. Nothing for the usual, so that its records keep the ids they have."""
        usual = EvaluateConfig()
        names = ("rho", "dro_loss", "per_class", "repeats", "ci", "layout", "fold")
        return {name: getattr(self.config, name) for name in names if getattr(self.config, name) != getattr(usual, name)}


def plan(
    checkpoint: Checkpoint, config: EvaluateConfig, registry: Registry, data_dir: Path, source: DataSource | None = None
) -> Iterator[Task]:
    """Every task that `config` asks of a checkpoint, on its data set, or on `source` where that is loaded already."""
    if config.repeats > 1 and not config.attacks_images:
        raise BadInput("clean images are the same for every seed", hint="leave out --repeats, or ask for more --metrics")
    kernel = registry.settled("kernel", config.kernel)
    attacks_asked = tuple(str(Spec.parse(text).absolute()) for text in config.attacks)
    config = msgspec.structs.replace(config, kernel=kernel, attacks=attacks_asked)
    dataset = registry.settled("dataset", config.dataset or checkpoint.dataset)
    source = parts.dataset(registry, dataset, data_dir, checkpoint.config.split_seed) if source is None else source
    config = msgspec.structs.replace(config, dataset=config.dataset and dataset)
    check_fit(checkpoint, source, config)
    split = parts.split_of(source, config.split)
    positions = subset(split, config.limit)
    kernels = choice_rules(registry, config, checkpoint)
    for kernel_of_alpha in kernels.values():
        combining.check_reach(kernel_of_alpha, split, positions)
    for spec, norm, eps, steps, step_size in attacks(registry, config, checkpoint):
        attack = parts.attack(registry, spec, norm=norm, eps=eps, steps=steps, step_size=step_size, restarts=config.restarts)
        described = parts.described(attack, spec, registry, steps=steps, step=step_size)
        code = registry.used({"model": checkpoint.model, "dataset": dataset, "attack": described, "kernel": config.kernel})
        yield Task(checkpoint, config, dataset, split, positions, attack, described, norm, eps, kernels, code)


def attacks(
    registry: Registry, config: EvaluateConfig, checkpoint: Checkpoint
) -> Iterator[tuple[Spec, str, float, int | None, float | None]]:
    """Spec, norm, eps, steps and step size of every attack and eps asked for.

    An attack of the checkpoint's usual kind takes its usual steps, and a new eps keeps the ratio of step to eps.
    """
    usual = checkpoint.config.evaluate
    usual_spec = Spec.parse(usual.attack)
    for text in config.attacks or (usual.attack,):
        spec = Spec.parse(text)
        if spec.name == usual_spec.name:
            spec = Spec(spec.name, spec.value, {**usual_spec.params, **spec.params})
        steps, step_size = config.steps, config.step_size
        target = registry.target("attack", spec.name)
        # a local class of the checkpoint is not imported only to compare it
        is_same = spec.name == usual_spec.name or (
            not usual_spec.is_local and target is registry.target("attack", usual_spec.name)
        )
        is_usual = is_same or getattr(target, "follows_preset", False)
        if is_usual and steps is None and "steps" not in spec.params:
            steps = usual.steps
        keeps_ratio = is_usual and step_size is None and "step" not in spec.params
        for norm, eps in balls(spec, config, checkpoint):
            if keeps_ratio and usual.step_size and checkpoint.eps:
                step_size = in_proportion(usual.step_size, eps, checkpoint.eps)
            yield spec.without("eps", "norm"), norm, eps, steps, step_size


def balls(spec: Spec, config: EvaluateConfig, checkpoint: Checkpoint) -> list[tuple[str, float]]:
    """Norm and eps for one attack: its own, those of --eps, or those the checkpoint was trained for."""
    norm = str(spec.params.get("norm", checkpoint.norm))
    if "eps" in spec.params and config.eps:
        raise BadInput(f"--eps and {str(spec)!r} both set eps", hint="keep one of the two")
    if "eps" in spec.params:
        return [(norm, number(str(spec.params["eps"])))]
    if norm != checkpoint.norm and not config.eps:
        raise BadInput(f"the checkpoint was trained for {checkpoint.norm} and has no eps for {norm}", hint="say --eps")
    return [(norm, eps) for eps in config.eps or (checkpoint.eps,)]


def choice_rules(registry: Registry, config: EvaluateConfig, checkpoint: Checkpoint) -> dict[float | None, Kernel]:
    """The attacker's choice rule for each alpha_test, or the only one of a kernel without alpha."""
    spec = Spec.parse(config.kernel)
    takes_alpha = registry.accepts("kernel", spec.name, "alpha") and "alpha" not in spec.params
    if not takes_alpha and config.alpha_test is not None:
        raise BadInput(f"kernel {config.kernel!r} leaves no alpha to set", hint="leave out --alpha-test")
    alphas: tuple[float | None, ...] = (None,)
    if takes_alpha:
        alphas = checkpoint.config.evaluate.alpha_test if config.alpha_test is None else config.alpha_test
    rules = {alpha: parts.kernel(registry, config.kernel, alpha) for alpha in alphas}
    if any(getattr(rule, "needs_training", False) for rule in rules.values()):
        raise BadInput(f"kernel {spec.name!r} weighs by what is seen in training only", hint="evaluate with --kernel exp")
    for rule in rules.values():
        combining.check_climbable(rule)
    for needed in (name for rule in rules.values() for name in getattr(rule, "needs", ()) if name not in combining.ALWAYS_KNOWN):
        problem = f"kernel {spec.name!r} weighs by {needed.replace('_', ' ')}, which an evaluation does not know"
        raise BadInput(problem, hint="evaluate with --kernel exp")
    return rules


def subset(split: Split, limit: int | None) -> Tensor:
    """All positions, or a random class-balanced subset that is the same for every checkpoint."""
    if limit is None or limit >= len(split):
        return torch.arange(len(split))
    return balanced_subset(split.labels, limit, seed=0)


def _place(dataset: str | None) -> str | None:
    """Data set and path of a spec, whatever else it says."""
    spec = None if dataset is None else Spec.parse(dataset)
    return None if spec is None else f"{spec.name} {spec.params.get('path', spec.value)}"


def check_fit(checkpoint: Checkpoint, source: DataSource, config: EvaluateConfig) -> None:
    """Network and data must have the same classes, in order, and the same shape; nobody is tested on training images."""
    facts = {
        "classes": (checkpoint.num_classes, source.num_classes),
        "an image shape of": (checkpoint.input_shape, tuple(source.input_shape)),
    }
    for what, (made_for, given) in facts.items():
        if made_for != given:
            problem = f"{checkpoint.path} was made for {what} {made_for}, the data have {given}"
            raise BadInput(problem, hint=f"evaluate it on its own data set, {checkpoint.dataset!r}")
    drawn = getattr(source, "drawn", None)
    is_same_place = _place(config.dataset) in (None, _place(checkpoint.dataset))
    if checkpoint.defense != IMPORTED and config.split != "all" and is_same_place and checkpoint.drawn != drawn:
        problem = f"the data have changed since {checkpoint.path} was trained: it may have been trained on what would be tested"
        raise BadInput(problem, hint="put the data back as they were, train anew, or evaluate --split all knowing this")
    names = getattr(source, "class_names", None)
    if checkpoint.class_names and names and checkpoint.class_names != names:
        first = next(pair for pair in zip(checkpoint.class_names, names, strict=True) if pair[0] != pair[1])
        problem = f"{checkpoint.path} was made for other classes: where it has {first[0]!r}, the data have {first[1]!r}"
        raise BadInput(problem, hint="give the data the classes, and the names of classes, that it was trained with")
