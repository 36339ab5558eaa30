"""Estimate what an evaluation costs, from a few of its batches. Nothing is written.

The passes of an attack are counted on a network that costs almost nothing and whose predictions
never change, so that an attack that stops early takes its largest number of steps. Time is that of
attacked batches of the real network. A batch that takes too long is abandoned: what its passes took
so far, relative to passes alone, then stands for the rest.
"""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from ..config import EvaluateConfig
from ..core.contexts import evaluating, exact_float32
from ..core.nn.fusion import SAMPLE_SIZE
from ..core.protocols import Batch
from ..events import EvaluationEstimated, Event, Message
from ..registry import Registry
from ..reporting.costs import EvaluationCost, TaskCost
from ..reporting.requirements import Requirement
from ..runtime import components
from ..runtime.accelerators import find_peak_memory, synchronize
from ..runtime.fabric import Hardware, Runtime, launch
from ..spec import Spec
from ..storage import records
from .evaluator import Evaluator, choose_chunk_size, make_evaluator
from .importing import open_checkpoint
from .run import Job, choose_folder, count_images, make_jobs
from .tasks import EvaluationTask, check_requirements, plan_tasks

MAX_SECONDS = 10.0
"""Time after which a batch is abandoned, and no other is started."""
TIMED_PASSES = 5
MAX_TIMED_UNITS = 3
MIN_SAMPLED_IMAGES = 8
"""Fewer images do not show how many steps an attack takes until it misclassifies."""
VERIFIED_IMAGES = 8
COUNTED_IMAGES = 2
"""Passes per image do not depend on the number of images."""
WITHSTANDING_MARGIN = 5.0
"""Logit margin of a network that no attack changes; larger ones would have gradients of 0."""


Unit = list[Batch]
"""Batches that are attacked together: one, unless the attack gathers images."""


class WithstandingNetwork(nn.Module):
    """Classifies every image as class 0, with small gradients: (N, C, H, W) to (N, K)."""

    logits: Tensor
    directions: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        logits = torch.zeros(num_classes)
        logits[0] = WITHSTANDING_MARGIN
        self.register_buffer("logits", logits)
        # distinct: targeted attacks rank the other classes
        self.register_buffer("directions", torch.linspace(0, 0.1, num_classes))

    def forward(self, images: Tensor) -> Tensor:
        brightness = images.flatten(1).mean(dim=1, keepdim=True)
        return self.logits + brightness * self.directions


class OutOfTime(BaseException):
    """A batch takes too long. Not an Exception, which attacks of plugins may catch."""


@dataclass
class PassCounter:
    """Images that passed forward and backward through a network."""

    deadline: float = math.inf
    """moment after which the next forward pass raises `OutOfTime`"""
    forward: int = 0
    backward: int = 0

    @contextmanager
    def watch(self, network: nn.Module) -> Iterator[None]:
        """Count passes inside."""
        handle = network.register_forward_hook(self._count)
        try:
            yield
        finally:
            handle.remove()

    def per_image(self, images: int) -> "Passes":
        """Return the passes of each of this number of images."""
        return Passes(self.forward / images, self.backward / images)

    def _count(self, network: nn.Module, arguments: tuple[Tensor, ...], logits: Tensor) -> None:
        self.forward += len(logits)
        if logits.requires_grad:
            # called once per backward pass
            logits.register_hook(self._count_backward)
        if time.perf_counter() > self.deadline:
            raise OutOfTime

    def _count_backward(self, gradient: Tensor) -> None:
        self.backward += len(gradient)


@dataclass(frozen=True)
class Passes:
    """Forward and backward passes, or the seconds of one of each, per image."""

    forward: float
    backward: float

    def seconds(self, each: "Passes") -> float:
        """Return the seconds of these passes at the seconds of `each`."""
        return self.forward * each.forward + self.backward * each.backward


