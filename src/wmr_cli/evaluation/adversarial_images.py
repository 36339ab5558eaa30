"""Compute adversarial images of a checkpoint, save them, draw them and summarise the attack."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from .. import measures
from ..config import EvaluateConfig
from ..core.contexts import evaluating, exact_float32, seeding_generators
from ..core.data.splits import read_ahead
from ..core.eot import derive_draw_seed
from ..core.losses import get_objective, weighted_objective
from ..core.nn.fusion import SAMPLE_SIZE
from ..core.norms import NORMS
from ..core.protocols import AttackResult, Batch, Objective
from ..core.run_attack import check_batch, exceeds_eps, predictions, raise_for_images
from ..errors import BadInput
from ..events import AttackDone, EvaluationStarted, Event, ImagesDone, Message
from ..registry import Registry
from ..runtime import components
from ..runtime.fabric import single_process
from ..storage.atomic import check_writable, resolve_output
from ..storage.checkpoints import save_tensors
from .evaluator import Evaluator, make_evaluator
from .importing import open_checkpoint
from .tasks import EvaluationTask, plan_tasks

GRID_ROWS = 10
"""Images that a grid shows: the first ones."""
LEVEL_TOLERANCE = 1e-3
"""A pixel within this distance of an 8-bit level is at that level: 199.0000001 is 199."""


@dataclass(frozen=True, kw_only=True)
class ImageOutput:
    """Files to write: the images, in float32 or 8 bits, and a drawing of the first ones."""

    save: Path | None = None
    as_uint8: bool = False
    grid: Path | None = None


@dataclass(frozen=True, kw_only=True)
class AttackedImages:
    """Images before and after an attack, (N, C, H, W) or fewer, and what is known of each, (N,)."""

    clean: Tensor
    images: Tensor
    label: Tensor
    index: Tensor
    prediction_clean: Tensor
    prediction: Tensor
    size: Tensor
    """The norm of the perturbation."""

    @classmethod
    def join(cls, parts: Sequence["AttackedImages"]) -> "AttackedImages":
        """Concatenate the images of several batches."""
        tensors = {
            name: torch.cat([getattr(part, name) for part in parts])
            for name in cls.__dataclass_fields__
        }
        return cls(**tensors)

    def keep_images(self, count: int) -> "AttackedImages":
        """Return the same with only the first images."""
        # copies, because a view would keep all images in memory
        return replace(self, clean=self.clean[:count].clone(), images=self.images[:count].clone())


def attack(
    path: Path | None,
    config: EvaluateConfig,
    registry: Registry,
    *,
    data_dir: Path,
    device: str = "auto",
    weighted: bool = False,
    output: ImageOutput = ImageOutput(),  # noqa: B008 - frozen
) -> Iterator[Event]:
    """Attack the images of `config`; a `weighted` attack maximises weight times loss, as A_tr."""
    checkpoint, source = yield from open_checkpoint(path, config, registry, data_dir)
    # the first attack and eps; the command accepts one of each
    task = next(plan_tasks(checkpoint, config, registry, data_dir, source))
    for text in task.list_warnings():
        yield Message(text, is_warning=True)
    if weighted and not task.attack.has_margins:
        raise BadInput(
            f"attack {task.attack.spec!r} maximises its own loss, not a weighted one",
            hint="leave out `alpha`",
        )
    # before the attack, which may take hours
    save = _check_output(output.save)
    grid = _check_output(output.grid)
    runtime = single_process(device)
    model = components.restore_model(registry, task.checkpoint).to(runtime.device)
    # through the evaluator, so that images are attacked on the same fused model as in records
    sample_images = task.images.first(SAMPLE_SIZE).images.to(runtime.device)
    evaluator = make_evaluator(task, model, sample_images)
    total = len(task.images)
    # images stay in memory only as far as a file needs them
    kept = 0
    if save is not None:
        kept = total
    elif grid is not None:
        kept = GRID_ROWS
    yield EvaluationStarted(task.label, total=total)
    started = time.perf_counter()
    parts: list[AttackedImages] = []
    done = 0
    batches = task.images.positions.split(config.batch_size)
    for batch in read_ahead(task.images.split, batches):
        with exact_float32():
            part = attack_batch(
                task,
                evaluator,
                batch.to(runtime.device, evaluator.memory_format),
                weighted=weighted,
                as_uint8=output.as_uint8,
            )
        parts.append(part.keep_images(max(kept - done, 0)))
        done += len(part.label)
        yield ImagesDone(done, total)
    seconds = time.perf_counter() - started
    attacked = AttackedImages.join(parts)
    if save is not None:
        save_images(save, attacked, task, as_uint8=output.as_uint8, weighted=weighted)
        yield Message(f"saved {len(attacked.label)} images to {save}")
    if grid is not None:
        _draw_grid(grid, attacked, task.checkpoint.class_names)
        yield Message(f"drew {grid}")
    yield AttackDone(summarize(task, attacked, seconds, weighted=weighted))


def _check_output(file: Path | None) -> Path | None:
    """Return where to write, or raise RunFolderError before any work."""
    if file is None:
        return None
    target = resolve_output(file)
    check_writable(target)
    return target


def attack_batch(
    task: EvaluationTask, evaluator: Evaluator, batch: Batch, *, weighted: bool, as_uint8: bool
) -> AttackedImages:
    """Attack one batch and return its images on the CPU."""
    model = evaluator.model
    first_index = int(batch.index[0])
    check_batch(batch, evaluator.num_classes)
    # all random numbers as in an evaluation: its record describes these images
    with evaluating(model):
        clean_logits = evaluator.compute_clean_logits(batch)
        result = evaluator.run_attack(_choose_objective(task, weighted), batch, first_index)
        if as_uint8:
            seed = derive_draw_seed(evaluator.seed, "rounded", first_index)
            with seeding_generators(batch.images.device, seed):
                result = round_to_uint8(result, model, batch, task)
    clean = batch.images.cpu()
    images = result.images.detach().cpu()
    return AttackedImages(
        clean=clean,
        images=images,
        label=batch.labels.cpu(),
        index=batch.index.cpu(),
        prediction_clean=predictions(clean_logits).cpu(),
        prediction=predictions(result.require_logits()).cpu(),
        # in float64, so that a perturbation of exactly eps is not rounded up
        size=NORMS[task.attack.norm].size(images.double() - clean.double()),
    )


def _choose_objective(task: EvaluationTask, weighted: bool) -> Objective:
    loss = task.attack.component.traits.objective
    if not weighted:
        return get_objective(loss)
    (kernel, *_) = task.kernels.values()
    return weighted_objective(loss, kernel)


def round_to_uint8(
    result: AttackResult, model: nn.Module, batch: Batch, task: EvaluationTask
) -> AttackResult:
    """Round adversarial images to 8 bits, and compute their logits.

    Every pixel is rounded towards the clean one, so that the image stays in the ε-ball.
    """
    # on the CPU, because not every device supports float64
    levels = result.images.cpu().double() * 255
    is_at_level = (levels - levels.round()).abs() < LEVEL_TOLERANCE
    levels = torch.where(is_at_level, levels.round(), levels)
    is_brighter = result.images.cpu() >= batch.images.cpu()
    rounded = torch.where(is_brighter, levels.floor(), levels.ceil())
    images = (rounded / 255).float().to(batch.images.device)
    raise_for_images(
        exceeds_eps(NORMS[task.attack.norm].size(images - batch.images), task.attack.eps),
        batch.index,
        "it has no 8-bit neighbour in the ε-ball",
        hint="leave out `save_uint8`",
    )
    with torch.no_grad():
        return AttackResult(images, result.steps_survived, model(images))


def save_images(
    path: Path, attacked: AttackedImages, task: EvaluationTask, *, as_uint8: bool, weighted: bool
) -> None:
    """Write adversarial images with index, label and both predictions."""
    images = attacked.images
    if as_uint8:
        images = (images.double() * 255).round().to(torch.uint8)
    tensors = {
        "images": images,
        "index": attacked.index,
        "label": attacked.label,
        "prediction": attacked.prediction,
        "prediction_clean": attacked.prediction_clean,
    }
    # storage.adversarial_images compares these lines with a record
    header = {
        "attack": task.attack.spec,
        "norm": task.attack.norm,
        # repr keeps every bit of a float
        "eps": repr(task.attack.eps),
        "dataset": task.images.dataset,
        "split": task.config.split,
        "checkpoint_sha256": task.checkpoint.sha256,
        "seed": str(task.config.seed),
    }
    if weighted:
        header["alpha"] = repr(_alpha_of(task))
    save_tensors(path, tensors, header)


def _draw_grid(path: Path, attacked: AttackedImages, class_names: Sequence[str] | None) -> None:
    # matplotlib is slow to import, and most attacks draw nothing
    from ..reporting.figures import attack_grid

    columns = (
        attacked.clean,
        attacked.images,
        attacked.label,
        attacked.prediction_clean,
        attacked.prediction,
    )
    arrays = (tensor[:GRID_ROWS].numpy() for tensor in columns)
    attack_grid(path, *arrays, class_names=class_names)


def summarize(
    task: EvaluationTask, attacked: AttackedImages, seconds: float, *, weighted: bool
) -> dict[str, object]:
    """Return the attack success rate among correct images, the mean perturbation and the speed.

    `wmr attack` prints it as JSON, so that its keys cannot change.
    """
    was_correct = attacked.prediction_clean == attacked.label
    is_misclassified = was_correct & (attacked.prediction != attacked.label)
    correct = int(was_correct.sum())
    misclassified = int(is_misclassified.sum())
    # without a correct image the rate is undefined
    success_rate = None
    if correct:
        success = measures.wilson(misclassified, correct)
        success_rate = {"value": success.value, "low": success.low, "high": success.high}
    return {
        "checkpoint": str(task.checkpoint.path),
        "attack": task.attack.spec,
        "alpha": _alpha_of(task) if weighted else None,
        "norm": task.attack.norm,
        "eps": task.attack.eps,
        "images": len(attacked.label),
        "right_before": correct,
        "fooled": misclassified,
        "success_rate": success_rate,
        "mean_size": float(attacked.size.mean()),
        "seconds": seconds,
        "images_per_second": len(attacked.label) / seconds,
    }


def _alpha_of(task: EvaluationTask) -> float | None:
    """Return the alpha of a weighted attack: its task has one kernel."""
    return next(iter(task.kernels))
