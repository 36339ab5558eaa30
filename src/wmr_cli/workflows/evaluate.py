"""Measure a checkpoint under attack: one record for each attack and eps, with a row per image."""

import shutil
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from torch import Tensor, nn

from .. import __version__
from ..config import EvaluateConfig
from ..core.layouts import bearable
from ..core.lean import CHECKED, leaned
from ..core.noise import derive
from ..core.splits import ahead
from ..errors import BadInput
from ..measures import worst_rows
from ..registry import Registry
from ..reporting.doubts import doubts
from ..storage import records
from ..storage.checkpoints import IMPORTED, Checkpoint
from ..storage.files import check_writable, locked, refuse_link, watched
from ..storage.records import AttackFacts, CheckpointFacts, DatasetFacts, Record, RepeatRow, Rows, Threat
from . import parts, scoring
from .checks import checked
from .devices import memory_format
from .events import EvaluationDone, EvaluationStarted, Event, ImagesDone, Message
from .examine import Examination, compared, stack, walked
from .imports import opened
from .planning import Task, plan
from .portions import batches, chunks
from .ranks import launched, together
from .sharing import shared_split

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Walked = Generator[Event, None, Record | None]
"""Tells how far it is, then gives a record."""
WORST = "worst"


def evaluate(
    path: Path | None,
    config: EvaluateConfig,
    registry: Registry,
    *,
    data_dir: Path,
    device: str = "auto",
    devices: int | None = None,
    nodes: int | None = None,
    out: Path | None = None,
    resume: bool = False,
) -> Iterator[Event]:
    """Every record that `config` asks of the checkpoint at `path`; one that exists already is shown, not made again.

    With `config.model` the file holds foreign weights; without a file that network is evaluated as it is built. Several
    attacks in one ball give one record more, their worst case. Of several ranks the first speaks.
    """
    checkpoint, source = yield from opened(path, config, registry, data_dir)
    tasks = list(plan(checkpoint, config, registry, data_dir, source))
    fabric, folder = launched(device, devices, nodes), out or home(checkpoint)
    if out is None:
        refuse_link(folder)
    split = shared_split(lambda: tasks[0].split, fabric)
    tasks = [replace(task, split=split) for task in tasks]
    del source  # several processes hold one copy from here on
    known: dict[bytes, Tensor] = {}
    balls: dict[tuple[str, float], list[tuple[Task, Record]]] = {}
    for task in tasks:
        told = (*parts.notes(task.split), *parts.advice(task.attack, task.eps, checkpoint.num_classes))
        yield from (Message(text, warns=True) for text in told)
        record = yield from _recorded(task, registry, folder, fabric, resume, known)
        if record is not None:
            balls.setdefault((task.norm, task.eps), []).append((task, record))
    for measured in balls.values():
        if len(measured) > 1:
            yield from worst(measured, folder)


def _recorded(task: Task, registry: Registry, folder: Path, fabric: "Fabric", resume: bool, known: dict[bytes, Tensor]) -> Walked:
    """The record of a task, stored or measured; none on any rank but the first, which speaks for all."""
    target = folder / f"{task.id}.json"
    is_stored = fabric.broadcast(target.exists() and records.rows_path(target).exists())
    record = None if is_stored else (yield from measure(task, registry, target, fabric, resume, known))
    if fabric.is_global_zero:
        record = record or records.load(target)
        yield from (Message(text, warns=True) for text in doubts(record))
        yield EvaluationDone(record, records.rows_path(target), stored=is_stored)
    return record