@dataclass
class Estimator:
    """Measures the tasks of one checkpoint, and keeps what they share."""

    registry: Registry
    runtime: Runtime
    counted: dict[tuple[str, str], Passes] = field(default_factory=dict)
    """Passes by norm and spec: they depend neither on eps nor on the step size."""
    pass_seconds: Passes | None = None
    verified: set[tuple[str, float]] = field(default_factory=set)
    verifier_seconds: float = 0.0

    def measure(self, task: EvaluationTask, jobs: Sequence[Job], *, is_stored: bool) -> TaskCost:
        """Return the cost of a task; `jobs` are those that remain."""
        spec = Spec.parse(task.attack.spec)
        key = (task.attack.norm, str(spec.without("step", "eps")))
        if key not in self.counted:
            self.counted[key] = count_passes(task, self.runtime.device)
        passes = self.counted[key]
        images = 0 if is_stored else count_images(jobs)
        stops_early = task.attack.component.traits.stops_early
        sample = Sample(0, 1.0, None if stops_early else passes)
        each = Passes(0.0, 0.0)
        if images:
            evaluator, units = self._prepare(task, jobs[0])
            each = self._time_passes(evaluator, units[0][0])
            sample = self._attack(evaluator, units, passes, each, stops_early=stops_early)
        expected = sample.passes
        per_image = None if expected is None else expected.seconds(each) * sample.overhead
        max_per_image = passes.seconds(each) * sample.overhead
        # passes of other attacks are the same for every image
        if per_image is not None and not stops_early:
            max_per_image = per_image
        share = images / self.runtime.ranks.count
        return TaskCost(
            run=task.label.partition(" under ")[0],
            attack=task.attack.spec,
            norm=task.attack.norm,
            eps=task.attack.eps,
            images=images,
            stored=is_stored,
            forward=None if expected is None else expected.forward,
            backward=None if expected is None else expected.backward,
            max_forward=passes.forward,
            max_backward=passes.backward,
            seconds=None if per_image is None else share * per_image,
            max_seconds=share * max_per_image,
            measured_images=sample.images,
            stops_early=stops_early,
        )

    def _prepare(self, task: EvaluationTask, job: Job) -> tuple[Evaluator, list[Unit]]:
        """Return the evaluator without verifier, and a few units to attack."""
        device = self.runtime.device
        model = components.restore_model(self.registry, task.checkpoint).to(device)
        samples = task.images.first(SAMPLE_SIZE).images.to(device)
        evaluator = make_evaluator(task, model, samples)
        gathers = task.attack.component.traits.gathers_images
        sizes = [len(batch) for batch in (job.batches if gathers else job.batches[:1])]
        count = max(1, min(MAX_TIMED_UNITS, len(task.images) // sum(sizes)))
        # from all over the split: the first images of a folder all have one class
        spread = torch.linspace(0, len(task.images) - 1, count * sum(sizes)).long()
        units = [
            [
                task.images.split.batch(positions).to(device, evaluator.memory_format)
                for positions in task.images.positions[spread[number::count]].split(sizes)
            ]
            for number in range(count)
        ]
        self._time_verifier(task, evaluator, units[0][0])
        return replace(evaluator, certifier=None), units

    def _time_verifier(self, task: EvaluationTask, evaluator: Evaluator, batch: Batch) -> None:
        threat = (task.attack.norm, task.attack.eps)
        if evaluator.certifier is None or threat in self.verified:
            return
        self.verified.add(threat)
        few = batch.select(torch.arange(min(VERIFIED_IMAGES, len(batch.labels))))
        started = time.perf_counter()
        evaluator.certifier.bound_margins(few)
        synchronize(self.runtime.device)
        per_image = (time.perf_counter() - started) / len(few.labels)
        self.verifier_seconds += per_image * len(task.images) / self.runtime.ranks.count

    def _time_passes(self, evaluator: Evaluator, batch: Batch) -> Passes:
        """Return the seconds per image of one forward and one backward pass of a full batch."""
        if self.pass_seconds is None:
            device = self.runtime.device
            rounds: list[tuple[float, float]] = []
            with evaluating(evaluator.model), exact_float32():
                # the first round allocates memory and selects algorithms
                for _ in range(1 + TIMED_PASSES):
                    images = batch.images.detach().clone().requires_grad_()
                    started = time.perf_counter()
                    logits = evaluator.model(images)
                    synchronize(device)
                    middle = time.perf_counter()
                    torch.autograd.grad(logits.sum(), images)
                    synchronize(device)
                    rounds.append((middle - started, time.perf_counter() - middle))
            forward, backward = map(median, zip(*rounds[1:], strict=True))
            self.pass_seconds = Passes(forward / len(images), backward / len(images))
        return self.pass_seconds

    def _attack(
        self,
        evaluator: Evaluator,
        units: Sequence[Unit],
        passes: Passes,
        each: Passes,
        *,
        stops_early: bool,
    ) -> "Sample":
        """Attack units until the time is over, then fewer images if a unit takes too long."""
        counter = PassCounter()
        images = 0
        seconds = 0.0
        for number, unit in enumerate(units, 1):
            unit_seconds, unit_images = self._attack_unit(evaluator, unit, counter)
            seconds += unit_seconds
            images += unit_images
            # an abandoned unit has no images
            if not unit_images or seconds * (number + 1) / number > MAX_SECONDS:
                break
        # the attack's own arithmetic takes time as well
        overhead = max(1.0, seconds / Passes(counter.forward, counter.backward).seconds(each))
        if images:
            # a unit that was abandoned after others does not count
            return Sample(images, overhead, counter.per_image(images))
        if not stops_early:
            return Sample(0, overhead, passes)
        few = cut_unit(units[0], passes.seconds(each) * overhead)
        sampled = PassCounter()
        if few is not None:
            _, images = self._attack_unit(evaluator, few, sampled)
        return Sample(images, overhead, sampled.per_image(images) if images else None)

    def _attack_unit(
        self, evaluator: Evaluator, unit: Unit, counter: PassCounter
    ) -> tuple[float, int]:
        """Return the seconds of a unit, and its images; no images if it was abandoned."""
        images = 0
        started = time.perf_counter()
        counter.deadline = started + MAX_SECONDS
        with suppress(OutOfTime), counter.watch(evaluator.model):
            for rows in evaluator.evaluate_batches(unit, self.runtime.device):
                images += len(rows["index"])
        synchronize(self.runtime.device)
        is_complete = images == sum(len(batch.labels) for batch in unit)
        return time.perf_counter() - started, images if is_complete else 0


@dataclass(frozen=True)
class Sample:
    """What attacked images show about an attack."""

    images: int
    """images of complete batches; 0 if all were abandoned"""
    overhead: float
    """time relative to that of its passes alone"""
    passes: Passes | None
    """per image; None if not known"""


def cut_unit(unit: Unit, seconds_per_image: float) -> Unit | None:
    """Return one batch of images that take at most `MAX_SECONDS`; None if these are too few."""
    batch = unit[0]
    count = min(int(MAX_SECONDS / seconds_per_image), len(batch.labels))
    if count < MIN_SAMPLED_IMAGES:
        return None
    # from all over the batch, as the batch is from all over the split
    return [batch.select(torch.linspace(0, len(batch.labels) - 1, count).long())]


def count_passes(task: EvaluationTask, device: torch.device) -> Passes:
    """Return the passes per image of a task if the attack never misclassifies an image."""
    network = WithstandingNetwork(task.checkpoint.num_classes).to(device)
    images = task.images.first(COUNTED_IMAGES)
    batch = replace(images, labels=torch.zeros_like(images.labels))
    # a verifier reads the layers of the real network
    plain = replace(task, verifier=None)
    evaluator = make_evaluator(plain, network, batch.to(device).images)
    counter = PassCounter()
    with counter.watch(evaluator.model):
        list(evaluator.evaluate_batches([batch], device))
    return counter.per_image(len(batch.labels))


def estimate_evaluation(  # noqa: PLR0913 - keywords of the command, as in `evaluate`
    path: Path | None,
    config: EvaluateConfig,
    registry: Registry,
    *,
    data_dir: Path,
    hardware: Hardware,
    out: Path | None = None,
    resume: bool = False,
    requirements: Sequence[Requirement] = (),
) -> Iterator[Event]:
    """Yield events, the last one with the costs of all attacks, for the arguments of `evaluate`."""
    threads = hardware.count_threads()
    checkpoint, source = yield from open_checkpoint(path, config, registry, data_dir, threads)
    tasks = list(plan_tasks(checkpoint, config, registry, data_dir, source, threads))
    check_requirements(requirements, tasks)
    runtime = launch(hardware)
    folder = out or choose_folder(checkpoint)
    estimator = Estimator(registry, runtime)
    costs = []
    for task in tasks:
        yield Message(f"measuring a few batches of {task.label}")
        target = folder / f"{task.id}.json"
        chunk_size = choose_chunk_size(task.config.batch_size, runtime.device)
        jobs = make_jobs(task, target.with_suffix(".partial"), chunk_size)
        remaining = [job for job in jobs if not (resume and job.file.exists())]
        is_stored = target.exists() and records.rows_path(target).exists()
        costs.append(estimator.measure(task, remaining, is_stored=is_stored))
    if runtime.ranks.is_first:
        yield EvaluationEstimated(
            EvaluationCost(
                tasks=costs,
                verifier_seconds=estimator.verifier_seconds,
                device=runtime.device.type,
                batch_size=config.batch_size,
                peak_memory=find_peak_memory(runtime.device),
            )
        )
