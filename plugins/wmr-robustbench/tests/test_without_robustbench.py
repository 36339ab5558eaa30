"""What holds whether or not robustbench is installed."""

import ast
import importlib.util
from pathlib import Path

import pytest

import wmr_robustbench
from wmr_cli.errors import BadInput, PluginError
from wmr_robustbench import models, zoo
from wmr_robustbench.__main__ import main

PUBLIC = ("wmr_cli.core", "wmr_cli.errors", "wmr_cli.measures", "wmr_cli.testing")
SHAPE = (3, 32, 32)


@pytest.fixture
def absent(monkeypatch):
    """As on a machine without the package."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "robustbench" else find(name, *rest))


@pytest.mark.usefixtures("absent")
def test_without_the_package_the_error_says_how_to_install_it():
    with pytest.raises(PluginError, match="robustbench is not installed") as caught:
        models.robustbench(10, SHAPE, "Carmon2019Unlabeled")
    assert "pip install --no-deps robustbench==" in caught.value.hint


@pytest.mark.usefixtures("absent")
def test_the_list_says_so_too(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["wmr_robustbench"])
    assert main() == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "error: the package robustbench is not installed\nhint: pip install" in shown.err


def test_a_number_of_classes_that_the_zoo_does_not_have_is_refused():
    with pytest.raises(BadInput, match="the data set has 7"):
        models.robustbench(7, SHAPE, "Carmon2019Unlabeled")


def test_files_have_the_names_that_robustbench_gives_them():
    one = zoo.Listed("Carmon2019Unlabeled", "cifar10", "Linf", list, ("id",))
    several = zoo.Listed("Chen2020Adversarial", "cifar10", "Linf", list, ("a", "b"), is_ensemble=True)
    assert one.files(Path("models")) == [Path("models/cifar10/Linf/Carmon2019Unlabeled.pt")]
    assert several.files(Path("m")) == [Path(f"m/cifar10/Linf/Chen2020Adversarial.pt_m{n}.pt") for n in (0, 1)]


def test_listing_names_imports_neither_torch_nor_robustbench():
    (entry,) = wmr_robustbench.wmr_models()
    assert (entry.name, entry.problem()) == ("robustbench", None)
    assert imported(Path(wmr_robustbench.__file__)) == {"collections.abc", "wmr_cli"}


def imported(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return modules | {node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}


@pytest.mark.parametrize("path", sorted(Path(wmr_robustbench.__file__).parent.glob("*.py")), ids=lambda path: path.name)
def test_nothing_private_is_imported(path):
    ours = {module for module in imported(path) if module.split(".")[0] == "wmr_cli"}
    assert {module for module in ours if module != "wmr_cli" and not module.startswith(PUBLIC)} == set()
