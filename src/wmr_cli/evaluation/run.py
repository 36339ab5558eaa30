"""Measure a checkpoint under attack: one record per attack and eps, with one row per image."""

import shutil
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from pathlib import Path
from uuid import uuid4

import msgspec
from torch import Tensor

from ..config import EvaluateConfig
from ..core.contexts import seeding_generators
from ..core.data.splits import read_ahead
from ..core.nn.fusion import SAMPLE_SIZE
from ..core.rng import derive_seed
from ..errors import RunFolderError
from ..events import EvaluationDone, EvaluationStarted, Event, ImagesDone, Message
from ..measures import worst_rows
from ..registry import Registry
from ..reporting import scoring
from ..reporting.requirements import Requirement
from ..reporting.scoring import add_calibrated_repeat, list_caveats
from ..runtime import components
from ..runtime.datasets import share_hash, share_split
from ..runtime.distributed import Ranks
from ..runtime.fabric import Hardware, Runtime, launch
from ..storage import records
from ..storage.atomic import check_writable, lock_folder, refuse_link, watch_folder
from ..storage.checkpoints import IMPORTED_DEFENSE, Checkpoint
from ..storage.records import AttackFacts, Record, RepeatRow, Rows
from .evaluator import (
    Evaluator,
    add_log_weights,
    choose_chunk_size,
    make_evaluator,
    make_record,
    plan_chunks,
    stack_rows,
)
from .importing import open_checkpoint
from .sanity_checks import run_checks
from .tasks import EvaluationTask, check_requirements, plan_tasks

WORST_CASE_SPEC = "worst"
"""The attack spec of a record that holds the worst case over several attacks.

Its id is a hash that includes this word: with another word, stored records would not be found.
"""

