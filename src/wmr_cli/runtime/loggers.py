"""Loggers of a run: copies of its log for other tools, made by rank 0.

A logger that fails or hangs is switched off with one warning, and the run continues. Its id of the
run and the last epoch that it has logged are in loggers.json of the run folder, so that a resumed
run or an evaluation continues the same run of the tool.
"""

import contextlib
import io
import re
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from ..core.protocols import EvaluationTable, LoggedRun, Logger, LogsFiles
from ..errors import BrokenContract, WmrError
from ..events import Message
from ..measures import MARGIN_KERNEL
from ..reading import decode_json, parse_json, read_bytes
from ..registry import Registry
from ..reporting.html.report import render_report
from ..reporting.report import gather_records
from ..reporting.rows import ALL_ACCURACIES, attack_name, eps_name, make_rows
from ..reporting.tables.escaping import inert_text
from ..reporting.tables.main import list_csv_rows
from ..spec import Spec, format_number
from ..storage.atomic import refuse_link, write_text
from ..storage.checkpoints import IMPORTED_DEFENSE
from ..storage.records import Record
from ..storage.runs import RunFolder

TIMEOUT = 120.0
"""Seconds that a logger has for one call. Other ranks wait for rank 0 five times as long."""
CLOSE_TIMEOUT = 600.0
"""Seconds to send what remains at the end."""
COLOUR = re.compile(r"\x1b\[[\d;]*m")


class LoggerState(msgspec.Struct, frozen=True):
    """How far a logger has come with a run."""

    tracker_id: str | None = None
    epoch: int = 0


class RunLoggers:
    """The loggers of one run folder. Methods return messages, and raise for mistakes of the user.

    Loggers are built at once, and have no effect before `open`.
    """

    def __init__(self, specs: Iterable[str], registry: Registry) -> None:
        self._active: dict[str, Logger] = {}
        """By spec, which says where a logger writes."""
        self._states: dict[str, LoggerState] = {}
        self._folder = Path()
        self._pending: list[Message] = []
        self._files: tempfile.TemporaryDirectory[str] | None = None
        for text in specs:
            spec = str(Spec.parse(text))
            try:
                logger = registry.create("logger", spec)
            except WmrError:
                # a wrong name or parameter, or a missing package
                raise
            except Exception as error:  # noqa: BLE001 - code of a plugin may raise anything
                self._pending.append(_describe_failure(spec, error))
                continue
            if not isinstance(logger, Logger):
                raise BrokenContract(
                    f"logger {spec!r} is a {type(logger).__name__} without all methods of a logger",
                    hint="it has `open`, `log_epoch`, `log_evaluation` and `close`",
                )
            self._active[spec] = logger

    def open(
        self, folder: Path, config: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]
    ) -> list[Message]:
        """Open all loggers, and log the epochs that they do not have yet."""
        messages, self._pending = self._pending, []
        if not self._active:
            return messages
        for spec in self._active:
            # a logger deletes its old files, and a link could lead outside the run folder
            refuse_link(folder / Spec.parse(spec).name)
        self._folder = folder
        try:
            self._states = decode_json(
                read_bytes(RunFolder(folder).loggers), dict[str, LoggerState]
            )
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            messages.append(Message(f"loggers start anew: loggers.json: {error}", is_warning=True))

        def open_one(spec: str, logger: Logger) -> None:
            state = self._states.get(spec, LoggerState())
            # log.jsonl may be older, if the folder was restored from a backup
            epoch = min(state.epoch, len(entries))
            name = folder.absolute().name
            tracker_id = logger.open(LoggedRun(name, folder, config, state.tracker_id, epoch))
            self._states[spec] = LoggerState(tracker_id, epoch)
            for entry in entries[epoch:]:
                self._log_entry(spec, logger, entry)

        messages += self._call_each(open_one)
        return messages + self._save_states()

    def log_epoch(self, entry: Mapping[str, Any]) -> list[Message]:
        """Log a line of log.jsonl."""
        if not self._active:
            return []
        messages = self._call_each(lambda spec, logger: self._log_entry(spec, logger, entry))
        return messages + self._save_states()

    def _log_entry(self, spec: str, logger: Logger, entry: Mapping[str, Any]) -> None:
        numbers = {
            # a spreadsheet would run a name that starts with `=` as a formula
            inert_text(name): value
            for name, value in entry.items()
            if name != "epoch" and isinstance(value, int | float)
        }
        logger.log_epoch(entry["epoch"], numbers)
        self._states[spec] = msgspec.structs.replace(self._states[spec], epoch=entry["epoch"])

    def log_evaluations(self, found: Sequence[tuple[Path, Record]]) -> list[Message]:
        """Log all records of the run, and their HTML report where a logger keeps files."""
        table = make_evaluation_table([record for _, record in found])
        messages = self._call_each(lambda spec, logger: logger.log_evaluation(table))
        if not any(isinstance(logger, LogsFiles) for logger in self._active.values()):
            return messages
        text, problems = render_report(found)
        messages += [Message(f"skipped: {problem}", is_warning=True) for problem in problems]
        # deleted only after `close`, because loggers upload in the background
        self._files = tempfile.TemporaryDirectory(prefix="wmr-")
        page = Path(self._files.name) / "report.html"
        page.write_text(text, encoding="utf-8")

        def log_page(spec: str, logger: Logger) -> None:
            if isinstance(logger, LogsFiles):
                logger.log_file(page)

        return messages + self._call_each(log_page)

    def close(self, *, is_complete: bool = False) -> list[Message]:
        """Close all loggers that are still open."""
        messages = self._call_each(
            lambda spec, logger: logger.close(is_complete=is_complete), CLOSE_TIMEOUT
        )
        self._active = {}
        if self._files is not None:
            self._files.cleanup()
            self._files = None
        return messages

    def _call_each(
        self, action: Callable[[str, Logger], None], timeout: float | None = None
    ) -> list[Message]:
        """Call an action with each logger; switch off those that fail."""
        messages: list[Message] = []
        for spec, logger in list(self._active.items()):
            printed = io.StringIO()
            # stdout is reserved for results
            with contextlib.redirect_stdout(printed):
                error = _call_in_time(partial(action, spec, logger), timeout or TIMEOUT)
            lines = COLOUR.sub("", printed.getvalue()).splitlines()
            messages += [Message(line) for line in lines if line.strip()]
            if error is not None:
                del self._active[spec]
                messages.append(_describe_failure(spec, error))
        return messages

    def _save_states(self) -> list[Message]:
        path = RunFolder(self._folder).loggers
        try:
            write_text(path, msgspec.json.encode(self._states).decode() + "\n")
        except WmrError as error:
            return [Message(str(error), is_warning=True)]
        return []


