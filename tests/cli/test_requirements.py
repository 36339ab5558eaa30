"""`--require` of `wmr evaluate` and `wmr report`: exit status, output and refusals."""

import json
import shutil
from pathlib import Path

import pytest

from support.cli_runner import wmr

SMALL = ("--limit", "60", "--steps", "2", "--alpha-test", "1,2")


@pytest.fixture
def small_run(tiny_run: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "tiny"
    shutil.copytree(tiny_run, copy)
    return copy


REQUIREMENTS = [
    ("a_rob>=1%,a_sa@2>=1%", 0, [True, True]),
    ("a_rob>=99%,a_sa@2>=1%", 1, [False, True]),
    # A_sa at an alpha that was not measured comes from the rows
    ("a_sa@0.25>=1%", 0, [True]),
]


@pytest.mark.parametrize(("text", "status", "verdicts"), REQUIREMENTS)
def test_requirements_decide_the_exit_status(
    small_run: Path, text: str, status: int, verdicts: list[bool]
) -> None:
    evaluated = wmr(
        "evaluate", small_run, *SMALL, "--require", text, "--format", "json", status=status
    )
    reported = wmr("report", small_run, "--require", text, "--format", "json", status=status)
    parts = [json.loads(result.stdout) for result in (evaluated, reported)]
    assert [one["met"] for one in parts[0]["requirements"]] == verdicts
    # one judgement for both commands
    assert parts[0]["requirements"] == parts[1]["requirements"]
    assert [one["record"] for one in parts[0]["requirements"]] == [
        parts[0]["records"][0]["id"]
    ] * len(verdicts)
    assert evaluated.stderr.count("not met") == verdicts.count(False)


@pytest.mark.parametrize("output", ["table", "markdown"])
def test_tables_list_requirements(small_run: Path, output: str) -> None:
    given = ("--require", "a_rob>=99%", "--require", "a_nat>=1%", "--format", output)
    for result in (
        wmr("evaluate", small_run, *SMALL, *given, "-q", status=1),
        wmr("report", small_run, *given, "-q", status=1),
    ):
        # Markdown escapes characters of the requirement
        lines = [line for line in result.stdout.splitlines() if "=99%" in line]
        assert len(lines) == 1
        assert "not met" in lines[0]
        # errors remain with --quiet, and name the record
        assert result.stderr.startswith("error: not met: a_rob>=99%")


UNMEASURED = [
    ("a_rob>=0.1", ("--metrics", "nat"), "--metrics nat,rob"),
    ("a_cal@2>=0.1", (), "--metrics nat,rob,sa,tr,cal"),
    ("a_tr@7>=0.1", ("--alpha-test", "1,2"), "--alpha-test 1,2,7"),
    ("a_sa>=0.1", ("--attack", "autoattack"), "--attack"),
    ("a_sa@2>=0.1", ("--kernel", "cvar"), "@2"),
]


@pytest.mark.parametrize(("text", "flags", "hint"), UNMEASURED)
def test_a_requirement_that_is_not_measured_is_refused_before_the_work(
    small_run: Path, tmp_path: Path, text: str, flags: tuple[str, ...], hint: str
) -> None:
    result = wmr(
        "evaluate", small_run, *flags, "--require", text, "--out", tmp_path / "out", status=2
    )
    assert hint in result.stderr.splitlines()[1]
    assert not (tmp_path / "out").exists()


def test_failed_checks_and_requirements_are_both_reported(small_run: Path, tmp_path: Path) -> None:
    # without steps the attack is weak, and the check with more steps fails
    weak = ("--steps", "0", "--limit", "100", "--strict", "--metrics", "nat,rob", "-q")
    result = wmr(
        "evaluate", small_run, *weak, "--require", "a_rob>=100%", "--out", tmp_path, status=1
    )
    assert "checks failed" in result.stderr
    assert "not met: a_rob>=100%" in result.stderr
