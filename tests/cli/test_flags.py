"""Settings in messages are spelled as flags of the running command."""

from collections.abc import Iterator
from typing import Annotated

import pytest
import typer

from wmr_cli.cli.flags import spell_flags, use_flags_of


def command(
    batch_size: int = 1,
    overwrite: Annotated[bool, typer.Option("--overwrite")] = False,
    fold: Annotated[bool, typer.Option("--fold/--no-fold")] = True,
) -> None: ...


@pytest.fixture(autouse=True)
def _flags() -> Iterator[None]:
    app = typer.Typer()
    app.command()(command)
    use_flags_of(typer.main.get_command(app).params)
    yield
    use_flags_of(())


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
    assert spell_flags(text) == spelled