def _call_in_time(action: Callable[[], None], timeout: float) -> BaseException | None:
    """Call an action; return its error, or TimeoutError if it takes longer than `timeout`."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            action()
        # SystemExit as well: code of a plugin may raise anything
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    # a daemon, so that a hanging connection does not keep the process alive
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(timeout)
    if thread.is_alive():
        return TimeoutError(f"no answer within {timeout:g} s")
    return errors[0] if errors else None


def _describe_failure(spec: str, error: BaseException) -> Message:
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return Message(f"logger {spec!r} is switched off: {reason}", is_warning=True)


def make_evaluation_table(found: Sequence[Record]) -> EvaluationTable:
    """Return a row per record and α_test, and the accuracies by name."""
    columns, rows = list_csv_rows(found)
    metrics: dict[str, float] = {}
    for row in make_rows(found):
        record = row.record
        kernel = "" if record.kernel == MARGIN_KERNEL else f"/{record.kernel}"
        place = f"{record.dataset.split}/{attack_name(record)}/{eps_name(record)}{kernel}"
        file = Path(record.checkpoint.path).stem
        if file != "last":
            place = f"{file}/{place}"
        for name in ALL_ACCURACIES:
            estimate = row.accuracy(name)
            if estimate is not None:
                is_weighted = name not in ("a_nat", "a_rob") and row.alpha_test is not None
                at_alpha = f"@{format_number(row.alpha_test or 0)}" if is_weighted else ""
                metrics[f"{place}/{name}{at_alpha}"] = estimate.value
    cells = (
        tuple(inert_text(cell) if isinstance(cell, str) else cell for cell in row) for row in rows
    )
    return EvaluationTable(columns, tuple(cells), metrics)


def log_measured(
    specs: Sequence[str], measured: Sequence[tuple[Path, Record]], registry: Registry
) -> Iterator[Message]:
    """Log the evaluations of each run of which a record was measured, to the run's loggers."""
    folders = {_find_run_folder(file, record) for file, record in measured}
    by_folder: dict[Path, list[tuple[Path, Record]]] = {folder: [] for folder in sorted(folders)}
    for file, record in gather_records(dict.fromkeys(file.parent for file, _ in measured)).found:
        # records of several runs may be in one folder
        by_folder.get(_find_run_folder(file, record), []).append((file, record))
    for folder, found in by_folder.items():
        run = RunFolder(folder)
        loggers = RunLoggers(specs, registry)
        try:
            facts = found[0][1].checkpoint
            config = msgspec.to_builtins(facts)
            if run.config.is_file():
                config = parse_json(read_bytes(run.config).decode())
            yield from loggers.open(folder, config, run.read_log())
            yield from loggers.log_evaluations(found)
        except WmrError as error:
            # the records are stored and shown all the same
            yield Message(f"{folder} is not logged: {error}", is_warning=True)
        yield from loggers.close(is_complete=True)


def _find_run_folder(file: Path, record: Record) -> Path:
    """Return the run folder of a record's checkpoint; without one, the folder of the record."""
    checkpoint = Path(record.checkpoint.path)
    folder = checkpoint.absolute().parent
    is_run = checkpoint.is_file() and (folder / "config.json").is_file()
    # weights of another program may have a config.json beside them as well
    if is_run and record.checkpoint.defense != IMPORTED_DEFENSE:
        return folder
    return file.absolute().parent
