"""Measure a checkpoint under attack: one record for each attack and eps, with a row per image."""

import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import torch

from .. import __version__, measures
from ..config import EvaluateConfig
from ..core.noise import derive
from ..core.splits import ahead
from ..registry import Registry
from ..reporting.doubts import doubts
from ..storage import records
from ..storage.checkpoints import IMPORTED, Checkpoint
from ..storage.files import check_writable, locked
from ..storage.records import AlphaRow, AttackFacts, CheckpointFacts, DatasetFacts, Record, Rows, Threat
from . import parts
from .events import EvaluationDone, EvaluationStarted, Event, ImagesDone, Message
from .examine import Examination, stack
from .imports import opened
from .planning import Task, plan

CHUNK = 512
"""Images are dealt in chunks of this size in the split's order: the unit of storage and of resuming."""


def evaluate(
    path: Path | None,
    config: EvaluateConfig,
    registry: Registry,
    *,
    data_dir: Path,
    device: str = "auto",
    out: Path | None = None,
    resume: bool = False,
) -> Iterator[Event]:
    """Every record that `config` asks of the checkpoint at `path`; one that exists already is shown, not made again.

    With `config.model` the file holds foreign weights; without a file that network is evaluated as it is built.
    """
    checkpoint, source = yield from opened(path, config, registry, data_dir)
    for task in plan(checkpoint, config, registry, data_dir, source):
        yield from (
            Message(text, warns=True)
            for text in (*parts.notes(task.split), *parts.advice(task.attack, task.eps, checkpoint.num_classes))
        )
        target = (out or home(task.checkpoint)) / f"{task.id}.json"
        if target.exists():
            record = records.load(target)
            yield from (Message(text, warns=True) for text in doubts(record))
            yield EvaluationDone(record, records.rows_path(target), stored=True)
        else:
            yield from measure(task, registry, target, device, resume)


def measure(task: Task, registry: Registry, target: Path, device: str, resume: bool) -> Iterator[Event]:
    """One record: images to rows, chunk by chunk; rows to numbers."""
    fabric = parts.fabric(device)
    examination = examination_of(task, registry, fabric.device)
    check_writable(target)
    unfinished, total = target.with_suffix(".partial"), len(task.positions)
    yield EvaluationStarted(task.label, total)
    with locked(unfinished):
        if not resume:
            for stale in unfinished.glob("*.safetensors"):
                stale.unlink()
        started, done, measured = time.perf_counter(), 0, 0
        files = []
        for number, chunk in enumerate(task.positions.split(CHUNK)):
            files.append(unfinished / f"{number:06d}.safetensors")
            if not files[-1].exists():
                pieces = []
                for batch in ahead(task.split, chunk.split(task.config.batch_size)):
                    with parts.exact_float32():
                        pieces.append(examination.rows(batch.to(fabric.device)))
                    measured += len(batch.labels)
                    yield ImagesDone(done + sum(len(piece["index"]) for piece in pieces), total)
                records.save_rows(files[-1], stack(pieces))
            done += len(chunk)
            yield ImagesDone(done, total)
        seconds = time.perf_counter() - started
        rows = stack([records.load_rows(file) for file in files])
        record = recorded(task, rows, seconds, measured / seconds, fabric.device.type)
        records.save(target, record, rows)
        shutil.rmtree(unfinished, ignore_errors=True)
    yield from (Message(text, warns=True) for text in doubts(record))
    yield EvaluationDone(record, records.rows_path(target))


def examination_of(task: Task, registry: Registry, device: torch.device) -> Examination:
    """The task as something that turns batches into rows."""
    asked = set(task.config.metrics)
    return Examination(
        model=parts.restored(registry, task.checkpoint).to(device),
        attack=task.attack,
        norm=task.norm,
        eps=task.eps,
        num_classes=task.checkpoint.num_classes,
        seed=derive("evaluate", task.config.seed),
        kernels=task.kernels if asked & {"sa", "tr"} else {},
        gives_margins=task.gives_margins,
        attacks=bool(asked & {"rob", "sa", "tr"}),
        crafts_by_weight="tr" in asked,
        stores_log_weights=task.config.kernel != "exp",
    )


def recorded(task: Task, rows: Rows, seconds: float, images_per_second: float, device: str) -> Record:
    """Rows to the record. Everything that shaped the result is written in the result."""
    checkpoint, config = task.checkpoint, task.config
    asked = set(config.metrics)
    a_nat = measures.accuracy(rows, "clean")
    assert a_nat is not None  # clean rows are always there
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
        a_nat=a_nat,
        a_rob=measures.accuracy(rows, "uniform") if "rob" in asked else None,
        by_alpha=[
            AlphaRow(
                alpha_test=alpha,
                a_sa=measures.sampled_accuracy(rows, config.kernel, alpha) if "sa" in asked else None,
                a_tr=measures.crafted_accuracy(rows, config.kernel, alpha) if "tr" in asked else None,
            )
            for alpha in (task.kernels if asked & {"sa", "tr"} else ())
        ],
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
