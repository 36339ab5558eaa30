"""Commands of ours as processes of their own: started, listened to, ended with whoever started them."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ..storage import logs

PR_SET_PDEATHSIG = 1
SYSTEM = ctypes.CDLL(None)
"""Loaded here, as a process that is not a program yet had better load nothing."""


@dataclass(frozen=True)
class Command:
    """Words of `wmr`, what they do in a word or two, and where the results on stdout go."""

    what: str
    words: tuple[str, ...]
    output: Path


@dataclass(frozen=True)
class Failure:
    """Why a command ended as it should not."""

    reason: str
    hint: str = ""


class Child:
    """A running command. It is asked to end when this process does, whatever ends it, and saves its state."""

    def __init__(self, command: Command, log: Path, *, threads: int) -> None:
        self.command = command
        self._log, self._begin = log, logs.length(log)
        environment = {**os.environ, **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))}
        with logs.streams(log, command.output) as (messages, results):
            self._process = _started([sys.executable, "-m", "wmr_cli", *command.words], environment, results, messages)

    @property
    def status(self) -> int | None:
        """How it ended; None as long as it runs."""
        return self._process.poll()

    def end(self) -> None:
        """Ask it to save its state and end."""
        if self._process.poll() is None:
            self._process.terminate()

    def kill(self) -> None:
        """End it at once."""
        if self._process.poll() is None:
            self._process.kill()

    def wait(self) -> None:
        """Until it has ended."""
        self._process.wait()

    def failure(self) -> Failure | None:
        """Why it ended with a status other than 0."""
        status = self._process.returncode
        if not status:
            return None
        if status < 0:
            return Failure(f"{self.command.what} was killed by {signal.Signals(-status).name}", "repeat the sweep to go on")
        said = reason(logs.tail(self._log, self._begin))
        return Failure(f"{self.command.what} ended with status {status}: {said.reason}", said.hint or f"see {self._log}")


def end_all(children: Sequence[Child]) -> None:
    """Let all of them save and end; an impatient second signal ends them at once."""
    for child in children:
        child.end()
    try:
        for child in children:
            child.wait()
    except BaseException:
        for child in children:
            child.kill()
        raise


def pause() -> None:
    """Between two looks at running commands."""
    time.sleep(0.1)


def _started(words: list[str], environment: dict[str, str], results: IO[bytes], messages: IO[bytes]) -> "subprocess.Popen[bytes]":
    """A process in a session of its own: Ctrl-C is for us to hand on."""
    return subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=results, stderr=messages, env=environment, start_new_session=True,
        preexec_fn=_end_with(os.getpid()) if sys.platform == "linux" else None,
    )  # fmt: skip


def hear_of_parents_end(number: signal.Signals) -> None:
    """Ask Linux for this signal when the process that started this one dies, by `kill -9` too."""
    SYSTEM.prctl(PR_SET_PDEATHSIG, number)


def _end_with(parent: int) -> Callable[[], None]:
    """For a new process, before it is a program: SIGTERM when its parent dies."""

    def prepare() -> None:
        hear_of_parents_end(signal.SIGTERM)
        if os.getppid() != parent:  # it has died in between
            os._exit(1)

    return prepare


def reason(lines: Sequence[str]) -> Failure:
    """The last error that was said, with its hint; otherwise the last line."""
    said = [line.strip() for line in lines if line.strip()]
    errors = [number for number, line in enumerate(said) if line.startswith("error: ")]
    if not errors:
        return Failure(said[-1] if said else "nothing was said")
    after = said[errors[-1] + 1 : errors[-1] + 2]
    hints = [line.removeprefix("hint: ") for line in after if line.startswith("hint: ")]
    return Failure(said[errors[-1]].removeprefix("error: "), *hints)
