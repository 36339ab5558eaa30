"""Python examples on the pages run, and plugins on the pages pass the checks."""

import re
import shutil
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wmr_cli import testing
from wmr_cli.measures import plain_accuracy
from wmr_cli.plugins import collect
from wmr_cli.registry import Registry
from wmr_cli.scaffold import scaffold
from wmr_cli.storage import checkpoints

DOCS = Path(__file__).parents[2] / "docs"


def read_page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def find_blocks(page: str, language: str, containing: str = "") -> list[str]:
    """Return the fenced blocks of a page in this language with this text."""
    blocks = re.findall(rf"```{language}\n(.*?)```", read_page(page), re.DOTALL)
    return [block for block in blocks if containing in block]


def run_block(page: str, containing: str = "") -> dict[str, Any]:
    """Run the only matching Python block of a page, and return its names."""
    (block,) = find_blocks(page, "python", containing)
    names: dict[str, Any] = {}
    exec(block, names)
    return names


def test_the_documented_hash_is_the_stored_one(tiny_run: Path) -> None:
    content_hash = run_block("checkpoints.md", "def content_hash")["content_hash"]
    file = tiny_run / "last.safetensors"
    assert content_hash(file) == checkpoints.load(file).sha256


def test_the_example_plugin_passes_the_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (metadata,) = find_blocks("hooks.md", "toml")
    ((name, module),) = tomllib.loads(metadata)["project"]["entry-points"]["wmr"].items()
    (source,) = find_blocks("hooks.md", "python", "@hookimpl")
    (tmp_path / f"{module}.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    plugins = collect([EntryPoint(name, module, "wmr")])
    assert not plugins.broken
    testing.check_attack(plugins.registry.create("attack", "brightness", eps=0.1))


def test_the_guide_shows_the_files_and_commands_of_a_new_plugin(
    tmp_path: Path, registry: Registry
) -> None:
    guide = read_page("hooks.md").partition("## By hand")[0]
    folder = scaffold("mine", ["attack"], tmp_path / "wmr-mine", registry)
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert set(re.findall(r"^[├└]── (\S+)", guide, re.MULTILINE)) == files
    readme = (folder / "README.md").read_text(encoding="utf-8")
    commands = re.findall(
        r"^(?:wmr (?!plugins new)|pip install -e|python -m pytest).*$", guide, re.MULTILINE
    )
    assert len(commands) == 6
    assert [command for command in commands if f"\n{command}\n" not in readme] == []


def test_the_example_model_passes_the_check() -> None:
    testing.check_model(run_block("models.md")["MyNet"])


def test_the_examples_for_notebooks_run(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(tiny_run, tmp_path / "runs" / "digits-trades-a2-s0")
    names: dict[str, Any] = {}
    for example in find_blocks("python.md", "python"):
        exec(example, names)
    assert re.match(r"\d+\.\d % \[\d+\.\d, \d+\.\d\]\n", capsys.readouterr().out)
    assert names["found"].record.checkpoint.path == "linear"
    assert names["again"].record == names["result"].record
    assert names["attacked"].images.shape == (200, 1, 8, 8)
    assert names["running"].compute().plain == plain_accuracy(names["right"])


@pytest.mark.parametrize(
    ("containing", "output"),
    [
        ("plain_accuracy(right)", "75.0 % [30.1, 95.4]\n"),
        ("worst_case(", "2.207"),
        ("Resamples(", "True\n"),
    ],
)
def test_the_examples_of_the_metrics_print_the_shown_numbers(
    containing: str, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_block("metrics.md", containing)
    assert output in capsys.readouterr().out


def test_a_higher_temperature_brings_a_sa_nearer_to_a_rob(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(50, 4))
    rows = {
        "label": rng.integers(4, size=50),
        "uniform/logits": logits,
        "uniform/prediction": logits.argmax(axis=1),
    }
    monkeypatch.setattr("safetensors.numpy.load_file", lambda path: rows)
    run_block("metrics.md", "temperature")
    values = [float(value) for value in re.findall(r"([\d.]+) % \[", capsys.readouterr().out)]
    assert len(values) == 3
    assert values == sorted(values)
