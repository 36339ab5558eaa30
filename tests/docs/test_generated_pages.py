"""Generated parts of the pages are current, and the generators read docstrings and traits."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import badges
import generate

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REQUIRED_FIELDS = {"defense": {"Objective", "Cost", "Good for"}, "kernel": {"Weight", "Good for"}}
WITHOUT_REFERENCE = {"natural", "none", "table"}


def test_generated_parts_are_current() -> None:
    assert generate.find_stale_pages() == [], "run `python docs/generate.py`"


@pytest.mark.parametrize(
    "variables",
    [
        {"COLUMNS": "40", "TERMINAL_WIDTH": "40"},
        {"FORCE_COLOR": "1", "GITHUB_ACTIONS": "1", "CI": "1", "TERM": "xterm-256color"},
    ],
    ids=["narrow", "coloured"],
)
def test_the_check_does_not_depend_on_the_terminal(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run(
        [sys.executable, DOCS / "generate.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_stale_page_fails_the_check_and_is_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    current = (DOCS / "presets.md").read_text(encoding="utf-8")
    stale = re.sub(generate.BLOCK, r"\g<begin>old\n\g<end>", current)
    page = tmp_path / "presets.md"
    page.write_text(stale, encoding="utf-8")
    monkeypatch.setattr(generate, "DOCS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["generate.py", "--check"])
    with pytest.raises(SystemExit, match=r"presets\.md"):
        generate.main()
    monkeypatch.setattr(sys, "argv", ["generate.py"])
    generate.main()
    assert page.read_text(encoding="utf-8") == current


def test_badges_are_current_and_shown() -> None:
    drawn = badges.draw_badges()
    stored = {file: file.read_text(encoding="utf-8") for file in badges.FOLDER.iterdir()}
    assert stored == drawn, "run `python docs/badges.py`"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"({file.relative_to(ROOT).as_posix()})" in readme for file in drawn)


@pytest.mark.parametrize("kind", REQUIRED_FIELDS)
def test_docstrings_have_the_fields_of_the_tables(kind: str) -> None:
    for entry, target in generate.list_builtins(kind):
        prose, fields = generate.split_docstring(inspect.getdoc(target) or "")
        reference = set() if entry.name in WITHOUT_REFERENCE else {"Reference"}
        assert prose, entry.name
        assert set(fields) == REQUIRED_FIELDS[kind] | reference, entry.name
        assert all(fields.values()), entry.name


def test_a_field_of_a_docstring_may_span_lines() -> None:
    docstring = "Summary.\n\nMore: words.\n\nObjective: a\n    + b\nCost: K + 1\n"
    assert generate.split_docstring(docstring) == (
        "Summary.\n\nMore: words.",
        {"Objective": "a + b", "Cost": "K + 1"},
    )
