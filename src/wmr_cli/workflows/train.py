"""Train a network: batch, attack, losses, margins, weights, loss, step; then log, checkpoint, and the next epoch."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..config import TrainConfig
from ..core.augment import Augmentation
from ..core.contracts import Attack, Batch, DataSource, Defense, Kernel, Split
from ..core.guards import check_batch, check_logits
from ..core.modes import evaluating
from ..core.noise import derive
from ..core.splits import ahead
from ..errors import BrokenContract
from ..registry import Registry
from ..storage import checkpoints
from ..storage.runs import RunFolder, opened
from . import parts
from .events import EpochDone, Event, Message, StepDone, TrainingDone, TrainingStarted
from .learner import FabricLearner
from .optimization import learning_rate, make_optimizer
from .resume import Progress, restore, store
from .tally import Tally
from .validate import validate, validation_attack

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True)
class Assembly:
    """What a run is made of."""

    fabric: "Fabric"
    source: DataSource
    model: nn.Module
    attack: Attack
    kernel: Kernel
    defense: Defense
    optimizer: torch.optim.Optimizer
    learner: FabricLearner
    validation: Attack
    augment: Augmentation


def train(
    config: TrainConfig,
    path: Path,
    registry: Registry,
    *,
    data_dir: Path,
    device: str = "auto",
    resume: bool = False,
    overwrite: bool = False,
) -> Iterator[Event]:
    """Run, or go on with, the training that `config` describes, in the run folder `path`."""
    started = time.perf_counter()
    run = assemble(config, registry, data_dir, device)
    split, device_used = parts.split_of(run.source, "train"), run.fabric.device
    steps_per_epoch = math.ceil(len(split) / config.batch_size)
    yield from (
        Message(text, warns=True) for text in (*parts.notes(split), *parts.advice(run.attack, config.eps, run.source.num_classes))
    )
    if config.select != "none" and not config.validate_every:
        yield Message("nothing is held out to choose by (--validate-every 0), so there is no best.safetensors", warns=True)
    yield Message(f"{len(split):,} images, {sum(p.numel() for p in run.model.parameters()):,} parameters, on {device_used}")

    with opened(path, config, resume=resume, overwrite=overwrite) as folder:
        progress = restore(folder, run.source, run.model, run.optimizer, kernel=run.kernel, defense=run.defense)
        yield TrainingStarted(progress.epoch, config.epochs, steps_per_epoch)
        for epoch in range(progress.epoch, config.epochs):
            tally, epoch_started = Tally(), time.perf_counter()
            for step, batch in enumerate(ahead(split, batches(split, config, epoch)), start=epoch * steps_per_epoch):
                check_batch(batch, run.source.num_classes)
                batch = augmented(batch.to(device_used), run.augment, config.seed, epoch)
                run.learner.begin_step(epoch, step, learning_rate(config, step, steps_per_epoch))
                tally.add(run.defense.step(run.learner, batch))
                yield StepDone(epoch + 1, step, len(batch.labels))
            seconds = time.perf_counter() - epoch_started

            entry = {"epoch": epoch + 1, **tally.summary(), "images_per_second": len(split) / seconds}
            if not math.isfinite(entry["loss"]):
                problem = f"the loss is not finite in epoch {epoch + 1}"
                raise BrokenContract(problem, hint="try a smaller --lr; what was saved before is kept")
            if config.validate_every and ((epoch + 1) % config.validate_every == 0 or epoch + 1 == config.epochs):
                entry |= validate(run.model, run.source, config, run.validation, registry, device_used)
            progress = keep(folder, run, config, entry, progress)
            yield EpochDone(epoch + 1, config.epochs, entry)
    yield TrainingDone(path, folder.last, time.perf_counter() - started)


def assemble(config: TrainConfig, registry: Registry, data_dir: Path, device: str) -> Assembly:
    """Build everything before anything is written, so that a mistake leaves no trace."""
    fabric = parts.fabric(device, config.precision)
    fabric.launch()
    torch.manual_seed(derive("model", config.seed))
    source = parts.dataset(registry, config.dataset, data_dir, config.split_seed)
    parts.check_data(source, config)
    model = parts.model(registry, config.model, source.num_classes, source.input_shape)
    parts.check_fits(model, config.model, source.num_classes, source.input_shape)
    attack = parts.training_attack(registry, config)
    kernel = parts.training_kernel(registry, config)
    defense = parts.defense(registry, config.defense)
    optimizer = make_optimizer(config, model)
    learner = FabricLearner(fabric, model, optimizer, attack, kernel, config, source.num_classes)
    first = parts.split_of(source, "train").batch(torch.arange(1)).to(fabric.device)
    with torch.no_grad(), evaluating(model):
        check_logits(model(first.images), first.index, source.num_classes)
    augment = parts.augmentation(config.augment, source.input_shape)
    return Assembly(
        fabric, source, model, attack, kernel, defense, optimizer, learner, validation_attack(registry, config), augment
    )


def keep(folder: RunFolder, run: Assembly, config: TrainConfig, entry: dict[str, Any], progress: Progress) -> Progress:
    """Write the epoch: weights, the best ones if these are, the log, and last the state that resuming trusts."""
    score = entry.get(f"val_a_{config.select}")
    is_best = score is not None and (progress.best is None or score > progress.best)
    progress = Progress(entry["epoch"], score if is_best else progress.best)
    alpha = getattr(run.kernel, "alpha", None)
    for file in (folder.last, folder.best) if is_best else (folder.last,):
        checkpoints.save(file, run.model.state_dict(), config, run.source, alpha_train=alpha, epoch=progress.epoch)
    folder.write_log([*folder.read_log(), entry])
    store(folder, progress, run.source, run.model, run.optimizer, kernel=run.kernel, defense=run.defense)
    return progress


def augmented(batch: Batch, augment: Augmentation, seed: int, epoch: int) -> Batch:
    """The batch with its images moved and mirrored, anew in every epoch."""
    return replace(batch, images=augment(batch.images, batch.index, derive("augment", seed, epoch)))


def batches(split: Split, config: TrainConfig, epoch: int) -> tuple[Tensor, ...]:
    """The positions of each batch of an epoch: an order that seed and epoch fix, dealt into batches of nearly equal size."""
    generator = torch.Generator().manual_seed(derive("order", config.seed, epoch))
    order = torch.randperm(len(split), generator=generator)
    return order.tensor_split(math.ceil(len(split) / config.batch_size))
