"""A package installed by pip: one component of each kind, and hostile packages beside it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "plugins" / "wmr-example"

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "{name}"
version = "1.2.3"
[project.entry-points.wmr]
plugin = "{module}"
"""

HEAD = """from wmr_cli import Entry, hookimpl
entry = Entry('{name}', 'json:loads', 'does nothing')
@hookimpl
"""

HOSTILE = {
    "wmr-fails": "raise RuntimeError('no such driver')",
    "wmr-exits": "import sys\nprint('noise on stdout')\nsys.exit(3)",
    "wmr-misspells": HEAD.format(name="never-seen") + "def wmr_atacks():\n    return [entry]",
    "wmr-takes": HEAD.format(name="pgd") + "def wmr_attacks():\n    return [entry]",
    "wmr-returns": HEAD.format(name="returned")
    + "def wmr_attacks():\n    return [('returned', 'json:loads')]",
}
REASONS = {
    "wmr-fails": "no such driver",
    "wmr-exits": "SystemExit",
    "wmr-misspells": "wmr_atacks",
    "wmr-takes": "by both wmr-cli and wmr-takes",
    "wmr-returns": "must return a list of Entry",
}


def write_package(folder: Path, name: str, code: str) -> Path:
    module = name.replace("-", "_")
    package = folder / name
    package.mkdir()
    (package / "pyproject.toml").write_text(PYPROJECT.format(name=name, module=module))
    (package / f"{module}.py").write_text(code)
    return package


def install(target: Path, packages: list[Path]) -> None:
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    subprocess.run([*pip, "--disable-pip-version-check", "--target", target, *packages], check=True)


def wmr(target: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    paths = [str(target), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-m", "wmr_cli", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def friendly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the example package alone."""
    folder = tmp_path_factory.mktemp("friendly")
    shutil.copytree(EXAMPLE, folder / "package")
    install(folder / "site", [folder / "package"])
    return folder / "site"


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the example package, five hostile ones, and one whose target does not exist."""
    folder = tmp_path_factory.mktemp("crowded")
    shutil.copytree(EXAMPLE, folder / "package")
    absent = (
        HEAD.format(name="absent").replace("json:loads", "json:no_such_thing")
        + "def wmr_models():\n    return [entry]"
    )
    packages = [
        write_package(folder, name, code)
        for name, code in {**HOSTILE, "wmr-absent": absent}.items()
    ]
    install(folder / "site", [folder / "package", *packages])
    return folder / "site"


def names(target: Path, folder: Path) -> set[str]:
    listed = wmr(target, folder, "list")
    assert listed.returncode == 0, listed.stderr
    return {" ".join(line.split()[:2]) for line in listed.stdout.splitlines() if "wmr-" in line}


def test_hostile_plugins_change_nothing_but_the_list_of_those_set_aside(
    friendly: Path, crowded: Path, tmp_path: Path
) -> None:
    assert names(crowded, tmp_path) - names(friendly, tmp_path) == {"model absent"}
    shown = wmr(crowded, tmp_path, "plugins")
    assert shown.returncode == 0
    assert "noise on stdout" not in shown.stdout
    for name, reason in REASONS.items():
        line = next(line for line in shown.stdout.splitlines() if name in line)
        assert reason in line
        assert "1.2.3" in line


def test_check_names_the_broken_ones_and_the_target_that_does_not_exist(
    friendly: Path, crowded: Path, tmp_path: Path
) -> None:
    assert wmr(friendly, tmp_path, "plugins", "--check").returncode == 0
    checked = wmr(crowded, tmp_path, "plugins", "--check")
    assert checked.returncode == 1
    assert all(f"{name}: " in checked.stderr for name in HOSTILE)
    assert "model 'absent' of wmr-absent cannot be loaded" in checked.stderr
    built = wmr(crowded, tmp_path, "train", "--model", "absent")
    assert built.returncode == 2
    assert "model 'absent' of wmr-absent cannot be loaded" in built.stderr
    assert "Traceback" not in built.stderr
    missed = wmr(crowded, tmp_path, "list", "attacks", "wmr-no-such-name")
    assert missed.returncode == 1
    assert "warning: not loaded: " in missed.stderr


@pytest.mark.slow
def test_one_name_of_each_kind_trains_attacks_and_evaluates(crowded: Path, tmp_path: Path) -> None:
    parts = [
        "--dataset",
        "stripes",
        "--model",
        "linear",
        "--defense",
        "half-half",
        "--kernel",
        "misclassified:factor=3",
    ]
    trained = wmr(
        crowded,
        tmp_path,
        "train",
        *parts,
        "--attack",
        "random-corners:tries=2",
        "--eps",
        "0.3",
        "--epochs",
        "2",
        "--out",
        "run",
    )
    assert trained.returncode == 0, trained.stderr
    flags = ["--attack", "random-corners:tries=3", "--format", "json"]
    attacked = wmr(crowded, tmp_path, "attack", "run", *flags)
    assert attacked.returncode == 0, attacked.stderr
    assert json.loads(attacked.stdout)["attack"] == "random-corners:tries=3"
    evaluated = wmr(crowded, tmp_path, "evaluate", "run", *flags, "--kernel", "misclassified")
    assert evaluated.returncode == 0, evaluated.stderr
    (record,) = json.loads(evaluated.stdout)
    assert record["plugins"] == {"wmr-example": "0.1.0"}
    assert record["dataset"]["name"] == "stripes"
    assert [row["alpha_test"] for row in record["by_alpha"]] == [None]
    assert record["by_alpha"][0]["a_sa"]["value"] <= record["a_rob"]["value"]


def test_the_package_passes_its_own_tests(friendly: Path, tmp_path: Path) -> None:
    paths = [str(friendly), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-c",
        os.devnull,
        f"--rootdir={tmp_path}",
        "-p",
        "no:cacheprovider",
    ]
    run = subprocess.run(
        [*command, str(EXAMPLE / "tests")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout
