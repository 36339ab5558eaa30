"""How one setting is declared, described and checked.

A setting is a field of a struct, declared once with type, bounds, help text and panel:

    epochs: Annotated[Count, setting("Passes over the training set.", OPTIMIZATION, "N")] = 30

Its flag and help, its key in files, its check and error, its JSON schema and its line in the
reference all derive from this declaration.
"""

import math
import re
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

import msgspec
from msgspec import Meta

from ..errors import BadInput, UnknownName, did_you_mean
from ..spec import (
    LARGEST_COUNT,
    LARGEST_SEED,
    NUMBER_PATTERN,
    RANGE_PATTERN,
    check_text,
    format_number,
    parse_number,
    parse_range,
)

TypeHint: TypeAlias = Any
"""A type annotation, possibly `Annotated`, optional or a tuple."""
Value: TypeAlias = Any
"""A value of a setting, before or after its check."""
LARGEST_NUMBER = 1e9
"""Upper bound of numbers that have no bound of their own."""
COMMAND_LINE = "the command line"
SCHEMA_KEY = "$schema"
SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"

NonNegative = Annotated[float, Meta(ge=0, le=LARGEST_NUMBER)]
Positive = Annotated[float, Meta(gt=0, le=LARGEST_NUMBER)]
NonNegatives = Annotated[tuple[NonNegative, ...], Meta(min_length=1)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
FractionBelowOne = Annotated[float, Meta(ge=0, lt=1)]
Count = Annotated[int, Meta(ge=1, le=LARGEST_COUNT)]
CountOrZero = Annotated[int, Meta(ge=0, le=LARGEST_COUNT)]
Seed = Annotated[int, Meta(ge=0, le=LARGEST_SEED)]

# msgspec writes its error messages with the names of Python types
_TYPE_NAMES = {
    "float": "a number",
    "int": "a whole number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
    "null": "nothing",
}
_TAKES_RANGES = "takesRanges"
"""Key that marks a list in a JSON schema until `allow_fractions` replaces it."""
_BOUND = re.compile(r" (?P<sign>[<>]=?) (?P<bound>\S+)$")
_HINT_BY_SIGN = {
    ">=": "write {} or more",
    ">": "write more than {}",
    "<=": "write {} or less",
    "<": "write less than {}",
}
_NUMBER_HINT = "write a number such as 0.3 or a fraction such as 8/255"


class Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A set of settings; unknown keys are errors."""

    @classmethod
    def from_settings(cls, given: Mapping[str, Any]) -> Self:
        """Build the struct from checked values by key; the others have their defaults."""
        names = {declared.key: declared.name for declared in list_settings(cls).values()}
        return cls(**{names[key]: value for key, value in given.items()})


@dataclass(frozen=True)
class Flag:
    """How a setting appears on the command line."""

    panel: str
    metavar: str | None = None
    names: tuple[str, ...] = ()
    """if they are not those of the field; the first one is also the key in files"""
    default: str | None = None
    """text for the help, if the default of the struct cannot be shown"""
    environment: str | None = None
    """variable that sets it, too"""
    is_repeated: bool = False
    """whether each value of a list has a flag of its own; otherwise commas join them"""
    takes_ranges: bool = False
    """whether a value of a list may be a range of numbers such as 1/255..8/255"""


def setting(  # noqa: PLR0913 - keywords of a declaration
    description: str,
    panel: str,
    metavar: str | None = None,
    *,
    names: tuple[str, ...] = (),
    default: str | None = None,
    environment: str | None = None,
    is_repeated: bool = False,
    takes_ranges: bool = False,
) -> Meta:
    """Declare a setting with a flag. One that only files have is declared by a plain `Meta`."""
    flag = Flag(panel, metavar, names, default, environment, is_repeated, takes_ranges)
    return Meta(
        description=description,
        extra={"flag": flag},
        extra_json_schema={_TAKES_RANGES: True} if takes_ranges else None,
    )


@dataclass(frozen=True)
class Setting:
    """The declaration of a setting, read from its struct."""

    name: str
    key: str
    hint: TypeHint
    default: Any
    description: str
    flag: Flag | None

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that its type allows, if it allows only these."""
        return list_choices(self.hint)

    @property
    def is_required(self) -> bool:
        """Whether a user must give it."""
        return self.default is msgspec.NODEFAULT


@cache
def list_settings(struct: type[Struct]) -> Mapping[str, Setting]:
    """Return the settings of a struct by their keys."""
    hints = typing.get_type_hints(struct, include_extras=True)
    found: dict[str, Setting] = {}
    for field in msgspec.structs.fields(struct):
        hint = hints[field.name]
        metas = [item for item in typing.get_args(hint) if isinstance(item, Meta)]
        # bounds come from aliases such as `Count`; the declaration itself is the last `Meta`
        described = [meta for meta in metas if meta.description is not None]
        description = described[-1].description or "" if described else ""
        extra = described[-1].extra or {} if described else {}
        flag = extra.get("flag")
        key = field.name
        if flag is not None and flag.names:
            key = flag.names[0].partition("/")[0].removeprefix("--").replace("-", "_")
        found[key] = Setting(
            name=field.name,
            key=key,
            hint=hint,
            default=field.default,
            description=description,
            flag=flag,
        )
    return found


def value_type(hint: TypeHint) -> TypeHint:
    """Return the type of one value: without bounds, `None`, and the tuple around it."""
    origin: Any = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin in (Annotated, tuple):
        return value_type(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return value_type(next(part for part in arguments if part is not types.NoneType))
    return hint


def is_list(hint: TypeHint) -> bool:
    """Return whether a setting holds several values."""
    origin: Any = typing.get_origin(hint)
    if origin in (Annotated, typing.Union, types.UnionType):
        return any(is_list(part) for part in typing.get_args(hint))
    return origin is tuple


def list_choices(hint: TypeHint) -> tuple[str, ...]:
    """Return the words of a `Literal`, or nothing for any other type."""
    kind = value_type(hint)
    origin: Any = typing.get_origin(kind)
    return typing.get_args(kind) if origin is Literal else ()


def check_settings(table: Mapping[str, Any], struct: type[Struct], place: str) -> dict[str, Any]:
    """Check the keys and values of a part of a struct's settings; return the values by key."""
    settings = list_settings(struct)
    checked: dict[str, Any] = {}
    for key, value in table.items():
        if key not in settings:
            raise UnknownName(f"{place}: unknown setting {key!r}", hint=did_you_mean(key, settings))
        where = name_place(key, place)
        flag = settings[key].flag
        if flag is not None and flag.takes_ranges:
            value = _expand_ranges(value, where)
        checked[key] = check_value(value, settings[key].hint, where)
    return checked


def _expand_ranges(value: Value, where: str) -> Value:
    """Return a list with the numbers of its ranges, each number once."""
    if not isinstance(value, list | tuple):
        return value
    if not any(isinstance(item, str) and ".." in item for item in value):
        return value
    numbers: list[float] = []
    try:
        for item in value:
            is_range = isinstance(item, str) and ".." in item
            numbers += parse_range(item) if is_range else _read_numbers([item], is_number=True)
    except BadInput as problem:
        raise BadInput(f"{where}: {problem}", hint=problem.hint) from None
    return list(dict.fromkeys(numbers))


def name_place(key: str, place: str) -> str:
    """Return how an error names a setting; the command line replaces the backticks by a flag."""
    return f"`{key}`" if place == COMMAND_LINE else f"{place}: {key}"


def check_value(value: Value, hint: TypeHint, where: str) -> Value:
    """Return a value of the setting's type, within its bounds.

    Numbers may be text, also fractions such as `8/255`. They must be finite.
    """
    kind = value_type(hint)
    if kind is Path:
        # msgspec does not convert paths; the command line has checked it
        return value
    try:
        plain = _read_numbers(value, is_number=kind is float)
        _check_choices(plain, list_choices(hint))
        return msgspec.convert(plain, hint)
    except BadInput as problem:
        raise BadInput(f"{where}: {problem}", hint=problem.hint) from None
    except OverflowError:
        # an integer in a file may have any number of digits, and msgspec's have 64 bits
        raise BadInput(
            f"{where}: the number is too large",
            hint=f"numbers are at most {LARGEST_NUMBER:g}, seeds 2**63 - 1",
        ) from None
    except msgspec.ValidationError as error:
        raise _describe_invalid_value(str(error), plain, hint, where) from None


def _describe_invalid_value(problem: str, value: Value, hint: TypeHint, where: str) -> BadInput:
    """Return the error for a user that corresponds to one of msgspec.

    "Expected `int` >= 1 - at `$[2]`" becomes "epochs[2]: expected a whole number >= 1, got 0".
    """
    text, _, item = problem.partition(" - at `$")
    item = item.removesuffix("`")
    text = re.sub(r"`([^`]*)`", _name_types, text)
    # the bounds of numbers are floats
    text = re.sub(r"(\d)\.0$", r"\1", text)
    index = re.fullmatch(r"\[(\d+)\]", item)
    if index is not None:
        value = value[int(index[1])]
        # flags sort the numbers of a list, so the position would not be that of the user
        if where.startswith("`"):
            item = ""
    bound = _BOUND.search(text)
    if bound is not None and isinstance(value, int | float):
        text += f", got {format_number(value)}"
    return BadInput(
        f"{where}{item}: {text[0].lower()}{text[1:]}", hint=_suggest_value(hint, bound, value)
    )


def _name_types(match: re.Match[str]) -> str:
    # optional settings have types such as "int | null"; a user just omits the setting
    names = [name for name in match[1].split(" | ") if name != "null"] or ["null"]
    return " or ".join(_TYPE_NAMES.get(name, name) for name in names)


def _suggest_value(hint: TypeHint, bound: re.Match[str] | None, value: Value) -> str:
    """Return a hint that names the values a setting can have."""
    choices = list_choices(hint)
    if choices:
        return f"write one of {', '.join(choices)}"
    if bound is not None and isinstance(value, int | float):
        for meta in _list_bounds(hint):
            # the bound of settings without a bound of their own does not help
            if meta.ge is not None and meta.le is not None and meta.le < LARGEST_NUMBER:
                return f"write a number from {format_number(meta.ge)} to {format_number(meta.le)}"
        return _HINT_BY_SIGN[bound["sign"]].format(bound["bound"])
    if bound is not None:
        return "write at least one value"
    kind = value_type(hint)
    if kind is float:
        return _NUMBER_HINT
    if kind is int:
        return "write a whole number such as 10"
    if kind is bool:
        return "write true or false"
    return "write text in quotes, or a list of texts" if is_list(hint) else "write text in quotes"


def _list_bounds(hint: TypeHint) -> list[Meta]:
    """Return the declarations of bounds in a type, also those of its parts."""
    if isinstance(hint, Meta):
        return [hint]
    return [meta for part in typing.get_args(hint) for meta in _list_bounds(part)]


def _check_choices(value: Value, choices: tuple[str, ...]) -> None:
    # msgspec would report "Invalid enum value" and not name the nearest word
    if not choices:
        return
    for word in value if isinstance(value, list | tuple) else [value]:
        if isinstance(word, str) and word not in choices:
            raise BadInput(
                f"{word!r} is none of {', '.join(choices)}", hint=did_you_mean(word, choices)
            )


def _read_numbers(value: Value, *, is_number: bool) -> Value:
    """Return the value with its text checked, and read as numbers if it must be one."""
    if isinstance(value, list | tuple):
        return [_read_numbers(item, is_number=is_number) for item in value]
    if isinstance(value, str):
        check_text(value)
        return parse_number(value) if is_number else value
    # TOML has `nan` and `inf`, which no setting can use
    if isinstance(value, float) and not math.isfinite(value):
        raise BadInput(
            f"{value} is not a finite number",
            hint=_NUMBER_HINT,
        )
    return value


def allow_fractions(schema: Value) -> Value:
    """Return a JSON schema whose numbers may also be text such as "8/255", or ranges."""
    if isinstance(schema, list):
        return [allow_fractions(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    allowed = {key: allow_fractions(part) for key, part in schema.items()}
    if allowed.get("type") == "number":
        # bounds stay: JSON Schema applies them to numbers only
        allowed["type"] = ["number", "string"]
        # and the pattern to text only
        allowed["pattern"] = f"^{NUMBER_PATTERN}(/{NUMBER_PATTERN})?$"
    if allowed.pop(_TAKES_RANGES, False):
        allowed["items"]["pattern"] = f"^{RANGE_PATTERN}$"
    return allowed


def iterate_flags(struct: type[Struct]) -> Iterator[Setting]:
    """Yield the settings of a struct that have a flag."""
    return (declared for declared in list_settings(struct).values() if declared.flag is not None)
