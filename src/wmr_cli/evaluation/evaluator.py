"""Cut images into batches, evaluate batches to rows, one per image, and rows to a record.

The rounding errors of an image depend on the size of the batch that it is in. Sizes of batches are
a function of the number of images, of `batch_size` and of the kind of device alone. So the numbers
are bit-identical for any number of ranks, after a resume, and for streams. On an accelerator this
needs deterministic operations, which the record states.

Random numbers of a stochastic model are those of torch's generators, which are seeded for every
pass over clean images, every attack and every draw, by the seed and the first image of the batch.

Attacks with the trait `gathers_images` receive the images of several batches at once, a group, and
form full batches of those that they still attack. Groups are a function of the same sizes.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain, cycle, repeat
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .. import __version__
from ..core.contexts import (
    compute_logits,
    evaluating,
    exact_float32,
    is_accelerator,
    limiting_batches,
    prefer_determinism,
    seeding_generators,
)
from ..core.data.loaders import BatchStream, rebatch
from ..core.data.splits import read_ahead
from ..core.eot import DrawRule, combine_draws, derive_draw_seed
from ..core.losses import (
    cross_entropy,
    get_objective,
    logit_margin,
    probability_margin,
    weighted_objective,
)
from ..core.nn.fusion import prepare_for_attack
from ..core.norms import NORMS
from ..core.protocols import Attack, AttackResult, Batch, Evidence, Kernel, Objective, Split
from ..core.rng import derive_seed
from ..core.run_attack import (
    ThreatModel,
    check_batch,
    check_log_weights,
    check_logits,
    predictions,
    run_attack,
)
from ..errors import BadInput
from ..measures import MARGIN_KERNEL, at_alpha
from ..reporting import scoring
from ..reporting.scoring import add_calibrated
from ..runtime import components
from ..storage.checkpoints import IMPORTED_DEFENSE, Checkpoint
from ..storage.records import (
    AttackFacts,
    CheckpointFacts,
    DatasetFacts,
    Record,
    RepeatRow,
    Rows,
    Threat,
    drop_logits,
)
from .certification import Certifier, refuse_contradictions
from .tasks import EvaluationTask

# A chunk is the unit of storage, of resuming and of sharing among ranks.
CHUNK_SIZE = 256
MIN_CHUNK_SIZE = 32
MAX_EVEN_CHUNKS = 8
"""Fewer images than this many full chunks are divided evenly, so that all ranks have work."""
BATCHES_PER_GROUP = 2
"""Full batches of images in a group: the half that is still correct makes one full batch."""
Part = TypeVar("Part", Tensor, Batch)


def choose_chunk_size(batch_size: int, device: torch.device) -> int:
    """Return the largest chunk: on an accelerator at least a batch, so that it can be filled."""
    return max(CHUNK_SIZE, batch_size) if is_accelerator(device) else CHUNK_SIZE


def split_into_chunks(positions: Tensor, chunk_size: int) -> tuple[Tensor, ...]:
    """Divide positions (N,) into chunks. Their sizes depend on N and `chunk_size` alone."""
    count = len(positions)
    parts: tuple[Tensor, ...]
    if chunk_size > CHUNK_SIZE:
        parts = positions.split(chunk_size)
    elif _has_many_chunks(count):
        parts = positions.split(CHUNK_SIZE)
    else:
        # evenly: in a last chunk of 5 to 11 images, sums would depend on the number of threads
        parts = positions.tensor_split(min(MAX_EVEN_CHUNKS, max(1, count // MIN_CHUNK_SIZE)))
    return parts


def split_into_batches(chunk: Tensor, images: int, batch_size: int) -> tuple[Tensor, ...]:
    """Divide a chunk of an evaluation of this number of images into batches."""
    parts: tuple[Tensor, ...]
    if batch_size >= CHUNK_SIZE:
        parts = chunk.split(batch_size)
    elif _has_many_chunks(images):
        # the last chunk as if it were full, so that streams need no length
        per_chunk = _divide_up(CHUNK_SIZE, batch_size)
        parts = chunk.split(_divide_up(CHUNK_SIZE, per_chunk))
    else:
        parts = chunk.tensor_split(max(1, _divide_up(len(chunk), batch_size)))
    return parts


def batch_images(images: Split | BatchStream, batch_size: int, chunk_size: int) -> Iterator[Batch]:
    """Yield all images in the batches of an evaluation.

    A stream is read ahead until it is known whether it has many chunks.
    """
    if not isinstance(images, BatchStream):
        positions = _batch_positions(len(images), batch_size, chunk_size)
        yield from read_ahead(images, positions)
        return
    arriving = iter(images)
    if chunk_size > CHUNK_SIZE:
        yield from rebatch(arriving, repeat(chunk_size))
        return
    buffered = deque[Batch]()
    while not _has_many_chunks(max(len(images), images.min_length)):
        batch = next(arriving, None)
        if batch is None:
            break
        buffered.append(batch)
    count = max(len(images), images.min_length)
    if not count:
        return
    # the sizes of full chunks repeat
    if _has_many_chunks(count):
        count = CHUNK_SIZE * MAX_EVEN_CHUNKS
    sizes = cycle(map(len, _batch_positions(count, batch_size, chunk_size)))
    yield from rebatch(chain(_pop_all(buffered), arriving), sizes)


def group_batches(parts: Iterable[Part], batch_size: int) -> Iterator[tuple[Part, ...]]:
    """Join consecutive batches, or their positions, until they have enough images for a group."""
    group: list[Part] = []
    images = 0
    for part in parts:
        group.append(part)
        images += len(part.labels if isinstance(part, Batch) else part)
        if images >= BATCHES_PER_GROUP * batch_size:
            yield tuple(group)
            group.clear()
            images = 0
    if group:
        yield tuple(group)


def plan_chunks(
    positions: Tensor, batch_size: int, chunk_size: int, *, gathers: bool
) -> list[tuple[Tensor, ...]]:
    """Divide positions (N,) into chunks of batches; groups are the chunks of gathered images."""
    chunks = [
        split_into_batches(chunk, len(positions), batch_size)
        for chunk in split_into_chunks(positions, chunk_size)
    ]
    if not gathers:
        return chunks
    return list(group_batches(chain.from_iterable(chunks), min(batch_size, chunk_size)))


def _has_many_chunks(images: int) -> bool:
    return images >= CHUNK_SIZE * MAX_EVEN_CHUNKS


def _divide_up(dividend: int, divisor: int) -> int:
    """Return the quotient rounded up."""
    return -(-dividend // divisor)


def _batch_positions(images: int, batch_size: int, chunk_size: int) -> Iterator[Tensor]:
    """Yield the positions of each batch."""
    for chunk in split_into_chunks(torch.arange(images), chunk_size):
        yield from split_into_batches(chunk, images, batch_size)


def _pop_all(buffered: deque[Batch]) -> Iterator[Batch]:
    """Yield batches without keeping a reference, so that their memory is freed."""
    while buffered:
        yield buffered.popleft()


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """One model under one attack. Each row depends on its image alone, up to float rounding."""

    model: nn.Module
    attack: Attack
    norm: str
    eps: float
    num_classes: int
    seed: int
    kernels: dict[float | None, Kernel] = field(default_factory=dict)
    """The attacker's kernel for each alpha. The key of a kernel without alpha is None."""
    is_attacked: bool = True
    """False measures clean images only."""
    has_margins: bool = True
    """False for attacks that stop early: only their predictions are meaningful."""
    runs_weighted_attack: bool = True
    """True adds one weighted attack per alpha, which A_tr needs."""
    stores_log_weights: bool = False
    """False for the exponential kernel, whose log-weights follow from the stored margins."""
    logit_prefixes: frozenset[str] | None = None
    """Prefixes of the rows that hold logits, such as `uniform`; None for all."""
    memory_format: torch.memory_format = torch.contiguous_format
    clean_logits: dict[bytes, Tensor] | None = None
    """Clean logits by image index, shared between attacks on the same images."""
    group_batch_size: int | None = None
    """Batches of attacks on gathered images have at most this size; None evaluates each batch."""
    certifier: Certifier | None = None
    draws: int | None = None
    """Draws of a stochastic model that decide about each image; None for those of the attack."""
    draw_rule: DrawRule = "mean"
    clean_seed: int = 0
    """Seed of the model's random numbers on clean images, the same for all seeds of the attack."""
    nondeterministic: set[str] = field(default_factory=set)
    """Warnings of operations that have no deterministic algorithm on an accelerator."""

    def prepare(self, sample_images: Tensor, *, layout: str, fuse: bool) -> "Evaluator":
        """Choose memory format and fused model, verified on a few images (N, C, H, W)."""
        with exact_float32():
            prepared = prepare_for_attack(self.model, sample_images, layout=layout, fuse=fuse)
        return replace(self, model=prepared.module, memory_format=prepared.memory_format)

    def evaluate_batch(self, batch: Batch) -> Rows:
        """Compute the rows of one batch."""
        return self._evaluate_together((batch,))

    def _evaluate_group(self, batches: Sequence[Batch], device: torch.device) -> Rows:
        """Compute the rows of batches whose images are gathered."""
        assert self.group_batch_size is not None
        with limiting_batches(self.group_batch_size):
            return self._evaluate_together(
                [batch.to(device, self.memory_format) for batch in batches]
            )

    def _evaluate_together(self, batches: Sequence[Batch]) -> Rows:
        """Compute the rows of batches that are attacked as one."""
        for batch in batches:
            check_batch(batch, self.num_classes)
        # eval mode: batch-norm must not mix images, and dropout is stochastic
        with evaluating(self.model):
            # in these batches, so that clean rows are the same under every attack
            rows = stack_rows([self._evaluate_clean(batch) for batch in batches])
            if self.is_attacked:
                # read from the rows: on an accelerator, the host would wait for the batch
                first_index = int(rows["index"][0])
                rows |= self._evaluate_attack(join_batches(batches), first_index)
        if self.certifier is not None:
            # in these batches, so that all attacks share the bounds
            rows |= stack_rows([self.certifier.bound_margins(batch) for batch in batches])
            refuse_contradictions(rows, str(self.certifier.verifier))
        if self.logit_prefixes is None:
            return rows
        return drop_logits(rows, keep=self.logit_prefixes)

    def evaluate_batches(self, batches: Iterable[Batch], device: torch.device) -> Iterator[Rows]:
        """Compute the rows of each batch or group on `device`, in float32 without TF32."""
        groups: Iterable[Batch | tuple[Batch, ...]] = batches
        if self.group_batch_size is not None:
            groups = group_batches(batches, self.group_batch_size)
        for group in groups:
            # not around the yield: the caller's code must keep its own settings
            with ExitStack() as stack:
                stack.enter_context(exact_float32())
                if is_accelerator(device):
                    stack.enter_context(prefer_determinism(self.nondeterministic))
                if isinstance(group, Batch):
                    rows = self.evaluate_batch(group.to(device, self.memory_format))
                else:
                    rows = self._evaluate_group(group, device)
            yield rows

    def _evaluate_clean(self, batch: Batch) -> Rows:
        rows = {"index": batch.index.cpu().numpy(), "label": batch.labels.cpu().numpy()}
        return rows | _score_logits("clean", self.compute_clean_logits(batch), batch.labels)

    def compute_clean_logits(self, batch: Batch) -> Tensor:
        """Return the logits of clean images, on the CPU."""
        cache = {} if self.clean_logits is None else self.clean_logits
        # by index: all attacks cut the images into the same batches
        index = batch.index.cpu().numpy()
        key = index.tobytes()
        if key not in cache:
            logits = self._draw_logits(
                batch.images,
                batch.labels,
                [
                    derive_draw_seed(self.clean_seed, "clean", int(index[0]), draw)
                    for draw in range(self.draws or 1)
                ],
            )
            check_logits(logits, batch.index, self.num_classes)
            # on the CPU: a whole dataset of logits need not fit on the device
            cache[key] = logits.cpu()
        return cache[key]

    def _evaluate_attack(self, batch: Batch, first_index: int) -> Rows:
        loss = self.attack.traits.objective
        uniform_logits = self.attack_logits(get_objective(loss), batch, first_index)
        rows = _score_logits("uniform", uniform_logits, batch.labels)
        # an attack that stops at the first misclassification does not minimise margins
        if not self.has_margins:
            return {"uniform/prediction": rows["uniform/prediction"]}
        for alpha, kernel in self.kernels.items():
            # kernels that compare images need all rows: see add_log_weights
            stores = self.stores_log_weights and not kernel.traits.compares_images
            if stores:
                name = at_alpha("uniform/log_weight", alpha)
                rows[name] = _log_weights(kernel, uniform_logits, batch)
            if not self.runs_weighted_attack:
                continue
            # weights without a gradient do not change the attack
            logits = uniform_logits
            if kernel.traits.differentiable:
                objective = weighted_objective(loss, kernel)
                logits = self.attack_logits(objective, batch, first_index)
            prefix = at_alpha("weighted", alpha)
            rows |= _score_logits(prefix, logits, batch.labels)
            if stores:
                rows[f"{prefix}/log_weight"] = _log_weights(kernel, logits, batch)
        return rows

    def attack_logits(self, objective: Objective, batch: Batch, first_index: int) -> Tensor:
        """Return the logits of the adversarial images: those of the attack, or of new draws."""
        result = self.run_attack(objective, batch, first_index, need_logits=self.draws is None)
        if self.draws is None:
            return result.require_logits()
        seeds = [
            derive_draw_seed(self.seed, "attacked", first_index, draw) for draw in range(self.draws)
        ]
        logits = self._draw_logits(result.images, batch.labels, seeds)
        check_logits(logits, batch.index, self.num_classes)
        return logits

    def run_attack(
        self, objective: Objective, batch: Batch, first_index: int, *, need_logits: bool = True
    ) -> AttackResult:
        """Run the attack, with seeded random numbers of the model."""
        threat = ThreatModel(NORMS[self.norm], self.eps, self.num_classes)
        with seeding_generators(
            batch.images.device, derive_draw_seed(self.seed, "attack", first_index)
        ):
            return run_attack(
                self.attack,
                self.model,
                batch,
                objective,
                threat,
                seed=self.seed,
                need_logits=need_logits,
            )

    def _draw_logits(self, images: Tensor, labels: Tensor, seeds: Sequence[int]) -> Tensor:
        """Return the logits that decide about images, from one draw per seed."""
        drawn = []
        for seed in seeds:
            with seeding_generators(images.device, seed):
                drawn.append(compute_logits(self.model, images))
        return combine_draws(drawn, labels, self.draw_rule)


