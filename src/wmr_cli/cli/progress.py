"""Draw the events of a training or evaluation: bars on a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ..core.contexts import watch_parts, watch_progress
from ..events import (
    AttackPartStarted,
    EpochDone,
    EvaluationStarted,
    Event,
    ImagesDone,
    Message,
    StepDone,
    TrainingStarted,
)
from ..reporting.tables.details import VALIDATION_HEADINGS
from .console import Terminated, as_line, messages, say
from .flags import spell_flags

Result = TypeVar("Result")
SILENT_SECONDS = 2
"""Plain lines report a wait such as a download only after this time."""
PART_SECONDS = 10
"""Plain lines report a part of an attack when it first runs, then at most this often."""


def follow(
    events: Iterable[Event], *results: type[Result], quiet: bool = False
) -> Iterator[Result]:
    """Draw progress events on stderr; yield the results among them."""
    with _open_view(quiet) as view, ExitStack() as stack:
        stack.enter_context(watch_progress(view.watch))
        # parts start while the workflow computes, so it cannot yield them itself
        stack.enter_context(watch_parts(lambda *part: view.draw(AttackPartStarted(*part))))
        for event in events:
            if isinstance(event, results):
                # the caller prints the result, which would be mixed with a live bar
                view.clear()
                yield event
            else:
                view.draw(event)


@contextmanager
def waiting(quiet: bool) -> Iterator[None]:
    """Draw downloads and other long waits inside the block."""
    with _open_view(quiet) as view, watch_progress(view.watch):
        yield


@contextmanager
def _open_view(quiet: bool) -> "Iterator[BarView | PlainView]":
    console = messages(quiet)
    if quiet or not console.is_terminal:
        yield PlainView(quiet)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    # transient: the bars make way for the result
    with Progress(*columns, console=console, transient=True) as progress:
        yield BarView(progress)


@contextmanager
def resumable(quiet: bool) -> Iterator[None]:
    """Name the flag that continues the work if the block is interrupted."""
    try:
        yield
    except (KeyboardInterrupt, Terminated):
        say("interrupted; repeat the command with `resume=True` to continue", quiet=quiet)
        raise


class BarView:
    """Bars: one per evaluation and one of its attack's part; for training, epochs and steps."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None
        self._epoch: TaskID | None = None
        self._part: TaskID | None = None
        self._validation = ""
        self._waits: dict[str, TaskID] = {}

    def clear(self) -> None:
        """Remove the bars of what has ended."""
        for task in (self._task, self._epoch, self._part):
            if task is not None:
                self._progress.remove_task(task)
        self._task = None
        self._epoch = None
        self._part = None
        self._progress.refresh()

    def watch(self, name: str, done: int, total: int | None) -> None:
        """Draw a wait as a bar of its own until it ends."""
        if name not in self._waits:
            self._waits[name] = self._progress.add_task(as_line(name), rate="")
        self._progress.update(self._waits[name], completed=done, total=total)
        if done == total:
            self._progress.remove_task(self._waits.pop(name))

    def draw(self, event: Event) -> None:
        match event:
            case TrainingStarted():
                self._start_training(event)
            case StepDone() if self._task is not None and self._epoch is not None:
                self._draw_step(event, self._task, self._epoch)
            case EpochDone() if self._task is not None and self._epoch is not None:
                self._draw_epoch(event, self._task, self._epoch)
            case EvaluationStarted():
                self._task = self._progress.add_task(
                    as_line(event.label), total=event.total, rate=""
                )
            case ImagesDone() if self._task is not None:
                rate = _format_rate(self._speed(self._task))
                self._progress.update(self._task, completed=event.done, rate=rate)
                if self._part is not None:
                    self._progress.update(self._part, visible=False)
            # not for the validation of a training, which has bars of its own
            case AttackPartStarted() if self._task is not None and self._epoch is None:
                self._draw_part(event)
            case Message():
                mark = "[yellow]warning:[/] " if event.is_warning else ""
                line = mark + as_line(spell_flags(event.text))
                self._progress.console.print(line, soft_wrap=True)

    def _start_training(self, event: TrainingStarted) -> None:
        steps = event.steps_per_epoch
        # a resumed run begins in the middle
        done = event.epoch * steps + event.step
        self._task = self._progress.add_task(
            "training", total=event.epochs * steps, completed=done, rate=""
        )
        self._epoch = self._progress.add_task("epoch", total=steps, completed=event.step, rate="")

    def _draw_step(self, event: StepDone, task: TaskID, epoch: TaskID) -> None:
        self._progress.advance(task)
        self._progress.advance(epoch)
        speed = self._speed(task)
        # the bar counts steps, users compare images per second
        rate = _format_rate(None if speed is None else speed * event.images)
        loss = "" if event.loss is None else f"loss {event.loss:.3f}, "
        self._progress.update(epoch, description=f"epoch {event.epoch}", rate=f"{loss}{rate}")

    def _draw_epoch(self, event: EpochDone, task: TaskID, epoch: TaskID) -> None:
        # epochs without validation keep showing the last result
        self._validation = _format_validation(event.entry) or self._validation
        description = f"{event.epoch} of {event.epochs} epochs"
        self._progress.update(task, description=description, rate=self._validation)
        self._progress.reset(epoch)
        # validation results stay on the screen as lines above the bars
        if "val_a_rob" in event.entry:
            self._progress.console.print(as_line(format_epoch(event)))

    def _draw_part(self, event: AttackPartStarted) -> None:
        if self._part is None:
            self._part = self._progress.add_task("", rate="")
        # the time of a bar is that of the part
        self._progress.reset(
            self._part,
            description=as_line(format_part(event)),
            completed=event.total - event.images,
            total=event.total,
            visible=True,
        )

    def _speed(self, wanted: TaskID) -> float | None:
        """Return the steps or images per second of a bar, if it is known yet."""
        # rich has no lookup by id
        return next(task.speed for task in self._progress.tasks if task.id == wanted)


