"""What a training run is made of, built before anything is written, so that a mistake leaves no trace."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..config import TrainConfig
from ..core.contexts import evaluating
from ..core.data.augment import Augmentation
from ..core.nn.fusion import SAMPLE_SIZE, prepare_for_attack, to_memory_format
from ..core.protocols import (
    Attack,
    Batch,
    DataSource,
    Defense,
    HasState,
    Kernel,
    ObservesValidation,
    Split,
)
from ..core.rng import derive_seed
from ..core.run_attack import check_batch, check_logits, check_report
from ..errors import BadInput
from ..registry import Registry
from ..runtime import compatibility, components
from ..runtime.fabric import Runtime
from ..runtime.shared_data import share_dataset
from .checkpointing import OfEachRank, Stateful
from .learner import FabricLearner
from .monitoring import EpochStatistics
from .optimization import WeightAverage, make_optimizer, settings_at
from .validation import validation_attack


@dataclass(frozen=True)
class Assembly:
    """The parts of a run, and the step that they take together."""

    runtime: Runtime
    config: TrainConfig
    timetable: TrainConfig
    """the same, with epochs and milestones as the defense counts them"""
    source: DataSource
    split: Split
    model: nn.Module
    attack: Attack
    kernel: Kernel
    defense: Defense
    optimizer: torch.optim.Optimizer
    learner: FabricLearner
    validation: Attack
    augment: Augmentation
    average: WeightAverage | None
    tally: EpochStatistics
    memory_format: torch.memory_format
    """how images and weights lie in memory"""

    @property
    def stateful(self) -> dict[str, Stateful]:
        """What keeps a state beside the weights and the optimizer."""
        keepers: dict[str, Any] = {
            "kernel": self.kernel,
            "defense": self.defense,
            "average": self.average,
            "tally": self.tally,
        }
        keepers = {owner: part for owner, part in keepers.items() if isinstance(part, HasState)}
        if self.defense.traits.state_per_rank:
            keepers["defense"] = OfEachRank(self.defense, self.runtime.ranks)  # type: ignore[arg-type]
        return {**keepers, "scale": self.runtime.loss_scale}

    def step(self, batch: Batch, epoch: int) -> float:
        """One step of the defense on this rank's share of a batch; the mean loss over all ranks."""
        check_batch(batch, self.source.num_classes)
        batch = batch.to(self.runtime.device)
        images = self.augment(
            batch.images, batch.index, derive_seed("augment", self.config.seed, epoch)
        )
        images = to_memory_format(images, self.memory_format)
        report = self.defense.step(self.learner, replace(batch, images=images))
        check_report(self.defense, report, len(batch.labels))
        loss = self.tally.add(report, self.learner.attack_outcome, self.runtime.ranks)
        if self.average is not None:
            self.average.update(self.model)
        return loss

    def summary(self, epoch: int, steps: int) -> dict[str, Any]:
        """What the steps of the epoch saw, and the pace of the last."""
        last = settings_at(self.timetable, (epoch + 1) * steps - 1, steps)
        entry = {
            **self.tally.summary(),
            "lr": last.learning_rate,
            "eps": last.eps_fraction * self.config.eps,
        }
        factor = self.defense.traits.weight_factor
        if factor:
            entry["beta_weight_mean"] = factor * entry["weight_mean"]
        return entry

    def facts(self) -> Iterator[str]:
        """What the settings do not show."""
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        attacked = self.learner.attack_model
        yield f"{len(self.split):,} images, {parameters:,} parameters, on {self.runtime}, {attacked.layout}"
        if attacked.num_fused:
            yield f"attacks use a fused model: {attacked.num_fused} batch-norms are part of convolutions"
        if not self.defense.traits.uses_attack:
            yield f"{self.config.defense} does not use the training attack"
        if self.timetable.epochs < self.config.epochs:
            replays = self.defense.traits.replays
            epochs = self.timetable.epochs
            yield f"each batch is used {replays} times: {epochs} epoch{'s' * (epochs != 1)} instead of {self.config.epochs}"

    def remarks(self) -> Iterator[str]:
        """What a careful reader would ask about these settings."""
        yield from components.list_dataset_notes(self.split)
        attack = self.attack if self.defense.traits.uses_attack else None
        yield from components.list_attack_warnings(attack, self.config.eps, self.source.num_classes)
        if self.config.select != "none" and not self.config.validate_every:
            yield "nothing is held out to choose by (--validate-every 0), so there is no best.safetensors"


def assemble(
    config: TrainConfig,
    registry: Registry,
    data_dir: Path,
    runtime: Runtime,
    *,
    compiles: bool = False,
) -> Assembly:
    """Build everything, and try it on one image."""
    torch.manual_seed(derive_seed("model", config.seed))
    source = share_dataset(
        components.build_dataset(registry, config.dataset, data_dir, config.split_seed),
        runtime.ranks,
    )
    components.check_data(source, config)
    split = components.get_split(source, "train")
    smallest = len(split) // math.ceil(len(split) / config.batch_size)
    if smallest // 2 < runtime.ranks.count > 1:
        problem = f"a batch of {config.batch_size} images is too small for {runtime.ranks.count} processes"
        raise BadInput(problem, hint="use a larger --batch-size or fewer --devices")
    model = components.build_model(
        registry, config.model, source.num_classes, source.input_shape, data_dir
    )
    components.check_model_fits(model, config.model, source.num_classes, source.input_shape)
    attack, defense = (
        components.build_training_attack(registry, config),
        components.build_defense(registry, config.defense),
    )
    kernel, optimizer = (
        components.build_training_kernel(registry, config, attack, defense),
        make_optimizer(config, model),
    )
    compatibility.check_ramps(attack, kernel, config)
    timetable = compatibility.shorten_for_replays(config, defense)
    compatibility.check_kernel_and_defense(defense, kernel, timetable)
    compatibility.check_covers_split(kernel, split)
    if isinstance(kernel, ObservesValidation) and "val" not in source.splits:
        problem = f"kernel {config.kernel!r} learns from held-out images, and the data set has none"
        raise BadInput(problem, hint="let the data set hold some out, or choose another kernel")
    sample = split.batch(torch.arange(min(SAMPLE_SIZE, len(split)))).to(runtime.device)
    # in half precision the rounded weights of a fused model are not those of the model;
    # a compiled model is fused by its compiler
    can_fuse = (
        config.attack_mode == "eval"
        and config.precision == "32"
        and defense.traits.uses_attack
        and not compiles
    )
    attack_model = prepare_for_attack(
        model.to(runtime.device),
        sample.images,
        layout=config.layout,
        precision=config.precision,
        fuse=config.fold and can_fuse,
        converts_weights=True,
    )
    average = WeightAverage(model, config.ema) if config.ema else None
    if compiles:
        model.compile()
    images = to_memory_format(sample.images, attack_model.memory_format)
    learner = FabricLearner(
        runtime,
        model,
        optimizer,
        attack,
        kernel,
        config,
        source.num_classes,
        attack_model=attack_model,
    )
    with torch.no_grad(), evaluating(model):
        check_logits(model(images), sample.index, source.num_classes)
    augment, validation = (
        components.build_augmentation(config.augment, source.input_shape),
        validation_attack(registry, config),
    )
    return Assembly(
        runtime,
        config,
        timetable,
        source,
        split,
        model,
        attack,
        kernel,
        defense,
        optimizer,
        learner,
        validation,
        augment,
        average,
        EpochStatistics(),
        attack_model.memory_format,
    )
