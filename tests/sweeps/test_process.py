"""Child processes report by their result file; without one, the end of their log is the reason."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from support.special_files import IRREGULAR, time_limit
from wmr_cli.cli import app
from wmr_cli.errors import BadFile
from wmr_cli.sweeps import process
from wmr_cli.sweeps.process import (
    RESULT_FILE_VARIABLE,
    ChildCommand,
    ChildProcess,
    CommandResult,
    Failure,
    last_line,
    read_log_tail,
    read_result,
    start_report,
)

LOG = Path("logs/output.log")
RECORD_ID = "0123456789abcdef"


def run_child(*arguments: str) -> CommandResult | Failure:
    command = ChildCommand("test", arguments, Path("logs/result.json"), Path("logs/stdout.txt"))
    child = ChildProcess(command, LOG, threads=1)
    child.wait()
    return child.read_result()


def test_a_command_that_succeeds_gives_its_result() -> None:
    assert run_child("list", "attacks") == CommandResult(status=0)
    assert "pgd" in Path("logs/stdout.txt").read_text()


def test_a_command_that_fails_gives_its_error_and_hint() -> None:
    failure = run_child("list", "atacks")
    assert isinstance(failure, Failure)
    assert failure.reason.startswith("test ended with status 2: ")
    assert "atacks" in failure.reason
    assert failure.hint
    assert failure.hint != f"see {LOG}"
    assert failure.error_class == "UnknownName"


def test_the_result_of_an_earlier_command_is_not_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_child("list", "attacks")
    monkeypatch.setattr("sys.executable", "/bin/false")
    failure = run_child("list", "attacks")
    assert isinstance(failure, Failure)
    assert failure.reason == "test ended with status 1: it printed nothing"


@pytest.mark.parametrize("status", [0, 1])
def test_a_child_that_dies_without_a_result_is_a_failure_with_the_end_of_its_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: int
) -> None:
    crash = tmp_path / "crash"
    crash.write_text(
        "#!/bin/sh\necho Traceback >&2\necho 'ValueError: 3' >&2\nexit $CRASH_STATUS\n"
    )
    crash.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(crash))
    monkeypatch.setenv("CRASH_STATUS", str(status))
    failure = run_child()
    assert failure == Failure(f"test ended with status {status}: ValueError: 3", f"see {LOG}")


def test_a_killed_child_is_a_failure_that_names_the_signal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kill_itself = tmp_path / "kill_itself"
    kill_itself.write_text("#!/bin/sh\nkill -9 $$\n")
    kill_itself.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(kill_itself))
    failure = run_child()
    assert isinstance(failure, Failure)
    assert "SIGKILL" in failure.reason


@pytest.mark.parametrize("make", IRREGULAR.values(), ids=IRREGULAR)
def test_the_log_is_read_only_from_a_regular_file(make: Callable[..., Any]) -> None:
    make(Path("log"))
    with time_limit(60):
        assert read_log_tail(Path("log"), 0) == []


def test_the_tail_of_a_log_is_limited() -> None:
    Path("log").write_text("x\n" * process.LOG_TAIL_BYTES)
    assert len(read_log_tail(Path("log"), 0)) == process.LOG_TAIL_BYTES // 2


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["Traceback", "  in x", "ValueError: 3", ""], "ValueError: 3"),
        ([], "it printed nothing"),
    ],
)
def test_the_reason_of_a_crash_is_the_last_line(lines: list[str], reason: str) -> None:
    assert last_line(lines) == reason


@pytest.fixture
def result_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    path = tmp_path / "result.json"
    monkeypatch.setenv(RESULT_FILE_VARIABLE, str(path))
    return path


def test_a_result_survives_the_disk(result_file: Path) -> None:
    report = start_report()
    report.add_record(RECORD_ID)
    report.set_error("no data", "download them", "MissingData")
    report.write(2)
    assert read_result(result_file) == CommandResult(
        status=2,
        error="no data",
        hint="download them",
        error_class="MissingData",
        record_ids=[RECORD_ID],
    )


def test_child_processes_do_not_inherit_the_path(result_file: Path) -> None:
    start_report()
    assert RESULT_FILE_VARIABLE not in os.environ


def test_a_path_that_is_not_utf8_can_be_reported(result_file: Path) -> None:
    report = start_report()
    report.set_error("cannot read a\udcff", "")
    report.write(2)
    result = read_result(result_file)
    assert result is not None
    assert result.error == "cannot read a?"


def test_without_a_sweep_nothing_is_written() -> None:
    report = start_report()
    report.add_record(RECORD_ID)
    report.write(0)
    assert not list(Path().iterdir())


def test_a_failing_command_reports_its_error_and_hint(result_file: Path) -> None:
    outcome = CliRunner().invoke(app, ["train", "--epochs", "none"], prog_name="wmr")
    assert outcome.exit_code == 2
    result = read_result(result_file)
    assert result is not None
    assert result.status == 2
    assert f"error: {result.error}\nhint: {result.hint}" in outcome.stderr


def test_a_failing_command_reports_its_own_flags(result_file: Path) -> None:
    Path("run").mkdir()
    Path("run", "log.jsonl").write_text('{"epoch": 1}\n')
    arguments = ["train", "--out", "run", "--epochs", "1"]
    outcome = CliRunner().invoke(app, arguments, prog_name="wmr")
    assert outcome.exit_code == 2
    result = read_result(result_file)
    assert result is not None
    assert "--overwrite" in result.hint
    assert "`" not in result.hint


def test_a_result_that_cannot_be_written_keeps_the_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RESULT_FILE_VARIABLE, "/proc/nope/x.json")
    outcome = CliRunner().invoke(app, ["list", "attacks"], prog_name="wmr")
    assert outcome.exit_code == 0
    assert "error: cannot write /proc/nope/x.json" in outcome.stderr


def test_a_command_reports_success(result_file: Path) -> None:
    assert CliRunner().invoke(app, ["list", "attacks"], prog_name="wmr").exit_code == 0
    assert read_result(result_file) == CommandResult(status=0)


@pytest.mark.parametrize("make", IRREGULAR.values(), ids=IRREGULAR)
def test_only_a_regular_file_is_read(make: Callable[..., Any]) -> None:
    make(Path("result.json"))
    with time_limit(60), pytest.raises(BadFile) as refused:
        read_result(Path("result.json"))
    assert refused.value.hint


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"status": "0"}', '{"status": 0, "record_ids": ["../x"]}']
)
def test_other_content_is_refused(text: str) -> None:
    Path("result.json").write_text(text)
    with pytest.raises(BadFile) as refused:
        read_result(Path("result.json"))
    assert refused.value.hint


def test_a_missing_result_is_none() -> None:
    assert read_result(Path("result.json")) is None
