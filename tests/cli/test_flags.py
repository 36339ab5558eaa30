"""Flags follow from the declarations of settings, and messages name settings as flags."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
from typer.core import TyperOption
from typer.testing import CliRunner

from wmr_cli import config
from wmr_cli.cli import app
from wmr_cli.cli.flags import Command, Given, spell_flags, use_flags_of, with_flags
from wmr_cli.config import (
    PANELS,
    Count,
    NonNegative,
    NonNegatives,
    Struct,
    iterate_flags,
    list_settings,
    setting,
)
from wmr_cli.errors import BadInput

OUTPUT = PANELS[-1]


class Toy(Struct, frozen=True, kw_only=True):
    """One setting of each type."""

    batch_size: Annotated[Count, setting("Images.", OUTPUT, "N")] = 1
    eps: Annotated[NonNegative | None, setting("Radius.", OUTPUT, "E")] = None
    alphas: Annotated[NonNegatives | None, setting("Alphas.", OUTPUT, "LIST")] = None
    ages: Annotated[tuple[Count, ...], setting("Ages.", OUTPUT, "LIST")] = ()
    words: Annotated[
        tuple[str, ...], setting("Words.", OUTPUT, names=("--word",), is_repeated=True)
    ] = ()
    mode: Annotated[Literal["fast", "slow"], setting("Mode.", OUTPUT)] = "slow"
    overwrite: Annotated[bool, setting("Replace.", OUTPUT)] = False
    fold: Annotated[bool, setting("Fuse.", OUTPUT, names=("--fold/--no-fold",))] = True
    out: Annotated[Path | None, setting("File.", OUTPUT, "FILE")] = None


def make_app(received: list[Any]) -> typer.Typer:
    """Return a program with two commands that keep what they receive."""

    @with_flags
    def complete(toy: Toy) -> None:
        received.append(toy)

    @with_flags
    def layered(given: Annotated[dict[str, Any], Given(Toy, ("batch_size", "mode"))]) -> None:
        received.append(given)

    toy_app = typer.Typer()
    toy_app.command(cls=Command)(complete)
    toy_app.command(cls=Command)(layered)
    return toy_app


def run(*words: str) -> object:
    """Run a command of the toy program; return what it received."""
    received: list[Any] = []
    CliRunner().invoke(make_app(received), words, catch_exceptions=False)
    (value,) = received
    return value


@pytest.fixture(autouse=True)
def _forget_flags() -> Iterator[None]:
    yield
    use_flags_of(())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], Toy()),
        (["--batch-size", "64"], Toy(batch_size=64)),
        (["--eps", "8/255"], Toy(eps=8 / 255)),
        (["--alphas", "2, 1,1"], Toy(alphas=(1.0, 2.0))),
        (["--ages", "75,55"], Toy(ages=(75, 55))),
        (["--word", "b", "--word", "a"], Toy(words=("b", "a"))),
        (["--mode", "fast"], Toy(mode="fast")),
        (["--overwrite", "--no-fold"], Toy(overwrite=True, fold=False)),
        (["--out", "x"], Toy(out=Path("x"))),
    ],
)
def test_flags_set_the_fields_of_a_struct(words: list[str], expected: Toy) -> None:
    assert run("complete", *words) == expected


def test_a_layered_command_receives_only_what_was_given() -> None:
    assert run("layered") == {}
    assert run("layered", "--mode", "slow") == {"mode": "slow"}


def test_a_command_may_take_a_part_of_the_settings() -> None:
    layered = typer.main.get_command(make_app([])).commands["layered"]  # type: ignore[attr-defined]
    flags = [name for parameter in layered.params for name in parameter.opts]
    assert flags == ["--batch-size", "--mode"]


@pytest.mark.parametrize(
    ("words", "setting_name"),
    [
        (["--batch-size", "0"], "batch_size"),
        (["--eps", "nan"], "eps"),
        (["--alphas", "1,-1"], "alphas"),
        (["--ages", "1.5"], "ages"),
        (["--mode", "fats"], "mode"),
    ],
)
def test_a_bad_value_is_an_error_that_names_the_setting(
    words: list[str], setting_name: str
) -> None:
    with pytest.raises(BadInput) as caught:
        run("complete", *words)
    assert f"`{setting_name}`" in str(caught.value)


def test_help_shows_description_choices_and_default() -> None:
    text = CliRunner().invoke(make_app([]), ["complete", "--help"]).stdout
    (line,) = [line for line in text.splitlines() if "--mode" in line]
    assert "fast|slow" in line
    assert "Mode." in line
    assert "slow]" in line


def test_two_structs_with_the_same_setting_are_an_error() -> None:
    def command(first: Toy, second: Toy) -> None: ...

    with pytest.raises(TypeError):
        with_flags(command)


def test_every_flag_of_the_program_is_a_declared_setting() -> None:
    structs = [
        item
        for item in vars(config).values()
        if inspect.isclass(item) and issubclass(item, Struct) and item is not Struct
    ]
    declared = {key for struct in structs for key in list_settings(struct)}
    program = typer.main.get_command(app)
    for name, command in program.commands.items():  # type: ignore[attr-defined]
        flags = [one for one in command.params if isinstance(one, TyperOption)]
        assert {flag.name for flag in flags} <= declared, name


def test_every_flag_has_a_description_and_a_known_panel() -> None:
    for struct in vars(config).values():
        if inspect.isclass(struct) and issubclass(struct, Struct):
            for declared in iterate_flags(struct):
                assert declared.description.endswith(".")
                assert declared.flag is not None
                assert declared.flag.panel in PANELS


def test_every_setting_has_a_type_that_flags_can_have() -> None:
    for declared in iterate_flags(config.TrainConfig):
        kind = config.value_type(declared.hint)
        assert declared.choices or kind in (bool, int, float, str, Path)


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("use a smaller `batch_size`", "use a smaller --batch-size"),
        ("add `batch_size=64`, or `overwrite=True`", "add --batch-size 64, or --overwrite"),
        ("add `fold=False`", "add --no-fold"),
        ("`rho=1` is a setting of another command", "`rho=1` is a setting of another command"),
        ("see `wmr train --help`", "see `wmr train --help`"),
    ],
)
def test_settings_of_the_command_become_flags(text: str, spelled: str) -> None:
    run("complete")
    assert spell_flags(text) == spelled
