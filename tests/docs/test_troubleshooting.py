"""Every heading of the page on troubleshooting is part of a message of `wmr`."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OTHER_PROGRAMS = "## Messages of other programs"
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8").split(OTHER_PROGRAMS)[0]
HEADINGS = re.findall(r"^### (.+)$", PAGE, re.MULTILINE)
ALTERNATIVES = [
    quoted
    for paragraph in re.findall(r"^Also: (.+?)\n\n", PAGE, re.MULTILINE | re.DOTALL)
    for quoted in re.findall(r"`([^`]+)`", paragraph)
]
GAP = "…"


def iterate_texts(file: Path) -> Iterator[str]:
    """Yield the strings of a module; `…` stands for the expressions of an f-string."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else GAP for part in node.values]
            yield "".join(map(str, parts))


@pytest.fixture(scope="module")
def messages() -> str:
    files = (ROOT / "src").rglob("*.py")
    return "\n".join(text for file in files for text in iterate_texts(file))


@pytest.mark.parametrize("message", [*HEADINGS, *ALTERNATIVES])
def test_a_documented_message_exists(message: str, messages: str) -> None:
    parts = [part.strip(" ,;:") for part in message.split(GAP)]
    assert [part for part in parts if part not in messages] == []


def test_the_page_has_headings_and_alternatives() -> None:
    assert len(HEADINGS) > 30
    assert len(ALTERNATIVES) > 10
