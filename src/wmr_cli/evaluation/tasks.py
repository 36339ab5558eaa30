"""Plan an evaluation before it starts: a task for each attack and threat model.

`plan_tasks` serves `wmr evaluate`: it parses the config, loads the dataset, lists attacks with
their threat models, builds attacks and kernels, and checks that all fit together. `check_request`
and `make_task` do the same for `wmr_cli.evaluate`, where the caller has the model, the images and
perhaps the attack.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path

import msgspec
import torch
from torch import Tensor, nn

from ..config import (
    MAX_CLASSES_IN_FULL_ROWS,
    METRICS,
    EvaluateConfig,
    Metric,
    RowsContent,
    TrainConfig,
)
from ..core.data.loaders import BatchStream
from ..core.data.splits import balanced_subset
from ..core.eot import DrawRule
from ..core.norms import NORMS
from ..core.protocols import Attack, Batch, DataSource, Kernel, Split, Verifier
from ..core.traits import ALWAYS_PROVIDED, read_parameter
from ..errors import BadInput, UnknownName, did_you_mean
from ..measures import MARGIN_KERNEL
from ..registry import Registry
from ..reporting.requirements import Requirement
from ..runtime import components, datasets
from ..spec import Spec, format_number, parse_number, scale_exactly
from ..storage import checkpoints, records
from ..storage.checkpoints import IMPORTED_DEFENSE, Checkpoint

LATER_SETTINGS = (
    "rho", "dro_loss", "per_class", "repeats", "ci", "layout", "fold", "certify", "draws",
    "draw_rule",
)  # fmt: skip
"""Settings that are part of a record's id only if they differ from their defaults."""


@dataclass(frozen=True, kw_only=True)
class ImageSelection:
    """The evaluated images: positions (N,) in a split of a dataset."""

    dataset: str
    split: Split
    positions: Tensor

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def is_whole_split(self) -> bool:
        return len(self.positions) == len(self.split)

    def first(self, count: int) -> Batch:
        """Load the first images."""
        return self.split.batch(self.positions[:count])


@dataclass(frozen=True, kw_only=True)
class PlannedAttack:
    """An attack that is built for a threat model."""

    component: Attack
    spec: str
    """With every parameter that determines the result."""
    norm: str
    eps: float

    @property
    def restarts(self) -> int:
        return read_parameter(self.component, "restarts") or 1

    @property
    def has_margins(self) -> bool:
        """Whether margins under the attack are meaningful: attacks that stop early leave none."""
        return not self.component.traits.stops_early


@dataclass(frozen=True, kw_only=True)
class EvaluationTask:
    """One checkpoint under one attack: the content of one record."""

    checkpoint: Checkpoint
    config: EvaluateConfig
    images: ImageSelection
    attack: PlannedAttack
    kernels: dict[float | None, Kernel]
    """The attacker's kernel for each alpha_test. The key of a kernel without alpha is None."""
    code_versions: dict[str, str]
    """Plugins and local files that take part, with their version or hash."""
    verifier: Verifier | None = None

    @property
    def gathers_images(self) -> bool:
        """Whether the attack receives the images of several batches at once."""
        # with one image per batch, each has random numbers of its own in a stochastic model
        return self.attack.component.traits.gathers_images and self.config.batch_size > 1

    @property
    def compares_images(self) -> bool:
        """Whether the weight of an image depends on other images."""
        return any(kernel.traits.compares_images for kernel in self.kernels.values())

    @property
    def is_compact(self) -> bool:
        """Whether the rows of the record hold no logits."""
        if self.config.rows is not None:
            return self.config.rows == "compact"
        has_many_classes = self.checkpoint.num_classes > MAX_CLASSES_IN_FULL_ROWS
        return has_many_classes and not self.compares_images

    @property
    def logit_prefixes(self) -> frozenset[str] | None:
        """Prefixes of the rows whose logits the evaluation itself needs; None for all."""
        if not self.is_compact:
            return None
        # for the check of the temperature, and for A_cal
        needs_uniform = self.config.checks or self.is_calibrated
        return frozenset({"uniform"} if needs_uniform else ())

    @property
    def is_calibrated(self) -> bool:
        """Whether A_cal is measured."""
        return "cal" in self.config.metrics

    @property
    def label(self) -> str:
        """Text for the progress bar."""
        file = self.checkpoint.path
        # last.safetensors is the usual file, so that the name of the run is enough
        name = file.parent.name
        if file.name != "last.safetensors":
            name = str(Path(name) / file.name)
        attack = Spec.parse(self.attack.spec).name
        seeds = f", {self.config.repeats} seeds" if self.config.repeats > 1 else ""
        return f"{name} under {attack}, eps {format_number(self.attack.eps)}{seeds}"

    def list_warnings(self) -> Iterator[str]:
        """Yield what the user should know about the images and the attack."""
        yield from components.list_dataset_notes(self.images.split)
        yield from components.list_attack_warnings(
            self.attack.component, self.attack.eps, self.checkpoint.num_classes
        )

    @property
    def id(self) -> str:
        """Hash of everything that determines the result."""
        images = self.images
        # the hash of the split stands for its positions
        positions = None if images.is_whole_split else images.positions.tolist()
        # neither batch size nor device: they change rounding errors only
        determining: dict[str, object] = {
            "schema": records.SCHEMA,
            "checkpoint": self.checkpoint.sha256,
            "data": [self.config.split, images.split.sha256, positions],
            "threat": [self.attack.norm, self.attack.eps],
            "attack": [self.attack.spec, self.attack.restarts, self.config.seed],
            "kernel": [self.config.kernel, list(self.kernels)],
            "metrics": sorted(self.config.metrics),
            "code": self.code_versions,
        }
        # a stored record without checks must not be reused for an evaluation with them
        if self.config.checks:
            determining["checks"] = True
        # by content, not by setting: a record with the requested rows is found either way
        if self.is_compact:
            determining["rows"] = "compact"
        # defaults are left out, so that new settings do not change the ids of stored records
        defaults = EvaluateConfig()
        for name in LATER_SETTINGS:
            value = getattr(self.config, name)
            if value != getattr(defaults, name):
                determining[name] = value
        return records.record_id(determining)


