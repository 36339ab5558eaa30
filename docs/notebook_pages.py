"""Notebooks of the docs: `python docs/notebook_pages.py` executes them and stores their outputs.

It is also a hook of MkDocs, which shows every notebook as a page. Pages link to the `.ipynb` file,
so that links work in the repository as well.
"""

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

FOLDER = Path(__file__).parent / "notebooks"
CELL_TIMEOUT = 300
"""Seconds until a cell, or the start of its process, has failed."""
LINK = re.compile(r"\]\(([\w./-]+)\.ipynb\)")
STYLE = re.compile(r"<style.*?</style>\s*", re.DOTALL)
Output = Mapping[str, Any]
Notebook = dict[str, Any]


def read_notebook(file: Path) -> Notebook:
    """Return the content of a notebook."""
    notebook: Notebook = json.loads(file.read_text(encoding="utf-8"))
    return notebook


# ---- execution ----


def execute(notebook: Notebook, folder: Path) -> Notebook:
    """Return the notebook with the outputs of its cells, run in this folder.

    A cell that fails raises CellExecutionError.
    """
    # the environment of the docs has no Jupyter
    import nbclient
    import nbformat

    executed = nbformat.reads(json.dumps(notebook), as_version=4)  # type: ignore[no-untyped-call]
    client = nbclient.NotebookClient(
        executed,
        timeout=CELL_TIMEOUT,
        startup_timeout=CELL_TIMEOUT,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    )
    manager = client.create_kernel_manager()
    # the commands of this environment, and no settings of the user
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    home = {"IPYTHONDIR": str(folder / ".ipython"), "OMP_NUM_THREADS": "1"}
    environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    # sockets in a folder of their own: the length of their path is limited
    with tempfile.TemporaryDirectory() as sockets:
        manager.transport = "ipc"
        manager.ip = str(Path(sockets) / "kernel")
        client.execute(env={**environment, **home, "PATH": path})
    result: Notebook = json.loads(nbformat.writes(executed))  # type: ignore[no-untyped-call]
    # the version of Python does not matter
    result["metadata"] = notebook["metadata"]
    return result


def main() -> None:
    """Execute all notebooks and store them."""
    for file in sorted(FOLDER.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder:
            executed = execute(read_notebook(file), Path(folder))
        text = json.dumps(executed, ensure_ascii=False, indent=1)
        file.write_text(text + "\n", encoding="utf-8")


# ---- pages ----


def to_markdown(notebook: Notebook) -> str:
    """Return a notebook with its outputs as a page."""
    parts: list[str] = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        language = "sh" if source.startswith("%%bash") else "python"
        parts.append(_fence(source, language))
        parts += map(_show_output, cell["outputs"])
    return "\n\n".join(parts) + "\n"


def _show_output(output: Output) -> str:
    if output["output_type"] == "stream":
        return _fence("".join(output["text"]), "text")
    data: Mapping[str, str | list[str]] = output["data"]
    kind = next(kind for kind in _SHOW if kind in data)
    return _SHOW[kind]("".join(data[kind]))


def _fence(text: str, language: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"


# the first that an output has
_SHOW: dict[str, Callable[[str], str]] = {
    "image/png": lambda data: f"![](data:image/png;base64,{data.strip()})",
    "text/markdown": str,
    # a style sheet of a table would be valid for the whole site
    "text/html": lambda html: STYLE.sub("", html),
    "text/plain": lambda text: _fence(text, "text"),
}


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Add a page for every notebook."""
    from mkdocs.structure.files import File

    for file in list(files):
        if file.src_uri.endswith(".ipynb"):
            page = str(Path(file.src_uri).with_suffix(".md"))
            content = to_markdown(json.loads(file.content_string))
            files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, page: "Page", config: "MkDocsConfig", files: "Files") -> str:
    """Let links to notebooks lead to their pages."""
    return LINK.sub(r"](\1.md)", markdown)


if __name__ == "__main__":
    main()
