"""Spell settings in messages as flags of the running command.

Modules below `cli` write "`batch_size`" or "`overwrite=True`" (see `errors.py`). Here these become
`--batch-size` and `--overwrite`. There is one running command per process.
"""

import re
from collections.abc import Iterable

from typer.core import TyperOption

SETTING = re.compile(r"`(?P<name>[a-z][a-z0-9_]*)(?:=(?P<value>[^`]*))?`")

_flags: dict[str, tuple[str, str | None]] = {}
"""Settings of the running command: the flag, and the flag that switches it off if there is one."""


def use_flags_of(parameters: Iterable[object]) -> None:
    """Spell settings as these parameters of a command from now on."""
    _flags.clear()
    for parameter in parameters:
        if isinstance(parameter, TyperOption):
            flag = parameter.opts[0]
            off = parameter.secondary_opts[0] if parameter.secondary_opts else None
            _flags[flag.removeprefix("--").replace("-", "_")] = (flag, off)


def spell_flags(text: str) -> str:
    """Replace every setting in backticks that the running command has by its flag."""
    return SETTING.sub(_spell_flag, text)


def _spell_flag(match: re.Match[str]) -> str:
    if match["name"] not in _flags:
        return match[0]
    flag, off = _flags[match["name"]]
    value = match["value"]
    if value is None or value == "True":
        return flag
    if value == "False":
        return off or f"no {flag}"
    return f"{flag} {value}"