def plan_tasks(
    checkpoint: Checkpoint,
    config: EvaluateConfig,
    registry: Registry,
    data_dir: Path,
    source: DataSource | None = None,
    threads: int | None = None,
) -> Iterator[EvaluationTask]:
    """Yield a task for each attack and eps of `config`. `source` is the dataset if it is loaded."""
    config = _make_canonical(config, registry)
    dataset = config.dataset or registry.canonical_spec("dataset", checkpoint.dataset)
    if source is None:
        source = datasets.build_dataset(
            registry, dataset, data_dir, checkpoint.config.split_seed, threads=threads
        )
    # before any image is read: a split may be large or be read from files
    check_dataset(checkpoint, source, config)
    split = datasets.get_split(source, config.split)
    positions = choose_positions(split, config.limit)
    images = ImageSelection(dataset=dataset, split=split, positions=positions)
    kernels = make_kernels(registry, config, checkpoint)
    for kernel in kernels.values():
        components.check_covers_split(kernel, split, positions)
        _check_rows(kernel, config)
    for settings in list_attacks(registry, config, checkpoint):
        attack = _build_attack(settings, registry, restarts=config.restarts, eot=config.eot)
        specs = {
            "model": checkpoint.model,
            "dataset": dataset,
            "attack": attack.spec,
            "kernel": config.kernel,
        }
        if config.certify:
            specs["verifier"] = config.certify
        yield EvaluationTask(
            checkpoint=checkpoint,
            config=config,
            images=images,
            attack=attack,
            kernels=kernels,
            code_versions=registry.external_versions(specs),
            verifier=_make_verifier(config, registry, attack.norm),
        )


def _canonical_verifier(spec: str | None, registry: Registry) -> str | None:
    return None if spec is None else registry.canonical_spec("verifier", spec)


def _make_verifier(config: EvaluateConfig, registry: Registry, norm: str) -> Verifier | None:
    if config.certify is None:
        return None
    return components.build_verifier(registry, config.certify, norm)


def _make_canonical(config: EvaluateConfig, registry: Registry) -> EvaluateConfig:
    """Return the config with specs that mean the same in any folder, as records store them."""
    if config.repeats > 1 and not set(config.metrics) - {"nat"}:
        raise BadInput(
            "`repeats` needs an attack: clean accuracy is the same for every seed",
            hint="leave out `repeats`, or add other `metrics`",
        )
    check_draws(config)
    dataset = config.dataset
    if dataset:
        dataset = registry.canonical_spec("dataset", dataset)
    return msgspec.structs.replace(
        config,
        kernel=registry.canonical_spec("kernel", config.kernel),
        attacks=tuple(str(Spec.parse(text).absolute()) for text in config.attacks),
        dataset=dataset,
        certify=_canonical_verifier(config.certify, registry),
    )