def make_evaluator(task: EvaluationTask, model: nn.Module, sample_images: Tensor) -> Evaluator:
    """Build the evaluator of a task, prepared with a few images (N, C, H, W)."""
    metrics = set(task.config.metrics)
    group_batch_size = None
    if task.gathers_images:
        device = sample_images.device
        group_batch_size = min(
            task.config.batch_size, choose_chunk_size(task.config.batch_size, device)
        )
    evaluator = Evaluator(
        model=model,
        attack=task.attack.component,
        norm=task.attack.norm,
        eps=task.attack.eps,
        num_classes=task.checkpoint.num_classes,
        seed=derive_seed("evaluate", task.config.seed),
        kernels=task.kernels if metrics & {"sa", "tr", "cal"} else {},
        is_attacked=bool(metrics - {"nat"}),
        has_margins=task.attack.has_margins,
        runs_weighted_attack="tr" in metrics,
        stores_log_weights=task.config.kernel != MARGIN_KERNEL,
        logit_prefixes=task.logit_prefixes,
        group_batch_size=group_batch_size,
        certifier=_make_certifier(task, model),
        draws=task.config.draws,
        draw_rule=task.config.draw_rule,
        clean_seed=derive_seed("evaluate", task.config.seed),
    )
    return evaluator.prepare(sample_images, layout=task.config.layout, fuse=task.config.fold)


