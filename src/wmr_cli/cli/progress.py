"""A walk's events as a bar on a terminal, as plain lines elsewhere; what is a result is handed on."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..workflows.events import EpochDone, EvaluationStarted, Event, ImagesDone, Message, StepDone, TrainingStarted
from .console import messages, say

Result = TypeVar("Result")


def follow(events: Iterable[Event], result: type[Result], *, quiet: bool = False) -> Iterator[Result]:
    """Draw the progress of a walk on stderr and yield its results."""
    console = messages(quiet)
    if quiet or not console.is_terminal:
        plain = PlainView(quiet)
        for event in events:
            if isinstance(event, result):
                yield event
            else:
                plain.draw(event)
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True) as progress:
        bars = BarView(progress)
        for event in events:
            if isinstance(event, result):
                bars.clear()
                yield event
            else:
                bars.draw(event)


@contextmanager
def resumable(quiet: bool) -> Iterator[None]:
    """An interruption ends with the way back."""
    try:
        yield
    except KeyboardInterrupt:
        say("interrupted; the same command with --resume goes on from what is saved", quiet=quiet)
        raise


class BarView:
    """One bar per training run or evaluation."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None

    def clear(self) -> None:
        """A result is there: its bar has done its work."""
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = None
        self._progress.refresh()

    def draw(self, event: Event) -> None:
        match event:
            case TrainingStarted():
                total, done = event.epochs * event.steps_per_epoch, event.epoch * event.steps_per_epoch
                self._task = self._progress.add_task("training", total=total, completed=done, rate="")
            case StepDone() if self._task is not None:
                self._progress.advance(self._task)
            case EpochDone() if self._task is not None:
                self._progress.update(
                    self._task, description=f"epoch {event.epoch}/{event.epochs}", rate=_rate(event.entry["images_per_second"])
                )
                if "val_a_rob" in event.entry:
                    self._progress.console.print(escape(epoch_line(event)))
            case EvaluationStarted():
                self._task = self._progress.add_task(escape(event.label), total=event.total, rate="")
            case ImagesDone() if self._task is not None:
                self._progress.update(self._task, completed=event.done, rate=_rate(self._progress.tasks[self._task].speed))
            case Message():
                self._progress.console.print(("[yellow]warning:[/] " if event.warns else "") + escape(event.text), soft_wrap=True)


class PlainView:
    """A line per epoch, or per tenth of an evaluation."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._tenths = 0

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
    """`epoch 10/50: loss 0.912, val A_nat 97.0 A_rob 71.0 A_sa 52.1, 2,310 images/s`."""
    entry: dict[str, Any] = event.entry
    shares = [f"{name} {100 * entry[key]:.1f}" for key, name in _SHARES.items() if key in entry]
    held_out = f", held-out {' '.join(shares)}" if shares else ""
    return f"epoch {event.epoch}/{event.epochs}: loss {entry['loss']:.3f}{held_out}, {_rate(entry['images_per_second'])}"


_SHARES = {"val_a_nat": "A_nat", "val_a_rob": "A_rob", "val_a_sa": "A_sa", "val_a_tr": "A_tr"}


def _rate(images_per_second: float | None) -> str:
    return "" if images_per_second is None else f"{images_per_second:,.0f} images/s"