def check_draws(config: EvaluateConfig) -> None:
    """Refuse a rule for draws that decides nothing."""
    if config.draw_rule != "mean" and (config.draws or 1) == 1:
        raise BadInput(f"`draw_rule={config.draw_rule}` needs several draws", hint="set `draws=20`")


@dataclass(frozen=True, kw_only=True)
class AttackSettings:
    """An attack before it is built; None leaves the attack's own default."""

    spec: Spec
    norm: str
    eps: float
    steps: int | None = None
    step_size: float | None = None


def list_attacks(
    registry: Registry, config: EvaluateConfig, checkpoint: Checkpoint
) -> Iterator[AttackSettings]:
    """Yield every attack with every eps.

    An attack of the kind in the checkpoint's preset takes the preset's steps, and its step size
    grows in proportion to eps.
    """
    preset = checkpoint.config.evaluate
    preset_spec = Spec.parse(preset.attack)
    for text in config.attacks or (preset.attack,):
        spec = Spec.parse(text)
        # parameters of the preset are defaults for the same attack
        if spec.name == preset_spec.name:
            spec = Spec(spec.name, spec.value, {**preset_spec.params, **spec.params})
        threats = list_threats(spec, config, checkpoint)
        follows_preset = _follows_preset(registry, spec, preset_spec, *threats[0])
        steps = config.steps
        if follows_preset and steps is None and "steps" not in spec.params:
            steps = preset.steps
        step_size = config.step_size
        keeps_ratio = follows_preset and step_size is None and "step" not in spec.params
        for norm, eps in threats:
            # eps of a checkpoint may be 0
            if keeps_ratio and preset.step_size and checkpoint.eps:
                step_size = scale_exactly(preset.step_size, eps, checkpoint.eps)
            yield AttackSettings(
                spec=spec.without("eps", "norm"),
                norm=norm,
                eps=eps,
                steps=steps,
                step_size=step_size,
            )


def _follows_preset(
    registry: Registry, spec: Spec, preset_spec: Spec, norm: str, eps: float
) -> bool:
    """Return whether an attack takes its steps from the preset."""
    if spec.name == preset_spec.name:
        return True
    # do not import a local class that the checkpoint names only to compare it
    if not preset_spec.is_local:
        target = registry.target("attack", spec.name)
        if target is registry.target("attack", preset_spec.name):
            return True
    # traits belong to an instance, and a wrapper passes on those of its base
    attack = components.build_attack(registry, spec.without("norm", "eps"), norm=norm, eps=eps)
    return attack.traits.follows_preset


def list_threats(
    spec: Spec, config: EvaluateConfig, checkpoint: Checkpoint
) -> list[tuple[str, float]]:
    """Return norm and eps of an attack: from its spec, the config, or the checkpoint."""
    norm = str(spec.params.get("norm", checkpoint.norm))
    if "eps" in spec.params and config.eps:
        raise BadInput(f"`eps` and {str(spec)!r} both set eps", hint="keep one of the two")
    if "eps" in spec.params:
        return [(norm, parse_number(str(spec.params["eps"])))]
    # an eps for one norm means nothing for another
    if norm != checkpoint.norm and not config.eps:
        raise BadInput(
            f"the checkpoint was trained for {checkpoint.norm} and has no eps for {norm}",
            hint="set `eps`",
        )
    return [(norm, eps) for eps in config.eps or (checkpoint.eps,)]


def _build_attack(
    settings: AttackSettings,
    registry: Registry,
    restarts: int | None = None,
    eot: int | None = None,
) -> PlannedAttack:
    component = components.build_attack(
        registry,
        settings.spec,
        norm=settings.norm,
        eps=settings.eps,
        steps=settings.steps,
        step_size=settings.step_size,
        restarts=restarts,
        eot=eot,
    )
    spec = components.describe_attack(
        component, settings.spec, registry, steps=settings.steps, step=settings.step_size
    )
    return PlannedAttack(component=component, spec=spec, norm=settings.norm, eps=settings.eps)


