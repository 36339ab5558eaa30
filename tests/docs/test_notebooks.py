"""Notebooks run, and their stored outputs are those of this version."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import notebook_pages
from notebook_pages import FOLDER, Notebook

FILES = sorted(FOLDER.glob("*.ipynb"))
NUMBER = re.compile(r"(?<![\w.])[+-]?\d+(?:\.\d+)?(?!\w)")
MAX_BYTES = 150_000
# what another machine or day would change
LOCAL = re.compile(r"/(?:home|root|tmp|work|Users)/|\b\d{4}-\d\d-\d\d\b|\d+ images/s|\d s\b")


def list_outputs(notebook: Notebook) -> dict[str, list[dict[str, str]]]:
    """Return the texts of each code cell by its id, by their type or stream."""
    return {
        cell["id"]: [_list_texts(output) for output in cell["outputs"]]
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    }


def _list_texts(output: dict[str, Any]) -> dict[str, str]:
    found = output["data"] if "data" in output else {output["name"]: output["text"]}
    return {kind: "".join(text) for kind, text in found.items() if "image" not in kind}


def mask_numbers(text: str) -> str:
    # the widths of columns follow from the numbers
    return re.sub(r"\s+|─+|\*\*", " ", NUMBER.sub("#", text))


def make_notebook(*sources: str) -> Notebook:
    cells: list[dict[str, Any]] = [
        {
            "cell_type": "code", "id": f"cell{number}", "metadata": {}, "source": [source],
            "execution_count": None, "outputs": [],
        }
        for number, source in enumerate(sources)
    ]  # fmt: skip
    return {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_notebook_runs_with_the_stored_outputs(file: Path, tmp_path: Path) -> None:
    stored = notebook_pages.read_notebook(file)
    found = list_outputs(notebook_pages.execute(stored, tmp_path))
    expected = list_outputs(stored)
    assert found.keys() == expected.keys()
    for name, outputs in expected.items():
        assert [output.keys() for output in found[name]] == [output.keys() for output in outputs]
        for output, own in zip(outputs, found[name], strict=True):
            for kind, text in output.items():
                assert mask_numbers(own[kind]) == mask_numbers(text), name
                # other processors round in another way, which training amplifies
                numbers = [float(number) for number in NUMBER.findall(text)]
                tolerance = pytest.approx(numbers, rel=0.1, abs=2)
                assert list(map(float, NUMBER.findall(own[kind]))) == tolerance, name


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_stored_notebook_was_executed_and_is_the_same_everywhere(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert len(text.encode()) < MAX_BYTES
    notebook = json.loads(text)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    counts = [cell["execution_count"] for cell in cells]
    assert counts == list(range(1, len(cells) + 1))
    outputs = list_outputs(notebook)
    assert any(outputs.values())
    assert LOCAL.findall(str(outputs)) == []
    assert "stderr" not in str(outputs)


@pytest.mark.parametrize("source", ["1 / 0", "%%bash\nwmr evaluate runs/nothing"])
def test_a_cell_that_fails_is_an_error(source: str, tmp_path: Path) -> None:
    from nbclient.exceptions import CellExecutionError

    with pytest.raises(CellExecutionError):
        notebook_pages.execute(make_notebook("1", source), tmp_path)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_page_has_the_text_the_code_and_the_outputs(file: Path) -> None:
    notebook = notebook_pages.read_notebook(file)
    page = notebook_pages.to_markdown(notebook)
    assert page.startswith("# ")
    for cell in notebook["cells"]:
        assert "".join(cell["source"]).rstrip() in page
    assert page.count("data:image/png;base64,") == str(notebook).count("'image/png'") == 1
    assert "<style" not in page
    assert page.count("```") % 2 == 0


def test_links_lead_to_the_page_of_a_notebook() -> None:
    text = "[a](notebooks/a-b.ipynb) [c](c.md)"
    assert notebook_pages.LINK.sub(r"](\1.md)", text) == "[a](notebooks/a-b.md) [c](c.md)"
