"""The packages in plugins/ are written as a third party would: public modules only, their own tests, a section in the docs."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

import wmr_cli

ROOT = Path(__file__).parents[1]
PACKAGES = sorted(path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml"))
HOOKS = (ROOT / "docs" / "hooks.md").read_text(encoding="utf-8")
PUBLIC = re.findall(r"`(wmr_cli[\w.]*)`", HOOKS.partition("Public names that a plugin may import:")[2].partition("private")[0])
NAMES = wmr_cli.__all__


def imports(file: Path) -> list[tuple[str, str]]:
    """Every module of ours that a file imports, with the name that it takes from it."""
    found = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found += [(node.module or "", alias.name) for alias in node.names]
    return [(module, name) for module, name in found if module.split(".")[0] == "wmr_cli"]


def is_public(module: str, name: str) -> bool:
    if module == "wmr_cli":
        return name in NAMES or f"wmr_cli.{name}" in PUBLIC
    inside = any(module == public or module.startswith(f"{public}.") for public in PUBLIC if public != "wmr_cli")
    return inside and not any(part.startswith("_") for part in (*module.split("."), name))


def test_the_documentation_names_the_public_modules():
    assert {"wmr_cli", "wmr_cli.core", "wmr_cli.errors", "wmr_cli.measures", "wmr_cli.testing"} <= set(PUBLIC)
    assert not is_public("wmr_cli.workflows.parts", "attack")
    assert not is_public("wmr_cli", "workflows")
    assert not is_public("wmr_cli.core.noise", "_WORD")
    assert is_public("wmr_cli.core.noise", "uniform")


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_a_package_imports_public_modules_only(package):
    private = {
        f"{file.relative_to(package)}: {module} {name}"
        for file in package.rglob("*.py")
        if ".venv" not in file.parts  # that of `make test-plugins`
        for module, name in imports(file)
        if not is_public(module, name)
    }
    assert private == set()


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_a_package_is_complete(package):
    project = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == package.name
    assert list(project["entry-points"]) == ["wmr"]
    assert list(package.glob("tests/test_*.py"))
    readme = (package / "README.md").read_text(encoding="utf-8")
    assert "pip install" in readme
    assert len(re.findall(r"^wmr ", readme, re.MULTILINE)) >= 3
    page = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    assert f"## {package.name}\n" in page
