"""The commands of the README, the quickstart and the tutorials work in the order of each page."""

import os
import re
from pathlib import Path

import pytest
import torch

from support import miniature_datasets
from support.page_commands import Block, Step, blocks, missing, run, steps
from support.repository_copy import Workspace
from support.virtualenvs import ROOT

PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "index.md",
    *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
]
DATA_DIR = os.environ.get("WMR_DATA_DIR")
CI_SCRIPT = ROOT / ".ci" / "run"

# commands that are not run here, by page; a test below requires the first kind in .ci/run
RUN_BY_CI = {("README.md", "make test")}
ON_DOWNLOADED_DATA = {
    ("README.md", "wmr train --dataset cifar10 --model timm:convnext_atto"),
    ("README.md", "wmr import net.pth --model net.py:Net --dataset mnist"),
    ("README.md", "wmr evaluate net.safetensors --attack autoattack"),
}
SKIPPED = RUN_BY_CI | ON_DOWNLOADED_DATA

# pages whose commands install `wmr` themselves
INSTALLING_PAGES = ("README.md", "index.md")

NET = """\
from torch import nn


class Net(nn.Sequential):
    def __init__(self, num_classes: int):
        super().__init__(nn.Flatten(), nn.Linear(784, num_classes))
"""


def write_reader_files(page: Path, folder: Path) -> None:
    """Write the files that a page expects the reader to have."""
    if page.name == "README.md":
        miniature_datasets.make_image_folder(folder / "pics", side=40)
        (folder / "net.py").write_text(NET, encoding="utf-8")
        weights = {"1.weight": torch.randn(10, 784), "1.bias": torch.zeros(10)}
        torch.save(weights, folder / "net.pth")


def read_blocks(page: Path) -> list[Block]:
    return blocks(page.read_text(encoding="utf-8"))


def key(page: Path, step: Step) -> tuple[str, str]:
    return page.name, step.command


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_work_and_print_what_it_shows(page: Path, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    if page.name not in INSTALLING_PAGES:
        workspace.environment.install(workspace.root)
    write_reader_files(page, workspace.root)
    chosen = [step for step in steps(read_blocks(page)) if key(page, step) not in SKIPPED]
    printed, folder = run(chosen, workspace.root, tmp_path / "logs", workspace.variables())
    assert missing(read_blocks(page), printed, folder) == []


@pytest.mark.data
@pytest.mark.skipif(DATA_DIR is None, reason="WMR_DATA_DIR is not set to a folder with real data")
def test_the_commands_on_downloaded_data_work(tmp_path: Path) -> None:
    page = ROOT / "README.md"
    workspace = Workspace(tmp_path)
    workspace.environment.install(workspace.root)
    write_reader_files(page, workspace.root)
    chosen = [step for step in steps(read_blocks(page)) if key(page, step) in ON_DOWNLOADED_DATA]
    assert len(chosen) == len(ON_DOWNLOADED_DATA)
    run(chosen, workspace.root, tmp_path / "logs", workspace.variables(DATA_DIR))


def test_a_skipped_command_is_still_on_its_page() -> None:
    on_pages = {key(page, step) for page in PAGES for step in steps(read_blocks(page))}
    assert sorted(SKIPPED - on_pages) == []


@pytest.mark.parametrize(("page", "command"), sorted(RUN_BY_CI))
def test_a_command_that_takes_too_long_here_is_run_by_ci(page: str, command: str) -> None:
    assert command in CI_SCRIPT.read_text(encoding="utf-8").splitlines()


def test_ci_builds_the_site_and_fails_on_warnings() -> None:
    assert "make docs" in CI_SCRIPT.read_text(encoding="utf-8").splitlines()
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"mkdocs build --strict", makefile)