def make_kernels(
    registry: Registry, config: EvaluateConfig, checkpoint: Checkpoint
) -> dict[float | None, Kernel]:
    """Build the attacker's kernel for each alpha_test, or one kernel if it has no free alpha."""
    spec = Spec.parse(config.kernel)
    # an alpha in the spec is fixed, so that alpha_test cannot vary it
    takes_alpha = registry.accepts("kernel", spec.name, "alpha") and "alpha" not in spec.params
    if not takes_alpha and config.alpha_test is not None:
        raise BadInput(
            f"kernel {config.kernel!r} has no alpha to set", hint="leave out `alpha_test`"
        )
    alphas: tuple[float | None, ...] = (None,)
    if takes_alpha and config.alpha_test is not None:
        alphas = config.alpha_test
    elif takes_alpha:
        alphas = checkpoint.config.evaluate.alpha_test
    kernels = {alpha: components.build_kernel(registry, config.kernel, alpha) for alpha in alphas}
    for kernel in kernels.values():
        _check_usable_as_metric(kernel, spec.name)
    return kernels


def _check_usable_as_metric(kernel: Kernel, name: str) -> None:
    """Refuse kernels that need evidence which only training provides."""
    hint = f"evaluate with `kernel={EvaluateConfig().kernel}`"
    if not kernel.traits.usable_as_metric:
        raise BadInput(f"kernel {name!r} uses values that exist only in training", hint=hint)
    # A_tr attacks the weighted loss, so that its gradient must exist
    components.check_attackable(kernel)
    for needed in sorted(kernel.traits.needs - ALWAYS_PROVIDED):
        evidence = needed.replace("_", " ")
        problem = f"kernel {name!r} needs {evidence}, which an evaluation does not provide"
        raise BadInput(problem, hint=hint)


def _check_rows(kernel: Kernel, config: EvaluateConfig) -> None:
    """Refuse what the rows of a kernel do not allow: compact rows, or A_cal."""
    if "cal" in config.metrics and config.kernel != MARGIN_KERNEL:
        raise BadInput(
            f"the metric `cal` computes weights from margins, kernel {config.kernel!r} does not",
            hint=f"leave `cal` out of `metrics`, or set `kernel={MARGIN_KERNEL}`",
        )
    if config.rows == "compact" and kernel.traits.compares_images:
        raise BadInput(
            f"kernel {config.kernel!r} compares images, which needs their logits",
            hint="set `rows=full`",
        )


def check_requirements(
    requirements: Sequence[Requirement], tasks: Sequence[EvaluationTask]
) -> None:
    """Refuse requirements on what the tasks do not measure at each norm and eps."""
    by_threat: dict[tuple[str, float], list[EvaluationTask]] = {}
    for task in tasks:
        by_threat.setdefault((task.attack.norm, task.attack.eps), []).append(task)
    for requirement in requirements:
        for members in by_threat.values():
            reasons = [_find_missing(requirement, task) for task in members]
            # one attack that has the metric is enough
            if all(reasons):
                raise BadInput(
                    f"`require`: {requirement} would not be measured", hint=str(reasons[0])
                )


def _find_missing(requirement: Requirement, task: EvaluationTask) -> str | None:
    """Return how a task could measure what a requirement needs; None if it does already."""
    config = task.config
    metric = requirement.metric.removeprefix("a_")
    # clean images are always measured
    if metric != "nat" and metric not in config.metrics:
        return f"set `metrics={','.join((*config.metrics, metric))}`"
    if not requirement.is_weighted:
        return None
    if not task.attack.has_margins:
        return "this attack stops early and leaves no margins: add another `attack`, such as pgd"
    alpha = requirement.alpha
    # A_sa follows from the margins at any alpha
    is_sampled = metric == "sa" and config.kernel == MARGIN_KERNEL
    if alpha is None or alpha in task.kernels or is_sampled:
        return None
    if None in task.kernels:
        return f"kernel {config.kernel!r} has no alpha to set: leave out @{format_number(alpha)}"
    alphas = [format_number(known) for known in (*task.kernels, alpha) if known is not None]
    return f"set `alpha_test={','.join(alphas)}`"


def choose_positions(split: Split, limit: int | None) -> Tensor:
    """Return all positions, or a class-balanced subset that is the same for every checkpoint."""
    if limit is None or limit >= len(split):
        return torch.arange(len(split))
    # a fixed seed: results of different checkpoints are compared image by image
    return balanced_subset(split.labels, limit, seed=0)


