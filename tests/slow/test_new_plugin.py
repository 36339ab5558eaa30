"""A new plugin works in a clean environment with the commands of its README."""

import json
import re
import shlex
from pathlib import Path

import pytest

from support.virtualenvs import ROOT, Environment

pytestmark = pytest.mark.slow
KINDS = ("attack", "model", "dataset", "defense", "kernel", "verifier", "logger")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    environment = Environment(tmp_path_factory.mktemp("clean") / "venv")
    environment.install(ROOT)
    return environment


@pytest.mark.parametrize("kind", KINDS)
def test_the_commands_in_the_readme_of_a_new_plugin_work(
    kind: str, environment: Environment, tmp_path: Path
) -> None:
    name = f"fresh-{kind}"
    created = environment.run(tmp_path, "wmr", "plugins", "new", name, "--kind", kind).strip()
    folder = tmp_path / created
    environment.install(folder)
    listed = environment.run(tmp_path, "wmr", "plugins", "--check")
    rows = [" ".join(line.split()) for line in listed.splitlines()]
    assert f"wmr-{name} 0.1.0 {kind}s {name}" in rows

    readme = (folder / "README.md").read_text(encoding="utf-8")
    commands = [shlex.split(line) for line in re.findall(r"^wmr .*$", readme, re.MULTILINE)]
    _, list_command, *run_commands = commands
    assert name in environment.run(tmp_path, *list_command)
    if kind == "verifier":
        (example,) = re.findall(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
        assert "Bounds(" in environment.run(tmp_path, "python", "-c", example)
    else:
        run_readme_commands(environment, tmp_path, run_commands, name, kind)

    pytest_command = ["python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    tests = environment.run(folder, *pytest_command)
    assert re.search(r"\b[1-9]\d* passed", tests)
    assert "failed" not in tests


def run_readme_commands(
    environment: Environment, folder: Path, commands: list[list[str]], name: str, kind: str
) -> None:
    """Train and evaluate with a new component, and check the records."""
    train_command, evaluate_command = commands
    assert train_command[1] == "train"
    environment.run(folder, *train_command)
    records = json.loads(environment.run(folder, *evaluate_command, "--format", "json"))
    if kind == "logger":
        written = folder / train_command[-1] / name
        assert len((written / "epochs.jsonl").read_text().splitlines()) == 2
        assert json.loads((written / "evaluations.json").read_text())[0]["id"] == records[0]["id"]
    elif kind == "defense":
        # an evaluation does not run the defense, so its plugin is not in the record
        assert records[0]["checkpoint"]["defense"] == f"{name}:beta=10"
    else:
        assert records[0]["plugins"] == {f"wmr-{name}": "0.1.0"}
    assert records[0]["a_nat"]["value"] > 0.5
    assert all(record["a_rob"]["value"] <= record["a_nat"]["value"] for record in records)
