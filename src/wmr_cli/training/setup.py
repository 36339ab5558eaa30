"""Build and check all parts of a training run before anything is written."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from ..config import TrainConfig
from ..core.contexts import evaluating
from ..core.data.augment import Augmentation
from ..core.nn.compilation import Compiler
from ..core.nn.fusion import SAMPLE_SIZE, PreparedModel, prepare_for_attack, to_memory_format
from ..core.protocols import Attack, Batch, DataSource, Defense, Kernel, Split
from ..core.rng import derive_seed
from ..core.run_attack import check_logits
from ..core.traits import read_parameter
from ..errors import BadInput
from ..measures import MARGIN_KERNEL
from ..registry import Registry
from ..runtime import accelerators, components, datasets
from ..runtime.datasets import share_dataset
from ..runtime.distributed import Ranks
from ..runtime.fabric import Runtime
from ..spec import Spec, format_number
from . import compatibility
from .augmentation import build_augmentation
from .batches import TrainingBatches, place_on_device
from .extra import ExtraImages, load_extra
from .fine_tuning import (
    FrozenLayers,
    InitialWeights,
    check_settings,
    find_head,
    freeze_layers,
    load_initial_weights,
    needs_head,
)
from .learner import FabricLearner
from .monitoring import EpochStatistics
from .optimization import WeightAverage, make_optimizer

MAX_LOG_WEIGHT = 80.0
"""exp of more than 88 overflows float32, and the loss is multiplied with it."""
MAX_VALIDATION_STEPS = 10
"""Steps of the validation attack: it runs after many epochs, and need not be the strongest."""


@dataclass(frozen=True, kw_only=True)
class TrainingSetup:
    """The parts of one training run on this rank."""

    runtime: Runtime
    config: TrainConfig
    """The settings as the user gave them, which checkpoints store."""
    schedule_config: TrainConfig
    """The same, with epochs and milestones divided by the replays of the defense."""
    source: DataSource
    split: Split
    """The training images."""
    extra: ExtraImages | None
    """Images of a second dataset in every batch."""
    batches: TrainingBatches
    model: nn.Module
    attack: Attack
    kernel: Kernel
    defense: Defense
    optimizer: torch.optim.Optimizer
    learner: FabricLearner
    average: WeightAverage | None
    statistics: EpochStatistics
    validation_attack: Attack
    validation_kernel: Kernel
    initial: InitialWeights | None
    """None without `init`, and for a run that continues from its own state."""
    frozen: FrozenLayers

    @cached_property
    def validation_split(self) -> Split:
        """The validation images, on the device if they fit there."""
        return place_on_device(datasets.get_split(self.source, "val"), self.runtime.device)

    @property
    def memory_format(self) -> torch.memory_format:
        """The memory format of images and weights."""
        return self.learner.attack_model.memory_format

    def describe(self) -> Iterator[str]:
        """Yield facts about the run that the settings do not show."""
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        attack_model = self.learner.attack_model
        yield (
            f"{len(self.split):,} images, {parameters:,} parameters, on {self.runtime},"
            f" {attack_model.layout}"
        )
        if attack_model.num_fused:
            count = attack_model.num_fused
            yield f"attacks use a fused model: {count} batch-norms are part of convolutions"
        if self.extra is not None:
            yield self.extra.describe(self.config)
        if self.initial is not None:
            yield self.initial.describe()
        if self.frozen.parameters:
            yield f"{self.frozen.parameters:,} of {parameters:,} parameters are frozen"
        if not self.defense.traits.uses_attack:
            yield f"{self.config.defense} does not use the training attack"
        epochs = self.schedule_config.epochs
        if epochs < self.config.epochs:
            replays = self.defense.traits.replays
            noun = "epoch" if epochs == 1 else "epochs"
            yield (
                f"each batch is used {replays} times: {epochs} {noun}"
                f" instead of {self.config.epochs}"
            )

    def list_warnings(self) -> Iterator[str]:
        """Yield warnings about settings that are allowed but probably not intended."""
        yield from components.list_dataset_notes(self.split)
        attack = self.attack if self.defense.traits.uses_attack else None
        yield from components.list_attack_warnings(attack, self.config.eps, self.source.num_classes)
        if self.initial is not None:
            yield from self.initial.list_warnings()
        if self.config.select != "none" and not self.config.validate_every:
            yield "without validation (`validate_every=0`) best.safetensors is not written"


def set_up_training(
    config: TrainConfig,
    registry: Registry,
    data_dir: Path,
    runtime: Runtime,
    *,
    compile_model: bool = False,
    threads: int | None = None,
    resumes: bool = False,
) -> TrainingSetup:
    """Build all parts of a run, check that they fit together, and try the model on a few images.

    With `resumes`, the state of the run replaces the weights later, so that none are read.
    """
    compatibility.check_patience(config)
    check_settings(config)
    # seed first: initial weights are drawn while the model is built
    torch.manual_seed(derive_seed("model", config.seed))

    # data before the model: they determine the number of outputs and the shape of inputs
    source = load_dataset(config, registry, data_dir, runtime.ranks, threads)
    split = datasets.get_split(source, "train")
    compatibility.check_batch_size(config, len(split), runtime.ranks.count)
    extra = load_extra(config, registry, data_dir, runtime, source, threads)

    # pretrained weights that others replace would be downloaded for nothing
    is_replaced = resumes or config.init is not None
    model = components.build_model(
        registry,
        components.spec_without_weights(registry, config.model) if is_replaced else config.model,
        source.num_classes,
        source.input_shape,
        data_dir,
    )
    components.check_model_fits(model, config.model, source.num_classes, source.input_shape)
    head = find_head(model, config, registry, source) if needs_head(config) else frozenset()
    initial = None
    if config.init is not None and not resumes:
        initial = load_initial_weights(model, config, registry, head)
        config = msgspec.structs.replace(config, init_sha256=initial.sha256)
    frozen = freeze_layers(model, config, head)
    attack = build_training_attack(registry, config)
    defense = components.build_defense(registry, config.defense)
    # the kernel may count the steps of the attack, or of a defense with its own attack
    kernel = build_training_kernel(registry, config, attack, defense)

    # combinations before the slower steps below: fusion and a pass through the model
    compatibility.check_ramps(attack, kernel, config)
    schedule_config = compatibility.divide_by_replays(config, defense)
    compatibility.check_kernel_and_defense(defense, kernel, schedule_config)
    augment = build_augmentation(config.augment, source.input_shape)
    compatibility.check_mixing(augment, defense, config)
    components.check_covers_split(kernel, split)
    compatibility.check_observed_split(kernel, source, config)

    sample = split.batch(torch.arange(min(SAMPLE_SIZE, len(split)))).to(runtime.device)
    attack_model = prepare_model(model, sample, config, defense, compile_model=compile_model)
    optimizer = make_optimizer(config, model, head)
    average = WeightAverage(model, config.ema) if config.ema else None
    if runtime.ranks.count > 1:
        freeze_unused_parameters(model, sample.images)
    try_model(model, attack_model, sample, source.num_classes)
    learner = FabricLearner(
        runtime,
        config,
        model=model,
        attack_model=attack_model,
        optimizer=optimizer,
        attack=attack,
        kernel=kernel,
        num_classes=source.num_classes,
        compiler=make_compiler(runtime.device) if compile_model else None,
        frozen=frozen.modules,
    )
    return TrainingSetup(
        runtime=runtime,
        config=config,
        schedule_config=schedule_config,
        source=source,
        split=split,
        extra=extra,
        batches=make_training_batches(
            split if extra is None else extra.join(split),
            source.num_classes,
            augment,
            config,
            runtime.device,
            attack_model.memory_format,
        ),
        model=model,
        attack=attack,
        kernel=kernel,
        defense=defense,
        optimizer=optimizer,
        learner=learner,
        average=average,
        statistics=EpochStatistics(),
        validation_attack=build_validation_attack(registry, config),
        validation_kernel=components.build_kernel(
            registry, MARGIN_KERNEL, validation_alpha(config)
        ),
        initial=initial,
        frozen=frozen,
    )


def load_dataset(
    config: TrainConfig, registry: Registry, data_dir: Path, ranks: Ranks, threads: int | None
) -> DataSource:
    """Load the dataset once per node, and check the splits that training reads."""
    source = datasets.build_dataset(
        registry, config.dataset, data_dir, config.split_seed, threads=threads
    )
    source = share_dataset(source, ranks)
    datasets.check_splits(source, config)
    return source


def build_training_attack(registry: Registry, config: TrainConfig) -> Attack:
    """Build the attack of a training run."""
    return components.build_attack(
        registry,
        Spec.parse(config.attack),
        norm=config.norm,
        eps=config.eps,
        steps=config.steps,
        step_size=config.step_size,
    )


def build_training_kernel(
    registry: Registry, config: TrainConfig, attack: Attack, defense: Defense
) -> Kernel:
    """Build the kernel of a training run. It gets the number of attack steps if it accepts it."""
    name = Spec.parse(config.kernel).name
    # the defense may have brought the kernel: `natural` of a preset trains without weights
    if config.alpha and not registry.accepts("kernel", name, "alpha"):
        raise BadInput(
            f"defense {config.defense!r} trains with kernel {name!r}, which has no alpha",
            hint=components.suggest_alpha_kernels(registry),
        )
    params: dict[str, Any] = {}
    if registry.accepts("kernel", name, "steps"):
        uses_attack = defense.traits.uses_attack
        own_steps = defense.traits.own_attack_steps
        steps = read_parameter(attack, "steps") if uses_attack else own_steps
        if steps is None and uses_attack:
            raise BadInput(
                f"kernel {config.kernel!r} needs the number of attack steps,"
                f" which {config.attack!r} does not have",
                hint="train with `attack=pgd`",
            )
        if steps is not None:
            params["steps"] = steps
    kernel = components.build_kernel(registry, config.kernel, config.alpha, **params)
    alpha = read_parameter(kernel, "alpha") or 0.0
    max_alpha = MAX_LOG_WEIGHT / kernel.traits.max_margin
    if alpha > max_alpha:
        raise BadInput(
            f"alpha {format_number(alpha)} overflows a float32 loss",
            hint=f"train with `alpha` up to {max_alpha:g}",
        )
    return kernel


def make_training_batches(
    split: Split,
    num_classes: int,
    augment: Augmentation,
    config: TrainConfig,
    device: torch.device,
    memory_format: torch.memory_format,
) -> TrainingBatches:
    """Return the batches of the training images, on the device if all images fit there."""
    return TrainingBatches(
        split,
        device=device,
        num_classes=num_classes,
        augment=augment,
        seed=config.seed,
        memory_format=memory_format,
    )


def prepare_model(
    model: nn.Module, sample: Batch, config: TrainConfig, defense: Defense, *, compile_model: bool
) -> PreparedModel:
    """Move the model to the device of the sample, and fuse the copy that attacks use."""
    # in half precision the rounded weights of a fused model are not those of the model;
    # a compiled model is fused by its compiler
    can_fuse = (
        config.attack_mode == "eval"
        and config.precision == "32"
        and defense.traits.uses_attack
        and not compile_model
    )
    return prepare_for_attack(
        model.to(sample.images.device),
        sample.images,
        layout=config.layout,
        precision=config.precision,
        fuse=config.fold and can_fuse,
        converts_weights=True,
    )


def make_compiler(device: torch.device) -> Compiler:
    """Return a compiler for this device."""
    return Compiler(uses_graphs=accelerators.has_device_graphs(device))


def freeze_unused_parameters(model: nn.Module, images: Tensor) -> None:
    """Freeze the parameters that the logits do not depend on.

    In one process they have no gradient and the optimizer skips them. Several processes would wait
    for their gradients until they fail.
    """
    is_used: set[str] = set()
    # both modes: auxiliary heads are used in train mode only, and stochastic depth skips layers
    for mode in (True, False):
        # a copy: a pass in train mode changes the statistics of batch-norm
        copied = copy.deepcopy(model).train(mode)
        parameters = {name: each for name, each in copied.named_parameters() if each.requires_grad}
        gradients = torch.autograd.grad(
            copied(images).sum(), list(parameters.values()), allow_unused=True
        )
        is_used |= {
            name for name, each in zip(parameters, gradients, strict=True) if each is not None
        }
    for name, parameter in model.named_parameters():
        if name not in is_used:
            parameter.requires_grad_(False)


def try_model(
    model: nn.Module, attack_model: PreparedModel, sample: Batch, num_classes: int
) -> None:
    """Raise if the model does not return finite logits for a few training images."""
    images = to_memory_format(sample.images, attack_model.memory_format)
    with torch.no_grad(), evaluating(model):
        check_logits(model(images), sample.index, num_classes)


def build_validation_attack(registry: Registry, config: TrainConfig) -> Attack:
    """Build the attack of the evaluation with few steps, or PGD if that is not possible."""
    spec = Spec.parse(config.evaluate.attack).without("eps", "norm", "steps", "step", "restarts")
    # the built attack shows whether it has steps: a class with **kwargs accepts any parameter
    attack = components.build_attack(registry, spec, norm=config.norm, eps=config.eps)
    # margins need an attack that continues after its first success
    if read_parameter(attack, "steps") is None or attack.traits.stops_early:
        spec = Spec.parse("pgd")
    return components.build_attack(
        registry,
        spec,
        norm=config.norm,
        eps=config.eps,
        steps=min(MAX_VALIDATION_STEPS, config.evaluate.steps or MAX_VALIDATION_STEPS),
        restarts=1 if registry.accepts("attack", spec.name, "restarts") else None,
    )


def validation_alpha(config: TrainConfig) -> float:
    """Return the largest alpha of the evaluation: the strongest weighting of hard images."""
    return max(config.evaluate.alpha_test)
