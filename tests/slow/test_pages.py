"""What the README, the quickstart and the tutorials tell their reader to type works as it is written, page by page."""

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
DATA = os.environ.get("WMR_DATA_DIR")

# commands that are left out, each with its reason; .ci/run is held to the first kind by a test below
RUN_BY_CI = {("README.md", "make test")}
ON_DOWNLOADED_DATA = {
    ("README.md", "wmr train --preset cpu/mnist --dry-run"),
    ("README.md", "wmr train --dataset cifar10 --model timm:convnext_atto"),
    ("README.md", "wmr import net.pth --model net.py:Net --dataset mnist"),
    ("README.md", "wmr evaluate net.safetensors"),
}
LEFT_OUT = RUN_BY_CI | ON_DOWNLOADED_DATA

# pages that begin before anything is installed
BEGIN_WITH_NOTHING = ("README.md", "index.md")

# files that prose speaks of, and no flag, tree or title
TOLD = {
    "README.md": [
        f"runs/digits-trades-a2-s0/{name}"
        for name in ("config.json", "log.jsonl", "last.safetensors", "best.safetensors")
    ]
    + [
        "runs/digits-trades-a2-s0/evaluations",
        *(f"figures/*.{kind}" for kind in ("png", "svg", "pdf")),
    ],
    "index.md": [".venv/bin/wmr"],
}

NET = """\
from torch import nn


class Net(nn.Sequential):
    def __init__(self, num_classes: int):
        super().__init__(nn.Flatten(), nn.Linear(784, num_classes))
"""


def lay_files(page: Path, folder: Path) -> None:
    """What a page takes for the reader's own."""
    if page.name == "README.md":
        miniature_datasets.picture_tree(folder / "pics", side=40)
        (folder / "net.py").write_text(NET, encoding="utf-8")
        torch.save(
            {"1.weight": torch.randn(10, 784), "1.bias": torch.zeros(10)}, folder / "net.pth"
        )


def read(page: Path) -> list[Block]:
    return blocks(page.read_text(encoding="utf-8"))


def key(page: Path, step: Step) -> tuple[str, str]:
    return page.name, step.command


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_works_as_it_is_written(page: Path, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    if page.name not in BEGIN_WITH_NOTHING:
        workspace.environment.install(workspace.root)
    lay_files(page, workspace.root)
    chosen = [step for step in steps(read(page)) if key(page, step) not in LEFT_OUT]
    printed, folder = run(chosen, workspace.root, tmp_path / "logs", workspace.variables())
    assert missing(read(page), printed, folder) == []
    assert [path for path in TOLD.get(page.name, []) if not list(workspace.root.glob(path))] == []


@pytest.mark.data
@pytest.mark.skipif(DATA is None, reason="WMR_DATA_DIR names no folder with real data")
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.name in {name for name, _ in ON_DOWNLOADED_DATA}],
    ids=lambda page: page.stem,
)
def test_commands_on_downloaded_data_work_as_they_are_written(page: Path, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    workspace.environment.install(workspace.root)
    lay_files(page, workspace.root)
    chosen = [step for step in steps(read(page)) if key(page, step) in ON_DOWNLOADED_DATA]
    run(chosen, workspace.root, tmp_path / "logs", workspace.variables(DATA))


def test_a_command_that_is_left_out_is_still_on_its_page() -> None:
    there = {key(page, step) for page in PAGES for step in steps(read(page))}
    assert sorted(LEFT_OUT - there) == []


@pytest.mark.parametrize(("page", "command"), sorted(RUN_BY_CI))
def test_what_is_too_long_to_be_run_here_is_run_before_a_change_lands(
    page: str, command: str
) -> None:
    assert command in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


def test_the_site_is_built_before_a_change_lands() -> None:
    assert "make docs" in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert re.search(r"mkdocs build --strict", (ROOT / "Makefile").read_text(encoding="utf-8"))
