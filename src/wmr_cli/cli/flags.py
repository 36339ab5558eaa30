"""Flags: made from the structs in `config`, read back into them, and named in messages.

A command declares structs as parameters. `with_flags` replaces each by the flags of its settings:

    @with_flags
    def doctor(config: DoctorConfig) -> None: ...        # wmr doctor --data-dir DIR
"""

import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from ..config import (
    COMMAND_LINE,
    PANELS,
    Setting,
    Struct,
    check_settings,
    is_list,
    iterate_flags,
    value_type,
)
from ..errors import BadInput
from ..spec import check_path, check_text, format_number, parse_number

# the classes of click that Typer contains are private
ClickContext: TypeAlias = Any
ClickParameter: TypeAlias = Any
ClickCommand: TypeAlias = Any
TypeHint: TypeAlias = Any
MAX_DIGITS = 18
"""Digits of a whole number in a list, so that it fits into 64 bits."""
SETTING = re.compile(r"`(?P<name>[a-z][a-z0-9_]*)(?:=(?P<value>[^`]*))?`")

# ---- from structs to flags ----


@dataclass(frozen=True)
class Given:
    """Marks a parameter that receives the given settings as a mapping, without defaults.

    `wmr train` needs it: presets and files replace the defaults of the struct.
    """

    struct: type[Struct]
    keys: tuple[str, ...] = ()
    """settings that have a flag; all if empty"""


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Replace every struct parameter of a command by the flags of its settings."""
    hints = typing.get_type_hints(command, include_extras=True)
    arguments: list[inspect.Parameter] = []
    settings: dict[str, Setting] = {}
    hidden_defaults: set[str] = set()
    for name, parameter in inspect.signature(command).parameters.items():
        if hints[name] is typer.Context:
            continue
        source = _find_source(hints[name])
        if source is None:
            keyword = inspect.Parameter.KEYWORD_ONLY
            arguments.append(parameter.replace(annotation=hints[name], kind=keyword))
            continue
        for declared in _select(source):
            if declared.key in settings:
                raise TypeError(f"{command.__name__} has two settings {declared.key!r}")
            settings[declared.key] = declared
            if source.has_layers:
                hidden_defaults.add(declared.key)

    # the name and docstring of the command become the name and help of Typer's command
    @functools.wraps(command)
    def run(context: typer.Context, **values: Any) -> None:
        given = _parse_given(context, settings, values)
        passed = {name: value for name, value in values.items() if name not in settings}
        for name, hint in hints.items():
            if hint is typer.Context:
                passed[name] = context
            source = _find_source(hint)
            if source is not None:
                own = {item.key: given[item.key] for item in _select(source) if item.key in given}
                passed[name] = own if source.has_layers else _build(source.struct, own)
        command(**passed)

    # Typer prints panels in the order in which their first flag appears
    ordered = sorted(settings.values(), key=_panel_order)
    flags = [
        _make_parameter(declared, shows_default=declared.key not in hidden_defaults)
        for declared in ordered
    ]
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    signature = inspect.Signature([context, *arguments, *flags])
    run.__signature__ = signature  # type: ignore[attr-defined]
    return run


@dataclass(frozen=True)
class _Source:
    """The struct behind a parameter of a command."""

    struct: type[Struct]
    keys: tuple[str, ...]
    has_layers: bool


def _find_source(hint: TypeHint) -> _Source | None:
    if isinstance(hint, type) and issubclass(hint, Struct):
        return _Source(hint, (), has_layers=False)
    origin: Any = typing.get_origin(hint)
    if origin is Annotated:
        for mark in hint.__metadata__:
            if isinstance(mark, Given):
                return _Source(mark.struct, mark.keys, has_layers=True)
    return None


def _select(source: _Source) -> list[Setting]:
    flags = iterate_flags(source.struct)
    return [declared for declared in flags if not source.keys or declared.key in source.keys]


def _panel_order(declared: Setting) -> int:
    assert declared.flag is not None
    return PANELS.index(declared.flag.panel)


def _make_parameter(declared: Setting, *, shows_default: bool) -> inspect.Parameter:
    """Return the Typer parameter of a setting."""
    flag = declared.flag
    assert flag is not None
    default = _format_default(declared) if shows_default else None
    option = typer.Option(
        *(flag.names or (f"--{declared.key.replace('_', '-')}",)),
        metavar=_make_metavar(declared),
        help=declared.description,
        rich_help_panel=flag.panel,
        envvar=flag.environment,
        show_default=default is not None or flag.default or False,
    )
    return inspect.Parameter(
        declared.key,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[_flag_type(declared), option],
        default=inspect.Parameter.empty if declared.is_required else default,
    )


def _flag_type(declared: Setting) -> TypeHint:
    """Return the type that Typer reads; numbers stay text, because they may be fractions."""
    assert declared.flag is not None
    kind: Any = value_type(declared.hint)
    # words are text, too: `check_value` suggests the nearest one, and Typer does not
    if kind not in (bool, int, Path) or is_list(declared.hint):
        kind = list[str] if declared.flag.is_repeated else str
    return kind if declared.is_required else kind | None


def _make_metavar(declared: Setting) -> str | None:
    assert declared.flag is not None
    if declared.flag.metavar is not None or not declared.choices:
        return declared.flag.metavar
    is_joined = is_list(declared.hint) and not declared.flag.is_repeated
    return ("," if is_joined else "|").join(declared.choices)


def _format_default(declared: Setting) -> str | int | None:
    """Return a default as Typer would read it, so that the help shows it."""
    value = declared.default
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or None
    if isinstance(value, float):
        return format_number(value)
    return value if isinstance(value, str | int) else None


# ---- from flags to structs ----


def _parse_given(
    context: typer.Context, settings: Mapping[str, Setting], values: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values of the flags that a user or the environment gave, lists split."""
    given: dict[str, Any] = {}
    for key, declared in settings.items():
        source = context.get_parameter_source(key)
        # the defaults shown in the help are text, and some commands must know what was given
        if source is None or source.name == "DEFAULT" or values[key] is None:
            continue
        value = values[key]
        if is_list(declared.hint) and isinstance(value, str):
            value = _split_list(value, declared)
        given[key] = value
    return given


