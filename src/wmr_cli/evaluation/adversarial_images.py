"""Craft adversarial images of a checkpoint, save them, show them, and sum up how it went."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from .. import measures
from ..config import EvaluateConfig
from ..core.contexts import evaluating
from ..core.data.splits import read_ahead
from ..core.nn.fusion import SAMPLE_SIZE
from ..core.norms import NORMS
from ..core.objectives import get_objective, weighted_objective
from ..core.protocols import AttackResult, Batch
from ..core.rng import derive_seed
from ..core.run_attack import (
    ThreatModel,
    check_batch,
    check_logits,
    exceeds_eps,
    predictions,
    raise_for_images,
    run_attack,
)
from ..errors import BadInput
from ..events import AttackDone, EvaluationStarted, Event, ImagesDone, Message
from ..registry import Registry
from ..runtime import components
from ..runtime.fabric import single_process
from ..storage.atomic import check_writable, resolve_output
from ..storage.checkpoints import save_tensors
from .evaluator import make_evaluator
from .importing import open_checkpoint
from .tasks import EvaluationTask, plan_tasks

GRID_ROWS = 10
"""A grid shows so many images, the first ones."""


@dataclass(frozen=True)
class Crafted:
    """Labels, both predictions and the size of the change, (N,), with the images before and after, (N, C, H, W) or fewer."""

    clean: Tensor
    images: Tensor
    label: Tensor
    index: Tensor
    prediction_clean: Tensor
    prediction: Tensor
    size: Tensor

    def keeping(self, count: int) -> "Crafted":
        """The same with so many of the images only: copies, as a view would hold all of them in memory."""
        return replace(self, clean=self.clean[:count].clone(), images=self.images[:count].clone())


def attack(
    path: Path,
    config: EvaluateConfig,
    registry: Registry,
    *,
    data_dir: Path,
    device: str = "auto",
    weighted: bool = False,
    save: Path | None = None,
    as_uint8: bool = False,
    grid: Path | None = None,
) -> Iterator[Event]:
    """Attack the images that `config` names; with `weighted` the attack climbs weight times loss, as A_tr does."""
    checkpoint, source = yield from open_checkpoint(path, config, registry, data_dir)
    task = next(plan_tasks(checkpoint, config, registry, data_dir, source))
    yield from (
        Message(text, warns=True)
        for text in (
            *components.list_dataset_notes(task.split),
            *components.list_attack_warnings(task.attack, task.eps, checkpoint.num_classes),
        )
    )
    if weighted and not task.has_margins:
        raise BadInput(
            f"attack {task.attack_spec!r} climbs a loss of its own, not a weighted one",
            hint="leave out --alpha",
        )
    save, grid = (None if file is None else resolve_output(file) for file in (save, grid))
    for file in filter(None, (save, grid)):
        check_writable(file)
    runtime = single_process(device)
    network = components.restore_model(registry, task.checkpoint).to(runtime.device)
    evaluator = make_evaluator(
        task, network, task.split.batch(task.positions[:SAMPLE_SIZE]).images.to(runtime.device)
    )
    yield EvaluationStarted(task.label, total=len(task.positions))
    started = time.perf_counter()
    pieces: list[Crafted] = []
    done, wanted = 0, len(task.positions) if save else GRID_ROWS if grid else 0
    for batch in read_ahead(task.split, task.positions.split(config.batch_size)):
        with components.exact_float32():
            piece = craft(
                task,
                evaluator.model,
                batch.to(runtime.device, evaluator.memory_format),
                weighted,
                as_uint8,
            )
        pieces.append(piece.keeping(max(wanted - done, 0)))
        done += len(piece.label)
        yield ImagesDone(done, len(task.positions))
    seconds = time.perf_counter() - started
    crafted = Crafted(
        *(
            torch.cat([getattr(piece, name) for piece in pieces])
            for name in Crafted.__dataclass_fields__
        )
    )
    if save:
        save_images(save, crafted, task, as_uint8, weighted)
        yield Message(f"saved {len(crafted.label)} images to {save}")
    if grid:
        from ..reporting.figures import attack_grid

        shown = (
            crafted.clean,
            crafted.images,
            crafted.label,
            crafted.prediction_clean,
            crafted.prediction,
        )
        attack_grid(grid, *(tensor[:GRID_ROWS].numpy() for tensor in shown))
        yield Message(f"drew {grid}")
    yield AttackDone(summary(task, crafted, seconds, weighted))


def craft(
    task: EvaluationTask, model: nn.Module, batch: Batch, weighted: bool, as_uint8: bool
) -> Crafted:
    """One batch, on its way back to the CPU."""
    loss = task.attack.traits.objective
    objective = (
        weighted_objective(loss, next(iter(task.kernels.values())))
        if weighted
        else get_objective(loss)
    )
    num_classes, norm = task.checkpoint.num_classes, NORMS[task.norm]
    check_batch(batch, num_classes)
    with evaluating(model):
        with torch.no_grad():
            clean_logits = model(batch.images)
        check_logits(clean_logits, batch.index, num_classes)
        seed = derive_seed("evaluate", task.config.seed)
        threat = ThreatModel(norm, task.eps, num_classes)
        attacked = run_attack(task.attack, model, batch, objective, threat, seed=seed)
        if as_uint8:
            attacked = rounded(attacked, model, batch, task)
    clean, images = batch.images.cpu(), attacked.images.detach().cpu()
    size = norm.size(images.double() - clean.double())
    rows = (
        batch.labels,
        batch.index,
        predictions(clean_logits),
        predictions(attacked.require_logits()),
        size,
    )
    return Crafted(clean, images, *(tensor.cpu() for tensor in rows))


def rounded(
    attacked: AttackResult, model: nn.Module, batch: Batch, task: EvaluationTask
) -> AttackResult:
    """The attack as 8-bit images: every pixel rounded towards the clean one, so inside the ball, and scored again."""
    levels = attacked.images.cpu().double() * 255  # not every device has float64
    levels = torch.where(
        (levels - levels.round()).abs() < 1e-3, levels.round(), levels
    )  # 199.0000001 is level 199
    towards_clean = torch.where(
        attacked.images.cpu() >= batch.images.cpu(), levels.floor(), levels.ceil()
    )
    images = (towards_clean / 255).float().to(batch.images.device)
    is_outside = exceeds_eps(NORMS[task.norm].size(images - batch.images), task.eps)
    raise_for_images(
        is_outside,
        batch.index,
        "it has no 8-bit neighbour inside the ball",
        hint="save it without --save-uint8",
    )
    with torch.no_grad():
        return AttackResult(images, attacked.steps_survived, model(images))


def save_images(
    path: Path, crafted: Crafted, task: EvaluationTask, as_uint8: bool, weighted: bool
) -> None:
    """Images with index, label and both predictions; as they are, or as 8-bit. Of a weighted attack the header has alpha."""
    images = (crafted.images.double() * 255).round().to(torch.uint8) if as_uint8 else crafted.images
    tensors = {
        "images": images,
        "index": crafted.index,
        "label": crafted.label,
        "prediction": crafted.prediction,
        "prediction_clean": crafted.prediction_clean,
    }
    header = {
        "attack": task.attack_spec,
        "norm": task.norm,
        "eps": repr(task.eps),
        "dataset": task.dataset,
        "split": task.config.split,
        "checkpoint_sha256": task.checkpoint.sha256,
        "seed": str(task.config.seed),
        **({"alpha": repr(next(iter(task.kernels)))} if weighted else {}),
    }
    save_tensors(path, tensors, header)


def summary(
    task: EvaluationTask, crafted: Crafted, seconds: float, weighted: bool
) -> dict[str, object]:
    """Success among the images that were right before, the size of the changes, and the rate."""
    was_right = crafted.prediction_clean == crafted.label
    fooled = was_right & (crafted.prediction != crafted.label)
    success = measures.wilson(int(fooled.sum()), int(was_right.sum())) if was_right.any() else None
    return {
        "checkpoint": str(task.checkpoint.path),
        "attack": task.attack_spec,
        "alpha": next(iter(task.kernels)) if weighted else None,
        "norm": task.norm,
        "eps": task.eps,
        "images": len(crafted.label),
        "right_before": int(was_right.sum()),
        "fooled": int(fooled.sum()),
        "success_rate": success
        and {"value": success.value, "low": success.low, "high": success.high},
        "mean_size": float(crafted.size.mean()),
        "seconds": seconds,
        "images_per_second": len(crafted.label) / seconds,
    }