def check_dataset(checkpoint: Checkpoint, source: DataSource, config: EvaluateConfig) -> None:
    """Refuse data of other classes or shape, or that may contain training images."""
    hint = f"evaluate it on its dataset, {checkpoint.dataset!r}"
    if checkpoint.num_classes != source.num_classes:
        raise BadInput(
            f"{checkpoint.path} was trained for {checkpoint.num_classes} classes, "
            f"the dataset has {source.num_classes}",
            hint=hint,
        )
    if checkpoint.input_shape != tuple(source.input_shape):
        raise BadInput(
            f"{checkpoint.path} was trained for images of shape {checkpoint.input_shape}, "
            f"the dataset has {tuple(source.input_shape)}",
            hint=hint,
        )
    _check_holdout(checkpoint, source, config)
    names = source.class_names
    if checkpoint.class_names and names and checkpoint.class_names != names:
        pairs = zip(checkpoint.class_names, names, strict=True)
        expected_name, actual_name = next((old, new) for old, new in pairs if old != new)
        raise BadInput(
            f"{checkpoint.path} was trained for other classes: "
            f"it expects {expected_name!r} where the dataset has {actual_name!r}",
            hint="name and order the classes as in training",
        )


def _check_holdout(checkpoint: Checkpoint, source: DataSource, config: EvaluateConfig) -> None:
    """Refuse data that were split differently for training: test images may be training images."""
    # imported weights: how their data were split is not known; "all" is a request for all images
    if checkpoint.defense == IMPORTED_DEFENSE or config.split == "all":
        return
    # other data than those of the training
    if config.dataset is not None and _location(config.dataset) != _location(checkpoint.dataset):
        return
    if checkpoint.drawn != source.random_split_sha256:
        raise BadInput(
            f"the data have changed since {checkpoint.path} was trained, "
            "so test images may have been used for training",
            hint="restore the data, train again, or evaluate with `split=all`",
        )


def _location(dataset: str) -> tuple[str, object]:
    """Return name and path of a dataset's spec, without its other parameters."""
    spec = Spec.parse(dataset)
    return spec.name, spec.params.get("path", spec.value)


@dataclass(frozen=True, kw_only=True)
class EvaluationRequest:
    """Arguments of `wmr_cli.evaluate`, as the caller gave them."""

    attack: str | Spec | Attack
    norm: str | None
    eps: float | None
    alphas: Iterable[float] | None
    rhos: Iterable[float]
    kernel: str
    metrics: Sequence[str]
    batch_size: int
    seed: int
    rows: RowsContent | None = None
    certify: str | None = None
    draws: int | None = None
    draw_rule: DrawRule = "mean"


@dataclass(frozen=True, kw_only=True)
class CheckedRequest:
    """A request with its attack built and all settings checked."""

    attack: PlannedAttack
    config: EvaluateConfig


def check_request(request: EvaluationRequest, registry: Registry) -> CheckedRequest:
    """Build the attack and check every setting, before the model or an image is used."""
    attack = _resolve_attack(request, registry)
    rhos = _check_sizes("rhos", request.rhos)
    # dro is not among them: radii request it
    known: tuple[Metric, ...] = (*METRICS, "cal")
    by_name: dict[str, Metric] = {metric: metric for metric in known}
    unknown = next((word for word in request.metrics if word not in by_name), None)
    if unknown is not None:
        raise UnknownName(f"metric {unknown!r} is not known", hint=did_you_mean(unknown, by_name))
    counts = (
        ("batch_size", request.batch_size, 1),
        ("seed", request.seed, 0),
        ("draws", request.draws, 1),
    )
    for name, value, least in counts:
        if value is not None and value < least:
            raise BadInput(f"`{name}` is {value}", hint=f"it is {least} or more")
    alphas = None
    if request.alphas is not None:
        alphas = _check_sizes("alphas", request.alphas)
    metrics = tuple(by_name[word] for word in request.metrics)
    config = EvaluateConfig(
        split="given",
        attacks=(attack.spec,),
        eps=(attack.eps,),
        alpha_test=alphas,
        kernel=registry.canonical_spec("kernel", request.kernel),
        metrics=(*metrics, "dro") if rhos else metrics,
        rho=rhos or None,
        batch_size=request.batch_size,
        seed=request.seed,
        rows=request.rows,
        certify=_canonical_verifier(request.certify, registry),
        draws=request.draws,
        draw_rule=request.draw_rule,
    )
    check_draws(config)
    return CheckedRequest(attack=attack, config=config)


def describe_model(
    model: nn.Module,
    input_shape: tuple[int, int, int],
    *,
    num_classes: int | None,
    name: str | None,
) -> Checkpoint:
    """Describe a model that was never saved, and check its number of outputs."""
    kind = type(model).__name__
    # measured, because a module does not declare how many outputs it has
    outputs = components.count_outputs(model, kind, input_shape)
    if num_classes not in (None, outputs):
        raise BadInput(
            f"the model has {outputs} outputs, not {num_classes}",
            hint="leave out `num_classes`, or change the model",
        )
    return checkpoints.describe_network(
        name or kind, kind, model.state_dict(), outputs, input_shape
    )


