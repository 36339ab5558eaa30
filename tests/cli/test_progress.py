"""Long waits are shown: as a bar on a terminal, as a line per tenth elsewhere."""

import io
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from rich.console import Console

from wmr_cli.cli import progress
from wmr_cli.cli.app import FailureReport
from wmr_cli.cli.console import SHOW_CURSOR
from wmr_cli.core.contexts import report_part, report_progress, watch_progress
from wmr_cli.events import EvaluationStarted, ImagesDone, Message, TrainingStarted
from wmr_cli.runtime.failures import FAILED_STATUS, Failure


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=120, color_system=None)
    monkeypatch.setattr(progress, "messages", lambda quiet=False: console)
    return stream


def test_a_wait_off_a_terminal_is_a_line_per_tenth(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SILENT_SECONDS", -1)
    with progress.waiting(quiet=False):
        for done in range(101):
            report_progress("downloading x, MB", done, 100)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"downloading x, MB: {10 * tenth} of 100" for tenth in range(1, 11)]


def test_a_short_wait_is_not_mentioned(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.waiting(quiet=False):
        for done in range(101):
            report_progress("reading", done, 100)
    assert capsys.readouterr().err == ""


def test_quiet_is_quiet(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SILENT_SECONDS", -1)
    with progress.waiting(quiet=True):
        report_progress("reading", 10, 10)
    assert capsys.readouterr().err == ""


def test_a_wait_on_a_terminal_is_a_bar(terminal: io.StringIO) -> None:
    with progress.waiting(quiet=False):
        report_progress("downloading [x], MB", 3, 10)
        report_progress("downloading [x], MB", 7, 10)
    assert "downloading [x], MB" in terminal.getvalue()
    assert "7/10" in terminal.getvalue()


def test_a_wait_of_unknown_length_is_a_bar_too(terminal: io.StringIO) -> None:
    with progress.waiting(quiet=False):
        report_progress("unpacking", 0, None)
    assert "unpacking" in terminal.getvalue()


def test_waits_are_drawn_between_events(terminal: io.StringIO) -> None:
    def events() -> Iterator[Any]:
        yield Message("first")
        report_progress("reading images", 5, 9)
        yield 42

    assert list(progress.follow(events(), int)) == [42]
    assert "first" in terminal.getvalue()
    assert "reading images" in terminal.getvalue()


def test_one_evaluation_after_the_other_has_its_bar(terminal: io.StringIO) -> None:
    def events() -> Iterator[Any]:
        for number in range(3):
            report_progress("reading", 1, 1)
            yield EvaluationStarted(f"evaluation {number}", 4)
            for done in range(5):
                yield ImagesDone(done, 4)
            yield number

    assert list(progress.follow(events(), int)) == [0, 1, 2]
    assert "evaluation 2" in terminal.getvalue()


def evaluate_in_parts() -> Iterator[Any]:
    """Yield the events of an evaluation of six images, whose attack has two parts."""
    yield EvaluationStarted("evaluation", 6)
    report_part("apgd-ce", 4, 4)
    report_part("square", 1, 4)
    yield ImagesDone(4, 6)
    report_part("apgd-ce", 2, 2)
    yield ImagesDone(6, 6)
    yield 42


def test_the_running_part_of_an_attack_has_a_bar(terminal: io.StringIO) -> None:
    assert list(progress.follow(evaluate_in_parts(), int)) == [42]
    drawn = terminal.getvalue()
    assert drawn.index("apgd-ce: 4 of 4") < drawn.index("square: 1 of 4")
    assert drawn.index("square: 1 of 4") < drawn.index("apgd-ce: 2 of 2")


def test_a_line_off_a_terminal_has_the_fraction_that_is_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    list(progress.follow(evaluate_in_parts(), int))
    printed = capsys.readouterr().err.splitlines()
    assert [line for line in printed if "%" in line] == [
        "66 %: 4 of 6 images",
        "100 %: 6 of 6 images",
    ]


@pytest.mark.parametrize(("interval", "lines"), [(0, 3), (60, 2)])
def test_parts_of_an_attack_off_a_terminal_are_lines_at_intervals(
    interval: int, lines: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PART_SECONDS", interval)
    list(progress.follow(evaluate_in_parts(), int))
    printed = capsys.readouterr().err.splitlines()
    assert sum("apgd-ce" in line or "square" in line for line in printed) == lines


def test_parts_of_an_attack_that_validates_a_training_are_not_drawn(
    terminal: io.StringIO,
) -> None:
    def events() -> Iterator[Any]:
        yield TrainingStarted(0, 0, 1, 1)
        report_part("square", 1, 4)
        yield 42

    list(progress.follow(events(), int))
    assert "square" not in terminal.getvalue()


def test_progress_without_a_watcher_is_ignored() -> None:
    report_progress("alone", 1, 2)
    seen = []
    with watch_progress(lambda *progress: seen.append(progress)):
        report_progress("inside", 1, 2)
    report_progress("after", 1, 2)
    assert seen == [("inside", 1, 2)]


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()])
def test_a_failure_inside_a_progress_bar_shows_the_cursor_of_a_terminal(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    report = FailureReport()
    # as the thread that ends a rank
    thread = threading.Thread(target=report.end, args=[Failure("killed")])
    thread.start()
    thread.join()
    written = stream.getvalue()
    assert written.startswith(f"\n{SHOW_CURSOR}") == stream.isatty()
    assert "killed" in written


def test_a_connection_lost_at_the_start_is_no_bug(capsys: pytest.CaptureFixture[str]) -> None:
    lost = torch.distributed.DistNetworkError("Failed to recv, got 0 bytes")
    assert FailureReport().fail_unexpectedly(lost) == FAILED_STATUS
    assert "error:" in capsys.readouterr().err
    with pytest.raises(KeyError):
        FailureReport().fail_unexpectedly(KeyError("a bug"))
