"""Tests that do not need robustbench."""

import dataclasses
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

import wmr_robustbench
from wmr_cli import BadInput, PluginError
from wmr_robustbench import models, zoo
from wmr_robustbench.__main__ import main

SHAPE = (3, 32, 32)


@pytest.fixture
def _robustbench_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the package if it is installed."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "robustbench" else find(name, *rest),
    )


@pytest.mark.usefixtures("_robustbench_is_missing")
def test_without_the_package_the_error_says_how_to_install_it() -> None:
    with pytest.raises(PluginError, match="robustbench is not installed") as caught:
        models.robustbench(10, SHAPE, "Carmon2019Unlabeled")
    assert "pip install --no-deps robustbench==" in caught.value.hint


@pytest.mark.usefixtures("_robustbench_is_missing")
def test_without_the_package_the_list_exits_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["wmr_robustbench"])
    assert main() == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "error: the package robustbench is not installed\nhint: pip install" in shown.err


def test_a_number_of_classes_that_the_zoo_does_not_have_is_refused() -> None:
    with pytest.raises(BadInput, match="7"):
        models.robustbench(7, SHAPE, "Carmon2019Unlabeled")


def test_files_have_the_names_that_robustbench_gives_them() -> None:
    one = zoo.ZooModel(
        name="Carmon2019Unlabeled",
        dataset="cifar10",
        threat="Linf",
        make=nn.Identity,
        drive_ids=("id",),
    )
    several = dataclasses.replace(
        one, name="Chen2020Adversarial", drive_ids=("a", "b"), is_ensemble=True
    )
    assert one.files(Path("models")) == [Path("models/cifar10/Linf/Carmon2019Unlabeled.pt")]
    assert several.files(Path("m")) == [
        Path(f"m/cifar10/Linf/Chen2020Adversarial.pt_m{n}.pt") for n in (0, 1)
    ]


def test_listing_names_imports_neither_torch_nor_robustbench() -> None:
    (entry,) = wmr_robustbench.wmr_models()
    assert (entry.name, entry.problem()) == ("robustbench", None)
    code = "import sys, wmr_robustbench; assert not {'torch', 'robustbench'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