NONDETERMINISTIC = "nondeterministic"
"""A file beside unfinished rows, if any of them needed an operation that is not deterministic."""
SHARED_FOLDER_SECONDS = 10.0
"""How long a rank waits for a file of rank 0 to appear; network file systems cache folders."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """What all tasks of one evaluation share."""

    registry: Registry
    runtime: Runtime
    folder: Path
    resume: bool
    clean_logits: dict[bytes, Tensor] = field(default_factory=dict)
    """Clean logits by image index, computed once for all attacks."""
    verified: dict[tuple[str, float], dict[bytes, Rows]] = field(default_factory=dict)
    """Rows of the verifier by image index, computed once for each norm and eps."""

    def build_evaluator(self, task: EvaluationTask) -> Evaluator:
        """Load the model of a task and build its evaluator."""
        device = self.runtime.device
        model = components.restore_model(self.registry, task.checkpoint).to(device)
        sample_images = task.images.first(SAMPLE_SIZE).images.to(device)
        evaluator = make_evaluator(task, model, sample_images)
        certifier = evaluator.certifier
        if certifier is not None:
            shared = self.verified.setdefault((task.attack.norm, task.attack.eps), {})
            certifier = replace(certifier, cache=shared)
        return replace(evaluator, clean_logits=self.clean_logits, certifier=certifier)


def evaluate(  # noqa: PLR0913 - keywords of the command
    path: Path | None,
    config: EvaluateConfig,
    registry: Registry,
    *,
    data_dir: Path,
    hardware: Hardware = Hardware(),  # noqa: B008 - frozen
    out: Path | None = None,
    resume: bool = False,
    requirements: Sequence[Requirement] = (),
) -> Iterator[Event]:
    """Yield events, with one EvaluationDone per attack and eps.

    Stored records are not measured again. Requirements that the evaluation would not measure are
    refused before the work starts.
    With `config.model` the file holds weights of another program. Without a file, the model is
    used as it is built. Several attacks with the same norm and eps give one more record: their
    worst case. Only rank 0 yields EvaluationDone.
    """
    threads = hardware.count_threads()
    checkpoint, source = yield from open_checkpoint(path, config, registry, data_dir, threads)
    # all tasks before any work: an error in the last one must not appear after hours
    tasks = list(plan_tasks(checkpoint, config, registry, data_dir, source, threads))
    check_requirements(requirements, tasks)
    runtime = launch(hardware)
    folder = out or choose_folder(checkpoint)
    # a folder that the user names may be a link
    if out is None:
        refuse_link(folder)
    session = Session(registry=registry, runtime=runtime, folder=folder, resume=resume)
    # from here on the ranks of a machine hold one copy of the images
    split = share_split(lambda: tasks[0].images.split, runtime.ranks)
    split = share_hash(split, runtime.ranks)
    # frees this rank's own copy
    del source
    by_threat: dict[tuple[str, float], list[tuple[EvaluationTask, Record]]] = {}
    for planned in tasks:
        task = replace(planned, images=replace(planned.images, split=split))
        for text in task.list_warnings():
            yield Message(text, is_warning=True)
        record = yield from load_or_measure(task, session)
        if record is not None:
            by_threat.setdefault((task.attack.norm, task.attack.eps), []).append((task, record))
    for measured in by_threat.values():
        if len(measured) > 1:
            yield from record_worst_case(measured, folder)


def choose_folder(checkpoint: Checkpoint) -> Path:
    """Return `evaluations/` of a run, or `<stem>.evaluations/` beside a bare checkpoint."""
    folder = checkpoint.path.parent
    # weights of another program may have a config.json beside them as well
    is_run = checkpoint.defense != IMPORTED_DEFENSE and (folder / "config.json").exists()
    return folder / "evaluations" if is_run else checkpoint.path.with_suffix(".evaluations")


def load_or_measure(
    task: EvaluationTask, session: Session
) -> Generator[Event, None, Record | None]:
    """Return the record of a task, loaded or measured; None on all ranks but rank 0."""
    ranks = session.runtime.ranks
    target = session.folder / f"{task.id}.json"
    # rank 0 decides for all: another process may write the record between two checks
    is_stored = ranks.broadcast(target.exists() and records.rows_path(target).exists())
    record = None
    if not is_stored:
        record = yield from measure(task, session, target)
    if ranks.is_first:
        record = record or records.load(target)
        yield from announce_record(record, target, is_stored=is_stored)
    return record


def announce_record(record: Record, target: Path, *, is_stored: bool) -> Iterator[Event]:
    """Yield the caveats of a record, then the record."""
    for text in list_caveats(record):
        yield Message(text, is_warning=True)
    yield EvaluationDone(record, records.rows_path(target), stored=is_stored)


def measure(
    task: EvaluationTask, session: Session, target: Path
) -> Generator[Event, None, Record | None]:
    """Evaluate the images in chunks shared among the ranks, then make the record on rank 0."""
    runtime = session.runtime
    ranks = runtime.ranks
    evaluator = session.build_evaluator(task)
    unfinished = target.with_suffix(".partial")
    chunk_size = choose_chunk_size(task.config.batch_size, runtime.device)
    jobs = make_jobs(task, unfinished, chunk_size)
    yield EvaluationStarted(task.label, count_images(jobs))
    with ExitStack() as stack:
        if ranks.is_first:
            check_writable(target)
            refuse_link(unfinished)
            stack.enter_context(lock_folder(unfinished))
            remove_stale_files(unfinished, jobs if session.resume else [])
        ranks.barrier()
        check_shared_folder(unfinished, ranks)
        if not ranks.is_first:
            # rank 0 holds the lock; the others only refuse to write if the folder is moved
            stack.enter_context(watch_folder(unfinished))
        started = time.perf_counter()
        num_evaluated = yield from run_jobs(task, evaluator, jobs, runtime)
        # also a barrier: rank 0 reads the files of all ranks
        is_nondeterministic = ranks.max(int(bool(evaluator.nondeterministic)))
        seconds = time.perf_counter() - started
        # rank 0 reads the chunks of all ranks from the folder
        if not ranks.is_first:
            return None
        rows = add_log_weights(task, load_rows_of_seed(jobs, task.config.seed))
        record = make_record(
            task,
            rows,
            repeats=score_repeats(task, jobs) if task.config.repeats > 1 else [],
            seconds=seconds,
            # of all ranks: each evaluates about as many images as rank 0
            images_per_second=ranks.count * num_evaluated / seconds,
            device=runtime.device.type,
            # the file is that of chunks from before an interruption
            deterministic=not (is_nondeterministic or (unfinished / NONDETERMINISTIC).exists()),
        )
        if task.config.checks:
            yield Message("checking whether the attack was weak rather than the model strong")
            seed = derive_seed("checks", task.config.seed)
            with seeding_generators(runtime.device, seed):
                checks = list(run_checks(task, session.registry, evaluator, rows, runtime.device))
            record = msgspec.structs.replace(record, checks=checks)
        records.save(target, record, records.drop_logits(rows) if task.is_compact else rows)
        # last: after a crash before this line, the chunks are complete and can be resumed
        shutil.rmtree(unfinished, ignore_errors=True)
    return record


def check_shared_folder(folder: Path, ranks: Ranks) -> None:
    """Raise on all ranks unless all of them see one folder: rank 0 reads all rows from it."""
    if ranks.count == 1:
        return
    # a random name: every node may have a folder of this path from an earlier attempt
    nonce = folder / f"{ranks.broadcast(uuid4().hex)}.nonce"
    with ExitStack() as stack:
        if ranks.is_first:
            nonce.touch()
            stack.callback(nonce.unlink, missing_ok=True)
        ranks.barrier()
        if not _appears(nonce):
            raise RunFolderError(
                f"rank {ranks.index} does not see the folder of rank 0: {folder}",
                hint="set `out` to a folder that all nodes share",
            )
        ranks.barrier()


def _appears(path: Path) -> bool:
    """Whether a path exists, now or after the file system has updated its caches."""
    deadline = time.monotonic() + SHARED_FOLDER_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


@dataclass(frozen=True)
class Job:
    """A chunk of images under one seed of the attack. `file` holds its rows once it is done."""

    seed: int
    batches: tuple[Tensor, ...]
    """Positions of the images of each batch."""
    file: Path

    def __len__(self) -> int:
        return sum(len(batch) for batch in self.batches)


def make_jobs(task: EvaluationTask, folder: Path, chunk_size: int) -> list[Job]:
    """Return all chunks of all seeds, in a fixed order.

    A file is named after its images and seed, so that files of other chunk sizes are not reused.
    """
    chunks = plan_chunks(
        task.images.positions,
        task.config.batch_size,
        chunk_size,
        gathers=task.gathers_images,
    )
    sizes = [sum(len(batch) for batch in chunk) for chunk in chunks]
    bounds = list(pairwise([0, *accumulate(sizes)]))
    first_seed = task.config.seed
    jobs = []
    for seed in range(first_seed, first_seed + task.config.repeats):
        suffix = "" if seed == first_seed else f"-seed{seed}"
        for chunk, (start, stop) in zip(chunks, bounds, strict=True):
            file = folder / f"{start:08d}-{stop:08d}{suffix}.safetensors"
            jobs.append(Job(seed, chunk, file))
    return jobs


def count_images(jobs: Sequence[Job]) -> int:
    """Return how many images these jobs have, once per seed."""
    return sum(len(job) for job in jobs)


def remove_stale_files(folder: Path, resumed: Sequence[Job]) -> None:
    """Delete rows of an earlier attempt, except readable ones of the jobs that are resumed."""
    sizes = {job.file: len(job) for job in resumed}
    for file in folder.glob("*.safetensors"):
        if file not in sizes or not records.has_valid_rows(file, sizes[file]):
            file.unlink()
    if not resumed:
        (folder / NONDETERMINISTIC).unlink(missing_ok=True)


def run_jobs(
    task: EvaluationTask, evaluator: Evaluator, jobs: Sequence[Job], runtime: Runtime
) -> Generator[Event, None, int]:
    """Run this rank's jobs that have no file yet. Return how many images this rank evaluated."""
    ranks = runtime.ranks
    total = count_images(jobs)
    num_evaluated = 0
    # every n-th job: repeats and chunks are spread evenly
    for job in jobs[ranks.index :: ranks.count]:
        parts: list[Rows] = []
        if not job.file.exists():
            seeded = replace(evaluator, seed=derive_seed("evaluate", job.seed))
            loaded = read_ahead(task.images.split, job.batches)
            for part in seeded.evaluate_batches(loaded, runtime.device):
                parts.append(part)
                num_evaluated += len(part["index"])
                in_this_job = sum(len(part["index"]) for part in parts)
                yield ImagesDone(_count_finished(jobs) + in_this_job, total)
        if parts:
            rows = stack_rows(parts)
            if job.seed != task.config.seed:
                # repeats are scored and deleted: keep only the rows that their scores need
                needs_logits = task.compares_images or task.is_calibrated
                rows = scoring.keep_scoring_rows(rows, needs_logits=needs_logits)
            # before the rows: this rank or another may resume from them
            if evaluator.nondeterministic:
                (job.file.parent / NONDETERMINISTIC).touch()
            records.save_rows(job.file, rows)
        yield ImagesDone(_count_finished(jobs), total)
    return num_evaluated