def measure(
    task: Task, registry: Registry, target: Path, fabric: "Fabric", resume: bool, known: dict[bytes, Tensor] | None = None
) -> Walked:
    """One record: images to rows, chunk by chunk, dealt among the ranks; rows to numbers, on the first.

    `known` are clean logits that other attacks on the same images have seen.
    """
    network = parts.restored(registry, task.checkpoint).to(fabric.device)
    sample = task.split.batch(task.positions[:CHECKED]).to(fabric.device)
    examination = replace(examination_of(task, network, sample.images), known=known)
    unfinished = target.with_suffix(".partial")
    jobs = dealt(task, unfinished)
    total = sum(len(job.chunk) for job in jobs)
    yield EvaluationStarted(task.label, total)
    with ExitStack() as held:
        with together(fabric):
            if fabric.is_global_zero:
                check_writable(target)
                refuse_link(unfinished)
                held.enter_context(locked(unfinished))
                ours = {job.file: len(job.chunk) for job in jobs}
                for file in unfinished.glob("*.safetensors"):
                    if not resume or file not in ours or not records.is_readable(file, ours[file]):
                        file.unlink()
        if not fabric.is_global_zero:
            held.enter_context(watched(unfinished))
        started, measured = time.perf_counter(), 0
        with together(fabric):
            for job in jobs[fabric.global_rank :: fabric.world_size]:
                examination, pieces = replace(examination, seed=derive("evaluate", job.seed)), list[Rows]()
                todo = () if job.file.exists() else batches(job.chunk, len(task.positions), task.config.batch_size)
                for piece in walked(examination, ahead(task.split, todo), fabric.device):
                    pieces.append(piece)
                    measured += len(piece["index"])
                    yield ImagesDone(_finished(jobs) + sum(len(piece["index"]) for piece in pieces), total)
                if pieces:
                    rows = stack(pieces)
                    records.save_rows(
                        job.file, rows if job.seed == task.config.seed else scoring.needed(rows, comparing=task.compares)
                    )
                yield ImagesDone(_finished(jobs), total)
        seconds = time.perf_counter() - started
        if not fabric.is_global_zero:
            return None
        rows = weighed(task, gathered(jobs, task.config.seed))
        repeats = repeated(task, jobs) if task.config.repeats > 1 else []
        record = recorded(task, rows, repeats, seconds, fabric.world_size * measured / seconds, fabric.device.type)
        if task.config.checks:
            yield Message("checking whether the attack was weak rather than the model strong")
            examination = replace(examination, seed=derive("evaluate", task.config.seed))
            record = msgspec.structs.replace(record, checks=list(checked(task, registry, examination, rows, fabric.device)))
        records.save(target, record, rows)
        shutil.rmtree(unfinished, ignore_errors=True)
    return record


@dataclass(frozen=True)
class Job:
    """A chunk of images under one seed of the attack, and the file that holds its rows once they are there."""

    seed: int
    chunk: Tensor
    file: Path


def dealt(task: Task, folder: Path) -> list[Job]:
    """All chunks of all seeds, in a fixed order. A file is named for what it holds: whoever cuts otherwise does not take it."""
    first, cut = task.config.seed, chunks(task.positions)
    stops = [0, *accumulate(map(len, cut))]
    return [
        Job(seed, chunk, folder / f"{start:08d}-{stop:08d}{f'-seed{seed}' * (seed != first)}.safetensors")
        for seed in range(first, first + task.config.repeats)
        for chunk, (start, stop) in zip(cut, pairwise(stops), strict=True)
    ]


def _finished(jobs: Sequence[Job]) -> int:
    """How many images are done, by whichever rank."""
    return sum(len(job.chunk) for job in jobs if job.file.exists())


def gathered(jobs: Sequence[Job], seed: int) -> Rows:
    """The rows of one seed, of all images."""
    return stack([records.load_rows(job.file) for job in jobs if job.seed == seed])


def weighed(task: Task, rows: Rows) -> Rows:
    """The rows of all images, each with its weight, however it comes about."""
    rows = compared(rows, task.kernels)
    for name, values in rows.items():
        if "/log_weight" in name and (values == -np.inf).all():
            raise BadInput(f"kernel {task.config.kernel!r} gives no weight to any image", hint="check the indices in its table")
    return rows


def worst(measured: Sequence[tuple[Task, Record]], folder: Path) -> Iterator[Event]:
    """The worst case of several attacks in one ball, image by image, as a record of its own."""
    ids = [record.id for _, record in measured]
    target = folder / f"{records.record_id({'worst': sorted(ids)})}.json"
    is_stored = target.exists()
    if is_stored:
        record = records.load(target)
    else:
        task, first = measured[0]
        rows = weighed(task, worst_rows([records.load_rows(records.rows_path(folder / f"{name}.json")) for name in ids]))
        seconds = sum(record.seconds for _, record in measured)
        record = msgspec.structs.replace(
            recorded(task, rows, [], seconds, first.dataset.n / seconds, first.device),
            id=target.stem,
            attack=AttackFacts(spec=WORST, seed=first.attack.seed, restarts=1, of=ids),
            plugins={name: version for _, record in measured for name, version in record.plugins.items()},
            dro=[],  # the image of lowest margin need not be that of largest loss: the parts have their own
        )
        records.save(target, record, rows)
    yield from (Message(text, warns=True) for text in doubts(record))
    yield EvaluationDone(record, records.rows_path(target), stored=is_stored)