class PlainView:
    """Lines: one per epoch, or per tenth of an evaluation."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._tenths = 0
        self._is_evaluating = False
        self._parts: set[str] = set()
        self._part_printed = 0.0
        self._waits: dict[str, tuple[float, int]] = {}

    def clear(self) -> None:
        """Do nothing: printed lines stay."""

    def watch(self, name: str, done: int, total: int | None) -> None:
        """Print a line per tenth of a wait that takes long."""
        started, printed_tenths = self._waits.setdefault(name, (time.monotonic(), 0))
        tenths = 10 * done // total if total else 0
        is_long = time.monotonic() - started > SILENT_SECONDS
        if tenths > printed_tenths and is_long:
            self._waits[name] = (started, tenths)
            say(f"{name}: {done:,} of {total:,}", quiet=self._quiet)

    def draw(self, event: Event) -> None:
        match event:
            case EpochDone():
                say(format_epoch(event), quiet=self._quiet)
            case EvaluationStarted():
                self._tenths = 0
                self._is_evaluating = True
                self._parts.clear()
                say(f"{event.label}: {event.total} images", quiet=self._quiet)
            case AttackPartStarted() if self._is_evaluating:
                self._print_part(event)
            case ImagesDone():
                # logs of batch jobs stay short: ten lines per evaluation
                tenths = 10 * event.done // event.total
                if tenths > self._tenths:
                    percent = 100 * event.done // event.total
                    say(f"{percent} %: {event.done} of {event.total} images", quiet=self._quiet)
                self._tenths = max(tenths, self._tenths)
            case Message():
                say(event.text, quiet=self._quiet, is_warning=event.is_warning)

    def _print_part(self, event: AttackPartStarted) -> None:
        now = time.monotonic()
        # the first time always: the part may take hours
        if event.name not in self._parts or now - self._part_printed >= PART_SECONDS:
            self._parts.add(event.name)
            self._part_printed = now
            say(format_part(event), quiet=self._quiet)


def format_part(event: AttackPartStarted) -> str:
    """Return `apgd-t: 120 of 512 images left`."""
    return f"{event.name}: {event.images:,} of {event.total:,} images left"


def format_epoch(event: EpochDone) -> str:
    """Return `epoch 10/50: loss 0.912, validation A_nat 97.0 A_rob 71.0, 2,310 images/s`."""
    entry = event.entry
    parts = [f"loss {entry['loss']:.3f}"]
    validation = _format_validation(entry)
    if validation:
        parts.append(f"validation {validation}")
    parts.append(_format_rate(entry["images_per_second"]))
    return f"epoch {event.epoch}/{event.epochs}: {', '.join(parts)}"


def _format_validation(entry: dict[str, Any]) -> str:
    """Return `A_nat 97.0 A_rob 71.0 A_sa 52.1`, or nothing for an epoch without validation."""
    accuracies = [
        f"{name} {100 * entry[key]:.1f}"
        for key, name in VALIDATION_HEADINGS.items()
        if key in entry
    ]
    return " ".join(accuracies)


def _format_rate(images_per_second: float | None) -> str:
    return "" if images_per_second is None else f"{images_per_second:,.0f} images/s"