def _count_finished(jobs: Sequence[Job]) -> int:
    """Return how many images are done, on any rank."""
    return count_images([job for job in jobs if job.file.exists()])


def load_rows_of_seed(jobs: Sequence[Job], seed: int) -> Rows:
    """Load the rows of all images under one seed."""
    return stack_rows([records.load_rows(job.file) for job in jobs if job.seed == seed])


def score_repeats(task: EvaluationTask, jobs: Sequence[Job]) -> list[RepeatRow]:
    """Compute the accuracies under each seed of the attack."""
    repeats = []
    for seed in dict.fromkeys(job.seed for job in jobs):
        rows = add_log_weights(task, load_rows_of_seed(jobs, seed))
        repeat = scoring.score_repeat(rows, task.config, list(task.kernels), seed)
        if task.is_calibrated:
            repeat = add_calibrated_repeat(repeat, rows, task.config.kernel)
        repeats.append(repeat)
    return repeats


def _all_deterministic(found: Sequence[Record]) -> bool | None:
    """Return whether all records are deterministic, or None if that is not known."""
    states = {record.deterministic for record in found}
    if None in states:
        return None
    return False not in states


def record_worst_case(
    measured: Sequence[tuple[EvaluationTask, Record]], folder: Path
) -> Iterator[Event]:
    """Record the worst case of each image over several attacks with the same norm and eps."""
    ids = [record.id for _, record in measured]
    # sorted: the order of attacks on the command line does not matter
    target = folder / f"{records.record_id({WORST_CASE_SPEC: sorted(ids)})}.json"
    is_stored = target.exists()
    if is_stored:
        record = records.load(target)
    else:
        parts = [records.load_rows(records.rows_path(folder / f"{name}.json")) for name in ids]
        task, first = measured[0]
        rows = add_log_weights(task, worst_rows(parts))
        seconds = sum(record.seconds for _, record in measured)
        plugins: dict[str, str] = {}
        # any attack may come from a plugin
        for _, part in measured:
            plugins |= part.plugins
        record = make_record(
            task,
            rows,
            repeats=[],
            seconds=seconds,
            images_per_second=first.dataset.n / seconds,
            device=first.device,
            deterministic=_all_deterministic([record for _, record in measured]),
        )
        record = msgspec.structs.replace(
            record,
            id=target.stem,
            attack=AttackFacts(
                spec=WORST_CASE_SPEC,
                seed=first.attack.seed,
                restarts=1,
                of=ids,
                draws=first.attack.draws,
                draw_rule=first.attack.draw_rule,
            ),
            plugins=plugins,
            # rows are chosen by lowest margin, which need not be the largest loss
            dro=[],
        )
        records.save(target, record, rows)
    yield from announce_record(record, target, is_stored=is_stored)
