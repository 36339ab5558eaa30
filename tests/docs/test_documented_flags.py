"""Every command on every page has flags that exist and components that can be named, whether or not the page is run."""

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from wmr_cli.cli import app
from wmr_cli.plugins import installed
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
PLACEHOLDER = re.compile(r"\$\{?\w+\}?")
ELSEWHERE = {
    *("stripes", "linear", "half-half", "fooled", "random-corners"),  # plugins/wmr-example
    *(
        "awp",
        "rank",
        "torchattacks",
        "robustbench",
        "bloodmnist",
        "pathmnist",
    ),  # the other packages there
    *("brightness", "mine", "l1-pgd", "shift"),  # what pages have their reader write
}


def commands(text: str) -> list[list[str]]:
    blocks = "\n".join(BLOCK.findall(text)).replace("\\\n", " ")
    return [
        shlex.split(PLACEHOLDER.sub("1", words), comments=True) for words in COMMAND.findall(blocks)
    ]


def parsed(words: list[str]) -> typer.Context:
    """The context of the command that these words call; nothing is run."""
    command, context = typer.main.get_command(app), None
    name = "wmr"
    while True:
        context = command.make_context(name, list(words), parent=context)
        if not isinstance(command, TyperGroup):
            return context
        rest = [*context._protected_args, *context.args]
        if not rest:
            return context
        name, command, words = command.resolve_command(context, rest)


DOCUMENTED = [
    (str(page.relative_to(ROOT)), words)
    for page in PAGES
    for words in commands(page.read_text(encoding="utf-8"))
]


def test_commands_are_found_on_the_pages() -> None:
    assert len(DOCUMENTED) > 100
    assert commands("```sh\nsrun --x wmr train \\\n  --alpha $a  # so\nls\n```\n") == [
        ["train", "--alpha", "1"]
    ]


def components(context: typer.Context) -> list[tuple[str, str]]:
    """Kind and name of every component that a command names, but for classes in files."""
    given = {
        kind: context.params.get(kind) or context.params.get(f"{kind}s") or () for kind in KINDS
    }
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
def test_a_documented_command_can_be_parsed(page: str, words: list[str]) -> None:
    for kind, name in components(parsed(words)):
        assert name in ELSEWHERE or name in installed().registry.names(kind)


def test_a_flag_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(TyperException, match="--alhpa"):
        parsed(["train", "--alhpa", "2"])


@pytest.mark.parametrize("command", ["train", "evaluate", "attack"])
def test_components_are_seen(command: str) -> None:
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
    assert {("attack", "pdg"), ("dataset", "minst")} <= set(components(parsed(words)))
