"""A walk's events as a bar on a terminal, as plain lines elsewhere; what is a result is handed on."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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

from ..core.contexts import watch_progress
from ..events import (
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
PATIENCE = 2
"""Seconds that may pass without a word."""


def follow(
    events: Iterable[Event], *results: type[Result], quiet: bool = False
) -> Iterator[Result]:
    """Draw the progress of a walk on stderr and yield its results."""
    with _view(quiet) as view, watch_progress(view.watch):
        for event in events:
            if isinstance(event, results):
                view.clear()
                yield event
            else:
                view.draw(event)


@contextmanager
def waiting(quiet: bool) -> Iterator[None]:
    """Draw the long waits inside."""
    with _view(quiet) as view, watch_progress(view.watch):
        yield


@contextmanager
def _view(quiet: bool) -> "Iterator[BarView | PlainView]":
    """Bars on a terminal, plain lines elsewhere."""
    console = messages(quiet)
    if quiet or not console.is_terminal:
        yield PlainView(quiet)
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True) as progress:
        yield BarView(progress)


@contextmanager
def resumable(quiet: bool) -> Iterator[None]:
    """An interruption ends with the way back."""
    try:
        yield
    except (KeyboardInterrupt, Terminated):
        say("interrupted; the same command with --resume goes on from what is saved", quiet=quiet)
        raise


class BarView:
    """One bar per evaluation; for training one of its epochs and one of the steps of the epoch in hand."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None
        self._epoch: TaskID | None = None
        self._held_out = ""
        self._waits: dict[str, TaskID] = {}

    def clear(self) -> None:
        """A result is there: its bar has done its work."""
        for task in (self._task, self._epoch):
            if task is not None:
                self._progress.remove_task(task)
        self._task = self._epoch = None
        self._progress.refresh()

    def watch(self, what: str, done: int, total: int | None) -> None:
        """A bar of its own for every wait, as long as it lasts."""
        if what not in self._waits:
            self._waits[what] = self._progress.add_task(as_line(what), rate="")
        self._progress.update(self._waits[what], completed=done, total=total)
        if done == total:
            self._progress.remove_task(self._waits.pop(what))

    def draw(self, event: Event) -> None:
        match event:
            case TrainingStarted():
                done = event.epoch * event.steps_per_epoch + event.step
                self._task = self._progress.add_task(
                    "training", total=event.epochs * event.steps_per_epoch, completed=done, rate=""
                )
                self._epoch = self._progress.add_task(
                    "epoch", total=event.steps_per_epoch, completed=event.step, rate=""
                )
            case StepDone() if self._task is not None and self._epoch is not None:
                self._progress.advance(self._task)
                self._progress.advance(self._epoch)
                speed = next(task.speed for task in self._progress.tasks if task.id == self._task)
                told = f"loss {event.loss:.3f}, {_rate(speed and speed * event.images)}"
                self._progress.update(self._epoch, description=f"epoch {event.epoch}", rate=told)
            case EpochDone() if self._task is not None and self._epoch is not None:
                self._held_out = _held_out(event.entry) or self._held_out
                self._progress.update(
                    self._task,
                    description=f"{event.epoch} of {event.epochs} epochs",
                    rate=self._held_out,
                )
                self._progress.reset(self._epoch)
                if "val_a_rob" in event.entry:
                    self._progress.console.print(as_line(epoch_line(event)))
            case EvaluationStarted():
                self._task = self._progress.add_task(
                    as_line(event.label), total=event.total, rate=""
                )
            case ImagesDone() if self._task is not None:
                speed = next(task.speed for task in self._progress.tasks if task.id == self._task)
                self._progress.update(self._task, completed=event.done, rate=_rate(speed))
            case Message():
                self._progress.console.print(
                    ("[yellow]warning:[/] " if event.warns else "")
                    + as_line(spell_flags(event.text)),
                    soft_wrap=True,
                )


class PlainView:
    """A line per epoch, or per tenth of an evaluation."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._tenths = 0
        self._waits: dict[str, tuple[float, int]] = {}

    def clear(self) -> None:
        """Lines stay where they are."""

    def watch(self, what: str, done: int, total: int | None) -> None:
        """A line per tenth of a wait that is long enough to wonder about."""
        started, said = self._waits.setdefault(what, (time.monotonic(), 0))
        tenths = 10 * done // total if total else 0
        if tenths > said and time.monotonic() - started > PATIENCE:
            self._waits[what] = started, tenths
            say(f"{what}: {done:,} of {total:,}", quiet=self._quiet)

    def draw(self, event: Event) -> None:
        match event:
            case EpochDone():
                say(epoch_line(event), quiet=self._quiet)
            case EvaluationStarted():
                self._tenths = 0
                say(f"{event.label}: {event.total} images", quiet=self._quiet)
            case ImagesDone():
                tenths = 10 * event.done // event.total
                if tenths > self._tenths:
                    say(f"{10 * tenths} %: {event.done} of {event.total} images", quiet=self._quiet)
                self._tenths = max(tenths, self._tenths)
            case Message():
                say(event.text, quiet=self._quiet, warns=event.warns)


def epoch_line(event: EpochDone) -> str:
    """`epoch 10/50: loss 0.912, held-out A_nat 97.0 A_rob 71.0 A_sa 52.1, 2,310 images/s`."""
    entry, held_out = event.entry, _held_out(event.entry)
    said = f", held-out {held_out}" if held_out else ""
    return f"epoch {event.epoch}/{event.epochs}: loss {entry['loss']:.3f}{said}, {_rate(entry['images_per_second'])}"


def _held_out(entry: dict[str, Any]) -> str:
    """`A_nat 97.0 A_rob 71.0 A_sa 52.1`, of an epoch that looked at held-out images."""
    return " ".join(
        f"{name} {100 * entry[key]:.1f}"
        for key, name in VALIDATION_HEADINGS.items()
        if key in entry
    )


def _rate(images_per_second: float | None) -> str:
    return "" if images_per_second is None else f"{images_per_second:,.0f} images/s"