def examination_of(task: Task, model: nn.Module, images: Tensor) -> Examination:
    """The task as something that turns batches into rows, by the network where it is, or by its lean twin.

    All passes go through the same one of the two. A few `images` (N, C, H, W) show whether twin and layout are right for it.
    """
    asked = set(task.config.metrics)
    with parts.exact_float32():
        chosen = bearable(model, images, memory_format(task.config.layout, images.device))
        model = leaned(model, images, chosen) if task.config.fold else model
    return Examination(
        model=model,
        memory_format=chosen,
        attack=task.attack,
        norm=task.norm,
        eps=task.eps,
        num_classes=task.checkpoint.num_classes,
        seed=derive("evaluate", task.config.seed),
        kernels=task.kernels if asked & {"sa", "tr"} else {},
        gives_margins=task.gives_margins,
        attacks=task.config.attacks_images,
        crafts_by_weight="tr" in asked,
        stores_log_weights=task.config.kernel != "exp",
    )


def repeated(task: Task, jobs: Sequence[Job]) -> list[RepeatRow]:
    """The values of every seed of the attack."""
    seeds = dict.fromkeys(job.seed for job in jobs)
    return [scoring.repetition(weighed(task, gathered(jobs, seed)), task.config, list(task.kernels), seed) for seed in seeds]


def recorded(task: Task, rows: Rows, repeats: list[RepeatRow], seconds: float, images_per_second: float, device: str) -> Record:
    """Rows to the record. Everything that shaped the result is written in the result."""
    checkpoint, config = task.checkpoint, task.config
    scores = scoring.scores(rows, config, list(task.kernels), dict(enumerate(checkpoint.class_names or ())))
    assert scores.a_nat is not None  # clean rows are always there
    is_ours = checkpoint.defense != IMPORTED
    return Record(
        id=task.id,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        wmr=__version__,
        checkpoint=CheckpointFacts(
            path=str(checkpoint.path),
            sha256=checkpoint.sha256,
            model=checkpoint.model,
            defense=checkpoint.defense,
            kernel=checkpoint.kernel,
            alpha_train=checkpoint.alpha_train,
            seed=checkpoint.seed,
            epoch=checkpoint.epoch if is_ours else None,
            config=msgspec.json.decode(msgspec.json.encode(checkpoint.config)) if is_ours else None,
        ),
        dataset=DatasetFacts(
            name=task.dataset,
            split=config.split,
            n=len(rows["index"]),
            sha256=task.split.sha256,
            indices=None if len(task.positions) == len(task.split) else [int(index) for index in rows["index"]],
        ),
        threat=Threat(norm=task.norm, eps=task.eps),
        attack=AttackFacts(spec=task.attack_spec, seed=config.seed, restarts=task.restarts),
        kernel=config.kernel,
        device=device,
        precision="32",
        a_nat=scores.a_nat,
        a_rob=scores.a_rob,
        by_alpha=scores.by_alpha,
        dro=scores.dro,
        per_class=scores.per_class,
        repeats=repeats,
        seconds=seconds,
        images_per_second=images_per_second,
        versions=parts.versions(),
        plugins=task.code,
        config=msgspec.json.decode(msgspec.json.encode(config)),
    )


def home(checkpoint: Checkpoint) -> Path:
    """`evaluations/` of its run, or `<stem>.evaluations/` beside a bare file."""
    # others keep a config.json beside their weights, too
    is_run = checkpoint.defense != IMPORTED and (checkpoint.path.parent / "config.json").exists()
    return checkpoint.path.parent / "evaluations" if is_run else checkpoint.path.with_suffix(".evaluations")
