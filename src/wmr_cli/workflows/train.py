"""Train a network: batch, attack, losses, margins, weights, loss, step; then log, checkpoint, and the next epoch."""

import math
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from ..config import TrainConfig
from ..core.contracts import Split
from ..core.guards import check_batch
from ..core.noise import derive
from ..errors import BrokenContract
from ..registry import Registry
from ..storage import checkpoints
from ..storage.runs import opened
from . import parts
from .events import EpochDone, Event, Message, StepDone, TrainingDone, TrainingStarted
from .learner import FabricLearner
from .optimization import learning_rate, make_optimizer
from .resume import Progress, restore, store
from .tally import Tally
from .validate import validate


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
    fabric = parts.fabric(device, config.precision)
    fabric.launch()
    torch.manual_seed(derive("model", config.seed))
    source = parts.dataset(registry, config.dataset, data_dir)
    model = parts.model(registry, config.model, source.num_classes, source.input_shape)
    attack = parts.training_attack(registry, config)
    kernel = parts.training_kernel(registry, config)
    defense = parts.defense(registry, config.defense)
    optimizer = make_optimizer(config, model)
    learner = FabricLearner(fabric, model, optimizer, attack, kernel, config, source.num_classes)
    split = parts.split_of(source, "train")
    steps_per_epoch = math.ceil(len(split) / config.batch_size)
    yield from (Message(text, warns=True) for text in parts.advice(attack, config.eps))
    yield Message(f"{len(split):,} images, {sum(p.numel() for p in model.parameters()):,} parameters, on {fabric.device}")

    with opened(path, config, resume=resume, overwrite=overwrite) as folder:
        progress = restore(folder, model, optimizer, kernel=kernel, defense=defense)
        yield TrainingStarted(progress.epoch, config.epochs, steps_per_epoch)
        for epoch in range(progress.epoch, config.epochs):
            tally, epoch_started = Tally(), time.perf_counter()
            for step, positions in enumerate(batches(split, config, epoch), start=epoch * steps_per_epoch):
                batch = split.batch(positions).to(fabric.device)
                check_batch(batch, source.num_classes)
                learner.begin_step(epoch, step, learning_rate(config, step, steps_per_epoch))
                tally.add(defense.step(learner, batch))
                yield StepDone(epoch + 1, step, len(positions))

            entry = {
                "epoch": epoch + 1,
                **tally.summary(),
                "images_per_second": len(split) / (time.perf_counter() - epoch_started),
            }
            if not math.isfinite(entry["loss"]):
                raise BrokenContract(
                    f"the loss is not finite in epoch {epoch + 1}", hint="try a smaller --lr; the epoch before is kept"
                )
            if config.validate_every and ((epoch + 1) % config.validate_every == 0 or epoch + 1 == config.epochs):
                entry |= validate(model, source, config, registry, fabric.device)

            score = entry.get(f"val_a_{config.select}")
            is_best = score is not None and (progress.best is None or score > progress.best)
            progress = Progress(epoch + 1, score if is_best else progress.best)
            for file in (folder.last, folder.best) if is_best else (folder.last,):
                checkpoints.save(
                    file, model.state_dict(), config, source, alpha_train=getattr(kernel, "alpha", None), epoch=epoch + 1
                )
            folder.write_log([*folder.read_log(), entry])
            store(folder, progress, model, optimizer, kernel=kernel, defense=defense)  # last: it is the truth on resume
            yield EpochDone(epoch + 1, config.epochs, entry)
    yield TrainingDone(path, folder.last, time.perf_counter() - started)


def batches(split: Split, config: TrainConfig, epoch: int) -> tuple[Tensor, ...]:
    """The positions of each batch of an epoch: an order that seed and epoch fix, dealt into batches of nearly equal size."""
    generator = torch.Generator().manual_seed(derive("order", config.seed, epoch))
    order = torch.randperm(len(split), generator=generator)
    return order.tensor_split(math.ceil(len(split) / config.batch_size))
