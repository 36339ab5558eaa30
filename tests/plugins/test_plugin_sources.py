"""Each package in plugins/ has metadata, tests, a README and a section in the docs."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml"))


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_a_package_is_complete(package: Path) -> None:
    project = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == package.name
    assert list(project["entry-points"]) == ["wmr"]
    assert list(package.glob("tests/test_*.py"))
    readme = (package / "README.md").read_text(encoding="utf-8")
    assert "pip install" in readme
    assert len(re.findall(r"^wmr ", readme, re.MULTILINE)) >= 3
    page = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    assert f"## {package.name}\n" in page