def make_task(
    request: CheckedRequest,
    registry: Registry,
    checkpoint: Checkpoint,
    images: Split | BatchStream,
    dataset: str,
) -> EvaluationTask:
    """Make the task of a request. The images of a stream are counted as far as they are known."""
    config = request.config
    attack = request.attack
    kernels = make_kernels(registry, config, checkpoint)
    for kernel in kernels.values():
        components.check_covers_split(kernel, images)
        _check_rows(kernel, config)
    specs = {"kernel": config.kernel}
    if config.certify:
        specs["verifier"] = config.certify
    attack_spec = Spec.parse(attack.spec)
    # a class of the caller's own is not registered and has no version
    if attack_spec.is_local or attack_spec.name in registry.names("attack"):
        specs["attack"] = attack.spec
    return EvaluationTask(
        checkpoint=checkpoint,
        config=config,
        images=ImageSelection(dataset=dataset, split=images, positions=torch.arange(len(images))),
        attack=attack,
        kernels=kernels,
        code_versions=registry.external_versions(specs),
        verifier=_make_verifier(config, registry, attack.norm),
    )


def _resolve_attack(request: EvaluationRequest, registry: Registry) -> PlannedAttack:
    """Return the attack with norm and eps, each from the attack or from the request."""
    attack = request.attack
    if isinstance(attack, str):
        attack = Spec.parse(attack)
    if isinstance(attack, Spec):
        spec = attack.absolute()
        own_eps = spec.params.get("eps")
        norm, eps = _choose_threat(
            request,
            own_norm=spec.params.get("norm", _entry_norm(spec, registry)),
            own_eps=None if own_eps is None else parse_number(str(own_eps)),
        )
        settings = AttackSettings(spec=spec.without("eps", "norm"), norm=norm, eps=eps)
        return _build_attack(settings, registry)
    if not callable(attack):
        raise BadInput(
            f"a {type(attack).__name__} is not an attack",
            hint='name one, such as "pgd:steps=20", or create it',
        )
    norm, eps = _choose_threat(
        request,
        own_norm=read_parameter(attack, "norm"),
        own_eps=read_parameter(attack, "eps"),
    )
    # the record stores a spec that rebuilds the caller's object
    spec = components.find_attack_spec(attack, registry)
    components.check_attack_traits(attack, f"attack {str(spec)!r}", norm)
    text = components.describe_attack(attack, spec, registry)
    return PlannedAttack(component=attack, spec=text, norm=norm, eps=eps)


def _entry_norm(spec: Spec, registry: Registry) -> object:
    """Return the norm that a registered name sets, such as `pgd-l2`, or None."""
    if spec.is_local:
        return None
    return registry.find("attack", spec.name).entry.params.get("norm")


def _choose_threat(
    request: EvaluationRequest, *, own_norm: object, own_eps: object
) -> tuple[str, float]:
    """Return norm and eps of the request, or else of the attack."""
    norm = _choose("norm", request.norm, own_norm) or TrainConfig().norm
    eps = _choose("eps", request.eps, own_eps)
    if norm not in NORMS:
        raise UnknownName(f"norm {norm!r} is not known", hint=did_you_mean(str(norm), NORMS))
    if eps is None:
        raise BadInput("`eps` is required", hint="write eps=8 / 255")
    (radius,) = _check_sizes("eps", [eps])
    return str(norm), radius


def _choose(name: str, requested: object, own: object) -> object:
    """Return the one of two values that is set, and refuse two that differ."""
    if requested is not None and own is not None and requested != own:
        raise BadInput(f"`{name}` is {requested}, but the attack has {own}", hint="set it once")
    return own if requested is None else requested


def _check_sizes(name: str, values: Iterable[object]) -> tuple[float, ...]:
    """Return finite numbers of at least 0, without duplicates, in ascending order."""
    sizes = set()
    for value in values:
        # Real: NumPy scalars are not instances of float
        if not (isinstance(value, Real) and math.isfinite(value) and float(value) >= 0):
            raise BadInput(
                f"`{name}`: {value!r} is not a finite number of at least 0",
                hint="write 8 / 255 or 2.0, for example",
            )
        sizes.add(float(value))
    return tuple(sorted(sizes))