def join_batches(batches: Sequence[Batch]) -> Batch:
    """Join the images, labels and indices of batches."""
    if len(batches) == 1:
        return batches[0]
    return Batch(
        torch.cat([batch.images for batch in batches]),
        torch.cat([batch.labels for batch in batches]),
        torch.cat([batch.index for batch in batches]),
    )


def _make_certifier(task: EvaluationTask, model: nn.Module) -> Certifier | None:
    if task.verifier is None:
        return None
    return Certifier(
        verifier=task.verifier,
        model=model,
        norm=task.attack.norm,
        eps=task.attack.eps,
        num_classes=task.checkpoint.num_classes,
    )


def stack_rows(parts: list[Rows]) -> Rows:
    """Join the rows of consecutive images."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def add_log_weights(task: EvaluationTask, rows: Rows) -> Rows:
    """Add the log-weights of kernels that compare images, which need the rows of all images."""
    complete = dict(rows)
    for alpha, kernel in task.kernels.items():
        if not kernel.traits.compares_images:
            continue
        weighted = at_alpha("weighted", alpha)
        targets = {
            "uniform": at_alpha("uniform/log_weight", alpha),
            weighted: f"{weighted}/log_weight",
        }
        for prefix, name in targets.items():
            if f"{prefix}/logits" in rows:
                evidence = Evidence(
                    torch.from_numpy(rows[f"{prefix}/logits"]).double(),
                    torch.from_numpy(rows["label"]),
                    torch.from_numpy(rows["index"]),
                    loss=torch.from_numpy(rows[f"{prefix}/loss"]).double(),
                )
                complete[name] = _apply_kernel(kernel, evidence)
    for name, values in complete.items():
        if "/log_weight" in name and (values == -np.inf).all():
            raise BadInput(
                f"kernel {task.config.kernel!r} gives no weight to any image",
                hint="check the indices in its table",
            )
    return complete


def make_record(
    task: EvaluationTask,
    rows: Rows,
    *,
    repeats: list[RepeatRow],
    seconds: float,
    images_per_second: float,
    device: str,
    deterministic: bool | None,
) -> Record:
    """Score the rows and list everything that determined them."""
    config = task.config
    class_names = dict(enumerate(task.checkpoint.class_names or ()))
    scores = scoring.compute_scores(rows, config, list(task.kernels), class_names)
    assert scores.a_nat is not None  # rows always hold clean predictions
    indices = None
    if not task.images.is_whole_split:
        indices = [int(index) for index in rows["index"]]
    attack = task.attack
    record = Record(
        id=task.id,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        wmr=__version__,
        checkpoint=_describe_checkpoint(task.checkpoint),
        dataset=DatasetFacts(
            name=task.images.dataset,
            split=config.split,
            n=len(rows["index"]),
            sha256=task.images.split.sha256,
            indices=indices,
        ),
        threat=Threat(norm=attack.norm, eps=attack.eps),
        attack=AttackFacts(
            spec=attack.spec,
            seed=config.seed,
            restarts=attack.restarts,
            eot=attack.component.traits.eot,
            draws=config.draws,
            draw_rule=config.draw_rule,
        ),
        kernel=config.kernel,
        device=device,
        deterministic=deterministic,
        # always, see exact_float32; the field exists since wmr 0.1
        precision="32",
        a_nat=scores.a_nat,
        a_rob=scores.a_rob,
        by_alpha=scores.by_alpha,
        dro=scores.dro,
        per_class=scores.per_class,
        bounds=scoring.score_bounds(rows, config, list(task.kernels)),
        repeats=repeats,
        seconds=seconds,
        images_per_second=images_per_second,
        versions=components.installed_versions(),
        plugins=task.code_versions,
        config=msgspec.json.decode(msgspec.json.encode(config)),
    )
    return add_calibrated(record, rows, config) if task.is_calibrated else record


def _describe_checkpoint(checkpoint: Checkpoint) -> CheckpointFacts:
    # the training of imported weights is not known
    epoch = None
    train_config = None
    path = checkpoint.path
    if checkpoint.defense != IMPORTED_DEFENSE:
        # reports name a run by its folder, which a relative path may lack
        if path.parent.name in ("", ".."):
            path = Path(path.parent.resolve().name, path.name)
        epoch = checkpoint.epoch
        train_config = msgspec.json.decode(msgspec.json.encode(checkpoint.config))
    return CheckpointFacts(
        path=str(path),
        sha256=checkpoint.sha256,
        model=checkpoint.model,
        defense=checkpoint.defense,
        kernel=checkpoint.kernel,
        alpha_train=checkpoint.alpha_train,
        seed=checkpoint.seed,
        epoch=epoch,
        config=train_config,
    )


def _score_logits(prefix: str, logits: Tensor, labels: Tensor) -> Rows:
    """Compute prediction, margins and loss of each image."""
    exact_logits = _to_float64(logits)
    labels = labels.cpu()
    values = {
        "prediction": predictions(exact_logits),
        "margin": probability_margin(exact_logits, labels),
        # float32 is enough for figures; only margins become weights
        "logit_margin": logit_margin(exact_logits, labels).float(),
        "loss": cross_entropy(exact_logits, labels).float(),
        "logits": exact_logits.float(),
    }
    return {f"{prefix}/{name}": value.numpy() for name, value in values.items()}


def _log_weights(kernel: Kernel, logits: Tensor, batch: Batch) -> NDArray[np.float64]:
    exact_logits = _to_float64(logits)
    labels = batch.labels.cpu()
    loss = cross_entropy(exact_logits, labels)
    return _apply_kernel(kernel, Evidence(exact_logits, labels, batch.index.cpu(), loss=loss))


def _apply_kernel(kernel: Kernel, evidence: Evidence) -> NDArray[np.float64]:
    log_weights = kernel(evidence)
    check_log_weights(kernel, log_weights, len(evidence.labels))
    values: NDArray[np.float64] = log_weights.detach().double().numpy()
    return values


def _to_float64(logits: Tensor) -> Tensor:
    # float32 saturates to probability 1 and makes false ties between margins;
    # on the CPU, because not every device supports float64
    return logits.detach().cpu().double()
