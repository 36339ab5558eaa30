"""All commands in the documentation have existing flags and components."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
from typer._click.core import Command
from typer.core import TyperGroup
from typer.exceptions import TyperException

from support.typed import not_none
from wmr_cli.cli import app
from wmr_cli.plugins import load_plugins
from wmr_cli.registry import KINDS
from wmr_cli.spec import Spec

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "plugins").glob("*/README.md")),
]
BLOCK = re.compile(r"^ *```sh\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(
    r"^ *(?:srun [^#\n]*?|torchrun [^#\n]*?-m )?(?:wmr|wmr_cli) (.*)$", re.MULTILINE
)
SHELL_VARIABLE = re.compile(r"\$\{?\w+\}?")
EXAMPLE_PLUGIN = {"stripes", "linear", "half-half", "misclassified", "random-corners"}
OTHER_PLUGINS = {"awp", "rank", "torchattacks", "robustbench", "bloodmnist", "pathmnist", "hf"}
PLUGIN_COMMANDS = {"push", "pull"}
WRITTEN_BY_THE_READER = {"brightness", "mine", "l1-pgd", "shift"}
EXTERNAL = EXAMPLE_PLUGIN | OTHER_PLUGINS | WRITTEN_BY_THE_READER


def find_commands(text: str) -> list[list[str]]:
    """Return the words of all `wmr` commands in `sh` blocks, with variables replaced."""
    blocks = "\n".join(BLOCK.findall(text)).replace("\\\n", " ")
    return [
        shlex.split(SHELL_VARIABLE.sub("1", words), comments=True)
        for words in COMMAND.findall(blocks)
    ]


def parse(words: list[str]) -> dict[str, Any]:
    """Return the parameters of a command without running it."""
    name: str | None = "wmr"
    command: Command | None = typer.main.get_command(app)
    context = None
    while True:
        context = not_none(command).make_context(name, list(words), parent=context)
        rest = [*context._protected_args, *context.args]
        if not isinstance(command, TyperGroup) or not rest:
            return context.params
        name, command, words = command.resolve_command(context, rest)


DOCUMENTED = [
    (str(page.relative_to(ROOT)), words)
    for page in PAGES
    for words in find_commands(page.read_text(encoding="utf-8"))
    if words[0] not in PLUGIN_COMMANDS
]


def test_commands_are_found_on_the_pages() -> None:
    assert len(DOCUMENTED) > 100
    assert find_commands("```sh\nsrun --x wmr train \\\n  --alpha $a  # so\nls\n```\n") == [
        ["train", "--alpha", "1"]
    ]


def find_components(params: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return kind and name of the components of a command. Classes in files are left out."""
    given = {kind: params.get(kind) or params.get(f"{kind}s") or () for kind in KINDS}
    texts = [
        (kind, text)
        for kind, value in given.items()
        for text in ([value] if isinstance(value, str) else value)
    ]
    return [(kind, Spec.parse(text).name) for kind, text in texts if ".py:" not in text]


@pytest.mark.parametrize(
    ("page", "words"),
    DOCUMENTED,
    ids=lambda part: part if isinstance(part, str) else shlex.join(part),
)
def test_a_documented_command_can_be_parse(page: str, words: list[str]) -> None:
    for kind, name in find_components(parse(words)):
        assert name in EXTERNAL or name in load_plugins().registry.names(kind)


def test_parsing_fails_for_an_unknown_flag() -> None:
    with pytest.raises(TyperException, match="--alhpa"):
        parse(["train", "--alhpa", "2"])


@pytest.mark.parametrize("command", ["train", "evaluate", "attack"])
def test_components_of_a_command_are_found(command: str) -> None:
    checkpoint = [] if command == "train" else ["run"]
    words = [
        command,
        *checkpoint,
        "--attack",
        "pdg:steps=2",
        "--model",
        "net.py:Net",
        "--dataset",
        "minst",
    ]
    assert {("attack", "pdg"), ("dataset", "minst")} <= set(find_components(parse(words)))
