"""`wmr plugins new` writes a package that works, or nothing."""

import ast
import errno
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import EntryPoint
from importlib.resources import files
from pathlib import Path

import pytest

from wmr_cli import scaffold as module
from wmr_cli import testing
from wmr_cli.errors import BadInput, RunFolderError
from wmr_cli.plugins import check_targets, collect
from wmr_cli.registry import Registry
from wmr_cli.scaffold import KIND_WITH_ARTICLE, scaffold

PUBLIC = ("wmr_cli", "wmr_cli.core", "wmr_cli.measures", "wmr_cli.testing")
KINDS = tuple(KIND_WITH_ARTICLE)
EVERY_PACKAGE = {"pyproject.toml", "README.md"}


@pytest.fixture
def full_package(registry: Registry) -> Path:
    """Write a package with a component of every kind."""
    return scaffold("two-words", list(KINDS), None, registry)


def list_files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["mine", "wmr-mine"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_package_has_its_kind_and_no_other(name: str, kind: str, registry: Registry) -> None:
    folder = scaffold(name, [kind], None, registry)
    assert folder == Path("wmr-mine")
    parts = {"src/wmr_mine/__init__.py", f"src/wmr_mine/{kind}.py", f"tests/test_{kind}.py"}
    assert list_files(folder) == EVERY_PACKAGE | parts
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert (project["name"], project["entry-points"]["wmr"]) == ("wmr-mine", {"mine": "wmr_mine"})
    assert list(Path().iterdir()) == [folder]


def test_the_old_name_of_a_defense_works(registry: Registry) -> None:
    old, new = (scaffold("mine", [kind], Path(kind), registry) for kind in ("loss", "defense"))
    contents = [
        {name: (folder / name).read_text() for name in list_files(folder)} for folder in (old, new)
    ]
    assert contents[0] == contents[1]


def test_a_package_of_every_kind_is_readable(full_package: Path) -> None:
    assert len(list_files(full_package)) == len(EVERY_PACKAGE) + 1 + 2 * len(KINDS)
    readme = (full_package / "README.md").read_text()
    offers = "An attack, a model, a dataset, a defense, a kernel, a verifier and a logger"
    assert f"{offers} called `two-words`" in readme
    trained = [kind for kind in KINDS if kind != "verifier"]
    assert [kind for kind in trained if f"wmr train --{kind} two-words" not in readme] == []
    assert 'certify="two-words"' in readme
    for path in full_package.rglob("*.*"):
        assert not path.is_file() or "$" not in path.read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_the_places_to_change_are_marked(full_package: Path, kind: str) -> None:
    modules = [
        full_package / "src" / "wmr_two_words" / f"{kind}.py",
        full_package / "tests" / f"test_{kind}.py",
    ]
    assert [path.read_text().count("# CHANGE: ") for path in modules] == [1, 1]


def test_only_public_modules_are_imported(full_package: Path) -> None:
    found = set()
    for path in full_package.rglob("*.py"):
        found |= {
            node.module
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and node.module
        }
    ours = {name for name in found if name.startswith("wmr_cli")}
    assert ours
    assert {
        name
        for name in ours
        if not any(name == public or name.startswith(f"{public}.") for public in PUBLIC[1:])
    } == {"wmr_cli"}


def test_the_code_is_formatted_and_linted(full_package: Path) -> None:
    ruff = [sys.executable, "-m", "ruff"]
    rules = "E,F,W,I,B,C4,N,PTH,RET,RUF,SIM,UP,PERF,PT"
    for words in (["check", "--select", rules], ["format", "--check"]):
        done = subprocess.run(
            [*ruff, *words, "--isolated", "--no-cache", "--line-length", "100"],
            cwd=full_package, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout


def test_every_component_is_registered_and_meets_its_contract(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # another name: an imported package stays in sys.modules
    monkeypatch.syspath_prepend(scaffold("imported", list(KINDS), None, registry) / "src")
    found = collect([EntryPoint("imported", "wmr_imported", "wmr")])
    assert found.broken == []
    assert found.plugins[0].offers == {kind: ["imported"] for kind in KINDS}
    assert check_targets(found.registry) == []
    make = found.registry.create
    testing.check_attack(make("attack", "imported", eps=0.1))
    testing.check_model(
        lambda **given: make("model", "imported:width=4", **given), input_shape=(1, 8, 8)
    )
    testing.check_dataset(make("dataset", "imported", root=tmp_path))
    testing.check_defense(make("defense", "imported"))
    testing.check_kernel(make("kernel", "imported"))
    testing.check_verifier(make("verifier", "imported"))
    testing.check_logger(lambda: make("logger", "imported"))


def test_every_template_is_in_use(full_package: Path) -> None:
    assert full_package  # reads those of all kinds
    templates = Path(str(files(module))) / "templates"
    per_kind = {
        f"{kind}/{name}"
        for kind in KINDS
        for name in ("hook.py", "module.py", "test.py", "README.md")
    }
    assert list_files(templates) == {
        f"{name}.txt" for name in {"README.md", "hooks.py", "pyproject.toml"} | per_kind
    }


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Mine",
        "my_attack",
        "my attack",
        "3d",
        "-mine",
        "mine-",
        "a--b",
        "wmr-",
        "é",
        "../up",
        "a.b",
    ],
)
def test_an_invalid_name_is_refused_with_a_valid_suggestion(name: str, registry: Registry) -> None:
    with pytest.raises(BadInput, match=re.escape(repr(name))) as refused:
        scaffold(name, ["model"], None, registry)
    suggested = re.findall(r"'([^']+)'", refused.value.hint)[-1]
    assert list(Path().iterdir()) == []
    assert scaffold(suggested, ["model"], None, registry).is_dir()


@pytest.mark.parametrize(
    ("name", "kinds", "problem"),
    [
        ("trades", ["defense"], "'trades'"),
        ("trades", ["loss"], "'trades'"),
        ("exp", ["attack", "kernel"], "'exp'"),
        ("wmr-mnist", ["dataset"], "'mnist'"),
        ("cli", ["attack"], "wmr-cli"),
    ],
)
def test_a_name_that_is_taken_is_refused(
    name: str, kinds: list[str], problem: str, registry: Registry
) -> None:
    with pytest.raises(BadInput, match=problem):
        scaffold(name, kinds, None, registry)
    assert list(Path().iterdir()) == []


def test_a_name_that_is_taken_by_another_kind_is_free(registry: Registry) -> None:
    assert scaffold("trades", ["kernel"], None, registry).is_dir()


@pytest.mark.parametrize(
    "occupy",
    [
        lambda path: (path / "work").mkdir(parents=True),
        Path.touch,
        lambda path: path.symlink_to("nowhere"),
    ],
    ids=["folder", "file", "link"],
)
def test_an_existing_path_is_not_changed(
    occupy: Callable[[Path], object], registry: Registry
) -> None:
    occupy(Path("wmr-mine"))
    before = sorted(Path().rglob("*"))
    with pytest.raises(RunFolderError, match="wmr-mine"):
        scaffold("mine", ["model"], None, registry)
    assert sorted(Path().rglob("*")) == before


def test_an_empty_folder_is_filled_even_the_current_one(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("mine").mkdir()
    monkeypatch.chdir("mine")
    folder = scaffold("mine", ["model"], Path(), registry).resolve()
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "pyproject.toml",
        "src",
        "tests",
    ]


def test_a_full_disk_leaves_no_files(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = iter(range(3))
    write_text = Path.write_text

    def full_disk(path: Path, text: str, encoding: str | None = None) -> int:
        if next(texts, None) is None:
            raise OSError(errno.ENOSPC, "no space left on device")
        return write_text(path, text, encoding)

    monkeypatch.setattr(Path, "write_text", full_disk)
    with pytest.raises(RunFolderError, match="wmr-mine"):
        scaffold("mine", ["model"], None, registry)
    assert list(Path().iterdir()) == []
