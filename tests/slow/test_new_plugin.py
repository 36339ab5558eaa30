"""From nothing to a measured method in a clean environment: what the README of a new plugin says works as it is written."""

import json
import re
import shlex
from pathlib import Path

import pytest

from support.virtualenvs import ROOT, Environment

pytestmark = pytest.mark.slow
KINDS = {
    "attack": "attack",
    "model": "model",
    "dataset": "dataset",
    "loss": "defense",
    "kernel": "kernel",
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    clean = Environment(tmp_path_factory.mktemp("clean") / "venv")
    clean.install(ROOT)
    return clean


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_plugin_does_what_its_readme_says(
    kind: str, environment: Environment, tmp_path: Path
) -> None:
    name = f"fresh-{kind}"
    folder = (
        tmp_path / environment.run(tmp_path, "wmr", "plugins", "new", name, "--kind", kind).strip()
    )
    environment.install(folder)
    listed = environment.run(tmp_path, "wmr", "plugins", "--check")
    assert f"wmr-{name} 0.1.0 {KINDS[kind]}s {name}" in [
        " ".join(line.split()) for line in listed.splitlines()
    ]

    commands = re.findall(
        r"^wmr .*$", (folder / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert [shlex.split(command)[1] for command in commands] == [
        "plugins",
        "list",
        "train",
        "evaluate",
    ]
    listing, training, evaluation = (shlex.split(command) for command in commands[1:])
    assert name in environment.run(tmp_path, *listing)
    environment.run(tmp_path, *training)
    records = json.loads(environment.run(tmp_path, *evaluation, "--format", "json"))
    if kind == "loss":  # which an evaluation does not run
        assert records[0]["checkpoint"]["defense"] == f"{name}:beta=10"
    else:
        assert records[0]["plugins"] == {f"wmr-{name}": "0.1.0"}
    assert records[0]["a_nat"]["value"] > 0.5
    assert all(record["a_rob"]["value"] <= record["a_nat"]["value"] for record in records)

    tests = environment.run(
        folder, "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"
    )
    assert re.search(r"\b[1-9]\d* passed", tests)
    assert "failed" not in tests
