"""Run `wmr` commands as child processes, read their results, and stop them. No torch.

A sweep passes a path in an environment variable. The child writes one JSON file there, atomically,
when its command has ended. A child that is killed writes none, which the sweep counts as a failure.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated

import msgspec

from ..errors import BadFile, RunFolderError, WmrError
from ..reading import decode_json, open_regular, read_bytes
from ..runtime.processes import end_with_parent

RESULT_FILE_VARIABLE = "WMR_RESULT_FILE"
LOG_TAIL_BYTES = 20_000
"""Length of the end of a log that is searched for the reason of a failure."""
POLL_SECONDS = 0.1

RecordId = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}\Z")]
"""Part of a file name. The pattern keeps paths to files of the user out of results and ledgers."""


class CommandResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended: exit status, error of a failure, ids of measured records."""

    status: int
    error: str = ""
    hint: str = ""
    error_class: str = ""
    """name of the exception's class"""
    record_ids: list[RecordId] = []


class ResultReport:
    """Collects the result of the running command.

    Does nothing unless a sweep has started the command.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._error = ""
        self._hint = ""
        self._error_class = ""
        self._record_ids: list[str] = []

    def add_record(self, record_id: str) -> None:
        """Report a record that the command measured, or found stored."""
        self._record_ids.append(record_id)

    def set_error(self, error: str, hint: str, error_class: str = "") -> None:
        """Report why the command failed."""
        self._error = _replace_surrogates(error)
        self._hint = _replace_surrogates(hint)
        self._error_class = error_class

    def write(self, status: int) -> None:
        """Write the result file."""
        if self._path is None:
            return
        # imported here: `wmr --help` needs no files
        from ..storage.atomic import write_text

        result = CommandResult(
            status=status,
            error=self._error,
            hint=self._hint,
            error_class=self._error_class,
            record_ids=self._record_ids,
        )
        write_text(self._path, msgspec.json.encode(result).decode() + "\n")


def _replace_surrogates(text: str) -> str:
    # a path that is not UTF-8 contains lone surrogates, which JSON cannot hold
    return text.encode(errors="replace").decode()


_report = ResultReport()


def start_report() -> ResultReport:
    """Begin the report of a command."""
    global _report
    # removed, because ranks and processes of plugins inherit the environment and must not write
    path = os.environ.pop(RESULT_FILE_VARIABLE, None)
    _report = ResultReport(Path(path) if path else None)
    return _report


def current_report() -> ResultReport:
    """Return the report of the running command."""
    return _report


def read_result(path: Path) -> CommandResult | None:
    """Return the result of a command that has ended; None if it did not write one."""
    try:
        return decode_json(read_bytes(path), CommandResult)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadFile(f"cannot read {path}: {error.strerror}", hint="repeat the sweep") from None
    except ValueError as error:
        raise BadFile(
            f"{path} is not the result of a command: {error}", hint="repeat the sweep"
        ) from None


@dataclass(frozen=True)
class ChildCommand:
    """A `wmr` command: short title, arguments, and the files for its result and its stdout."""

    title: str
    arguments: tuple[str, ...]
    result: Path
    stdout: Path


@dataclass(frozen=True)
class Failure:
    """Why a run failed, a hint, and the class of the error if it is known."""

    reason: str
    hint: str = ""
    error_class: str = ""

    @classmethod
    def from_error(cls, error: WmrError) -> "Failure":
        """Return message, hint and class of an error."""
        return cls(str(error), error.hint, type(error).__name__)


class ChildProcess:
    """A running command.

    When this process ends, for any reason, the child receives SIGTERM and saves its state.
    """

    def __init__(self, command: ChildCommand, log: Path, *, threads: int) -> None:
        self.command = command
        self._log = log
        # the log grows from command to command; this one's messages begin here
        self._log_start = _file_size(log)
        environment = {
            # several runs share the cores, so the default of one thread per core is too many
            **limit_threads(threads),
            RESULT_FILE_VARIABLE: str(command.result.absolute()),
        }
        with _open_streams(log, command) as (messages, output):
            self._process = subprocess.Popen(
                [sys.executable, "-m", "wmr_cli", *command.arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=messages,
                env=environment,
                # in a session of its own, so that Ctrl-C reaches this process alone
                start_new_session=True,
                # `finally` blocks do not run when this process is killed; the kernel's signal does
                preexec_fn=end_with_parent(signal.SIGTERM),
            )

    @property
    def status(self) -> int | None:
        """Exit status; None while it runs."""
        return self._process.poll()

    def terminate(self) -> None:
        """Make it save its state and end."""
        if self._process.poll() is None:
            self._process.terminate()

    def kill(self) -> None:
        """End it at once."""
        if self._process.poll() is None:
            self._process.kill()

    def wait(self) -> None:
        """Wait until it has ended."""
        self._process.wait()

    def read_result(self) -> CommandResult | Failure:
        """Return the result of a command that has ended, or why it failed."""
        title = self.command.title
        status = self._process.returncode
        # negative: the number of the signal, such as SIGKILL when memory runs out
        if status < 0:
            name = signal.Signals(-status).name
            return Failure(f"{title} was killed by {name}", "repeat the sweep to continue")
        try:
            result = read_result(self.command.result)
        except WmrError as error:
            return Failure.from_error(error)
        if status == 0 and result is not None:
            return result
        if result is not None and result.error:
            problem = f"{title} ended with status {status}: {result.error}"
            return Failure(problem, result.hint or f"see {self._log}", result.error_class)
        # killed from inside, or a bug: a traceback ends with its exception
        line = last_line(read_log_tail(self._log, self._log_start))
        return Failure(f"{title} ended with status {status}: {line}", f"see {self._log}")


def limit_threads(threads: int) -> dict[str, str]:
    """Return the environment of a child that computes with this many threads."""
    return {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


def stop_all(children: Sequence[ChildProcess]) -> None:
    """Let all children save their state and end; a second signal to this process kills them."""
    for child in children:
        child.terminate()
    try:
        for child in children:
            child.wait()
    except BaseException:
        # a second Ctrl-C: the user does not want to wait for the states to be saved
        for child in children:
            child.kill()
        raise


def sleep_before_poll() -> None:
    """Wait before the state of running commands is read again."""
    time.sleep(POLL_SECONDS)


def read_log_tail(log: Path, start: int) -> list[str]:
    """Return the last lines that were written after the byte `start`.

    Return an empty list if the log cannot be read.
    """
    try:
        with open_regular(log) as file:
            # only the end, because a child may have written gigabytes of warnings
            file.seek(max(start, _file_size(log) - LOG_TAIL_BYTES))
            return file.read(LOG_TAIL_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return []


def last_line(lines: Sequence[str]) -> str:
    """Return the last line that is not empty."""
    texts = [line.strip() for line in lines if line.strip()]
    return texts[-1] if texts else "it printed nothing"


@contextmanager
def _open_streams(log: Path, command: ChildCommand) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Open the log and an empty file for stdout, and remove the result of an earlier command."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        # a child that is killed leaves no result, so an old one would be taken for its own
        command.result.unlink(missing_ok=True)
        with (
            open(log, "ab", opener=_open_without_links) as messages,
            open(command.stdout, "wb", opener=_open_without_links) as output,
        ):
            yield messages, output
    except OSError as error:
        raise RunFolderError(
            f"cannot start a command that writes to {log.parent}: {error.strerror}",
            hint="free some space, or check owner and permissions",
        ) from None


def _open_without_links(path: str, flags: int) -> int:
    # a study folder from elsewhere may contain a link to a file of the user
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _file_size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