def _split_list(text: str, declared: Setting) -> list[Any]:
    """Split values at commas; numbers are sorted, and each is kept once."""
    parts = [part.strip() for part in text.split(",")]
    kind = value_type(declared.hint)
    # alphas and radii are points of a curve: their order and repetitions have no meaning
    if kind is float:
        try:
            return sorted({parse_number(part) for part in parts})
        except BadInput as problem:
            raise BadInput(f"`{declared.key}`: {problem}", hint=problem.hint) from None
    if kind is int:
        # int() would accept "1_000" and digits of other scripts
        if not all(re.fullmatch(rf"\d{{1,{MAX_DIGITS}}}", part, re.ASCII) for part in parts):
            raise BadInput(
                f"`{declared.key}`: {text!r} is not a list of whole numbers",
                hint="write a list such as 55,75,90",
            )
        return [int(part) for part in parts]
    return parts


def _build(struct: type[Struct], given: Mapping[str, Any]) -> Struct:
    return struct.from_settings(check_settings(given, struct, COMMAND_LINE))


class Command(TyperCommand):
    """A command that checks the text of its arguments and names flags in messages."""

    def parse_args(self, ctx: ClickContext, args: list[str]) -> list[str]:
        """Check the text of the arguments first: Typer makes `Path(".")` of an empty one."""
        given: dict[str, Any] = {}
        if not ctx.resilient_parsing:
            given = self.make_parser(ctx).parse_args(args=list(args))[0]
        parameters: list[ClickParameter] = [*self.get_params(ctx)]
        use_flags_of(parameters)
        for parameter in parameters:
            value = given.get(parameter.name)
            # surrogates from a non-UTF-8 terminal would fail only when a file is written
            check = check_path if "Path" in parameter.bare_type() else check_text
            for text in value if isinstance(value, list | tuple) else [value]:
                if isinstance(text, str):
                    _check_argument(parameter, text, check)
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            flag = error.param
            text = None if flag is None else given.get(flag.name)
            # Typer's own message is long and does not contain the value
            if flag is None or not isinstance(text, str) or flag.bare_type() != "int":
                raise
            raise BadInput(
                f"{flag.opts[0]}: {text!r} is not a whole number",
                hint="write a whole number such as 10",
            ) from None

    def get_help_option(self, ctx: ClickContext) -> TyperOption | None:
        return _move_to_last_panel(super().get_help_option(ctx), self.params)


class Group(TyperGroup):
    """A command with subcommands."""

    def get_help_option(self, ctx: ClickContext) -> TyperOption | None:
        return _move_to_last_panel(super().get_help_option(ctx), self.params)


def _move_to_last_panel(
    help_option: TyperOption | None, parameters: Iterable[object]
) -> TyperOption | None:
    """Put `--help` into the panel of the last flag.

    Without a panel it would be in a generic one, which Typer prints before all others.
    """
    flags = [parameter for parameter in parameters if isinstance(parameter, TyperOption)]
    if help_option is not None and flags:
        help_option.rich_help_panel = flags[-1].rich_help_panel
    return help_option


def _check_argument(parameter: ClickParameter, text: str, check: Callable[[str], None]) -> None:
    is_flag = isinstance(parameter, TyperOption)
    name = parameter.opts[0] if is_flag else parameter.metavar or parameter.name
    try:
        check(text)
    except BadInput as problem:
        raise BadInput(f"{name}: {problem}", hint=problem.hint) from None


# ---- flags in messages ----

# Modules below `cli` write "`batch_size`" or "`overwrite=True`" (see `errors.py`), which become
# `--batch-size` and `--overwrite`. There is one running command per process.
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
