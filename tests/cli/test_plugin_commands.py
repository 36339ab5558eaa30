"""Commands of plugins, and places of checkpoints such as `hf:owner/name`."""

from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest
from typer.testing import CliRunner

from support.cli_runner import wmr
from wmr_cli import plugins
from wmr_cli.cli import app, plugin_commands
from wmr_cli.cli.app import COMMANDS
from wmr_cli.plugins import GROUP, collect
from wmr_cli.registry import OWN_COMMANDS

HOOKS = """
from wmr_cli import Entry, hookimpl

@hookimpl
def wmr_commands():
    return [Entry("greet", "{module}_commands:greet", "Greet [someone].")]

@hookimpl
def wmr_checkpoints():
    return [Entry("shelf", "{module}_commands:find", "a shelf"),
            Entry("broken-shelf", "{module}_commands:find_nothing", "a shelf")]
"""
COMMAND_MODULE = '''
from pathlib import Path
from typing import Annotated

import typer

from wmr_cli import BadInput, Spec


def greet(name: str, times: Annotated[int, typer.Option(help="How often.")] = 1) -> None:
    """Greet someone."""
    if times < 0:
        raise BadInput(f"{times} is negative", hint="greet at least once")
    for _ in range(times):
        typer.echo(f"hello {name}")


def find(root: Path, name: str):
    return Spec.parse("digits-cnn") if name == "model" else Path(name)


def find_nothing(root: Path, name: str):
    return None
'''


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Install a plugin with a command and a place of checkpoints; return its module."""
    name = f"{tmp_path.name}_plugin".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(HOOKS.format(module=name))
    (tmp_path / f"{name}_commands.py").write_text(COMMAND_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    built_in = entry_points(group=GROUP).select(name="builtins")
    found = collect([*built_in, EntryPoint(name="greeter", value=name, group=GROUP)])
    assert found.plugins[-1].offers == {
        "checkpoint": ["shelf", "broken-shelf"],
        "command": ["greet"],
    }
    monkeypatch.setattr(plugins, "load_plugins", lambda: found)
    monkeypatch.setattr(plugin_commands, "has_plugins", lambda: True)
    return name


def test_the_names_of_own_commands_are_reserved(tmp_path: Path) -> None:
    assert [name for name, _, _ in COMMANDS] == list(OWN_COMMANDS)
    source = HOOKS.replace('"greet"', '"train"').format(module="none")
    (tmp_path / f"{tmp_path.name.replace('-', '_')}_clash.py").write_text(source)
    module = f"{tmp_path.name.replace('-', '_')}_clash"
    found = collect([EntryPoint(name="clash", value=module, group=GROUP)])
    assert "'train'" in (found.plugins[0].problem or "")
    assert found.registry.names("command") == []


def test_a_command_is_listed_without_importing_its_module(tmp_path: Path, module: str) -> None:
    (tmp_path / f"{module}_commands.py").write_text("raise SystemExit('imported')")
    shown = wmr("--help").stdout
    assert "greet" in shown
    assert "Greet [someone]." in shown


def test_a_command_runs_with_its_parameters() -> None:
    assert wmr("greet", "world", "--times", "2").stdout == "hello world\nhello world\n"
    assert "How often." in wmr("greet", "--help").stdout


def test_errors_of_a_command_are_those_of_any_other() -> None:
    refused = CliRunner().invoke(app, ["greet", "world", "--times", "-1"], prog_name="wmr")
    assert refused.exit_code == 2
    assert refused.stderr == "error: -1 is negative\nhint: greet at least once\n"
    assert wmr("greet", status=2).stderr.startswith("error: missing argument")


def test_a_plugin_resolves_a_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "run"
    wmr("train", "--epochs", "1", "--out", run, "-q")
    words = ("--attack", "noise", "--limit", "20", "--metrics", "nat", "-q")
    wmr("evaluate", f"shelf:{run}", *words)
    assert len(list((run / "evaluations").glob("*.json"))) == 1


def test_a_plugin_may_resolve_a_model(tmp_path: Path) -> None:
    words = ("--attack", "noise", "--limit", "20", "--metrics", "nat", "--out", tmp_path / "out")
    wmr("evaluate", "shelf:model", "--dataset", "digits", "--eps", "0.1", *words)
    assert len(list((tmp_path / "out").glob("*.json"))) == 1
    both = wmr("evaluate", "shelf:model", "--model", "digits-cnn", *words, status=2)
    assert "both name a model" in both.stderr
    missing = wmr("evaluate", "broken-shelf:x", *words, status=2)
    assert "NoneType" in missing.stderr


def test_an_existing_file_is_never_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken-shelf:x").write_text("not a checkpoint")
    refused = wmr("evaluate", "broken-shelf:x", status=2)
    assert "is not a checkpoint" in refused.stderr
