"""Component specs: `pgd:steps=20,eps=8/255` to a name with parameters, and back.

    name    name:key=value,key=value    name:value,key=value    path/to/file.py:Class,key=value

Values stay text until the component is built: only its signature knows whether `8/255` is a number.
Text may be quoted, and a nested spec stands in parentheses: `awp:base=(trades:beta=6)`.
"""

import errno
import json
import math
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, Self, Union

from .errors import BadInput, did_you_mean

Value = Union[str, "Spec"]

_LOCAL = re.compile(r"(?P<name>(?:[A-Za-z]:[\\/])?[^:,]+\.py:[A-Za-z_]\w*)(?:,(?P<rest>.*))?", re.DOTALL)
_NAME = re.compile(r"[^\s:,=()\"']+")
_ITEM = re.compile(r"(?P<key>[A-Za-z_][\w-]*)=(?P<value>.*)", re.DOTALL)
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?\s*", re.ASCII)
LARGEST_COUNT = 2**31 - 1
"""Upper bound of every count: epochs, steps, images, processes. Flags, config files and study files share it."""
LARGEST_SEED = 2**63 - 1
"""Upper bound of seeds, which torch stores as signed integers of 64 bits."""
MAX_DEVICES, MAX_NODES, MAX_THREADS, MAX_MINUTES = 1024, 65_536, 1024, 525_600
"""Upper bounds of processes per machine, machines, threads per process, and minutes between checkpoints (a year)."""
MAX_LENGTH = 10_000
"""Characters of a spec."""
MAX_DEPTH = 20
"""Specs inside each other. Parsing and printing recurse, so the limit keeps far from that of Python."""
SYNTAX = "a spec reads name:key=value,key=value"
_NEEDS_QUOTES = re.compile(r"[,()\"']|^\s|\s$|^$|[\n\r\t]")


@dataclass(frozen=True)
class Spec:
    """A component's name and the parameters a user gave it, as text."""

    name: str
    value: str | None = None
    params: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (_NAME.fullmatch(self.name) or self.is_local):
            raise BadInput(f"{self.name!r} is not a name", hint=SYNTAX)
        if self.depth > MAX_DEPTH:
            raise _too_deep()

    @property
    def depth(self) -> int:
        """Number of specs inside each other, itself included."""
        return 1 + max((value.depth for value in self.params.values() if isinstance(value, Spec)), default=0)

    @property
    def is_local(self) -> bool:
        """Whether the name is a class in a file of the user's: `path/to/file.py:Class`."""
        match = _LOCAL.fullmatch(self.name)
        return match is not None and match["rest"] is None

    @property
    def short(self) -> str:
        """The name without the file it may stand in."""
        return self.name.rpartition(":")[2]

    def absolute(self) -> "Spec":
        """A local class by its absolute path, so that it is found from any folder; any other spec as it is."""
        if not self.is_local:
            return self
        path, _, attribute = self.name.rpartition(":")
        absolute = str(Path(path).absolute())
        if "," in absolute or ":" in absolute:
            raise BadInput(f"the path {absolute!r} contains a comma or a colon", hint="move the file to another folder")
        return Spec(f"{absolute}:{attribute}", self.value, self.params)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a spec as a user types it."""
        if len(text) > MAX_LENGTH:
            problem = f"a spec of {len(text):,} characters is too long: {text[:40]!r}…"
            raise BadInput(problem, hint=f"a spec has at most {MAX_LENGTH:,} characters")
        return cls._parse(text, depth=1)

    @classmethod
    def _parse(cls, text: str, depth: int) -> Self:
        if depth > MAX_DEPTH:
            raise _too_deep()
        local = _LOCAL.fullmatch(text)
        if local:
            name, rest = local["name"], local["rest"]
        else:
            name, colon, tail = text.partition(":")
            rest = tail if colon else None
        value: str | None = None
        params: dict[str, Value] = {}
        for position, item in enumerate(map(str.strip, _split(rest, whole=text)) if rest else ()):
            pair = _ITEM.fullmatch(item)
            if pair:
                key = pair["key"].replace("-", "_")
                if key in params:
                    raise BadInput(f"{text!r} gives {key!r} twice", hint=f"keep one {key}=…")
                params[key] = _read_item(pair["value"], text, depth)
            elif position == 0 and isinstance(read := _read_item(item, text, depth), str):
                value = read
            else:
                raise BadInput(f"{item!r} in {text!r} is not key=value", hint=SYNTAX)
        return cls(name.strip(), value, params)

    def __str__(self) -> str:
        items = [] if self.value is None else [_write_item(self.value, positional=True)]
        items += [f"{key}={_write_item(value)}" for key, value in self.params.items()]
        return self.name + ("," if self.is_local else ":") + ",".join(items) if items else self.name

    def with_params(self, **params: Value) -> "Spec":
        """The same component with these parameters on top."""
        return Spec(self.name, self.value, {**self.params, **params})

    def without(self, *keys: str) -> "Spec":
        """The same component, these parameters left to their defaults."""
        return Spec(self.name, self.value, {key: value for key, value in self.params.items() if key not in keys})


def _split(text: str, whole: str) -> list[str]:
    """Cut at commas that stand outside quotes and parentheses."""
    items, start, depth, quote, escaped = [], 0, 0, "", False
    for position, char in enumerate(text):
        if quote:
            closes = char == quote and not escaped
            escaped = char == "\\" and quote == '"' and not escaped
            quote = "" if closes else quote
        elif char in "\"'":
            quote = char
        elif char in "()":
            depth += 1 if char == "(" else -1
            if depth < 0:
                break
        elif char == "," and depth == 0:
            items.append(text[start:position])
            start = position + 1
    if quote or depth:
        raise BadInput(f"{whole!r} has an open quote or parenthesis", hint="close it, and quote the spec for your shell")
    return [*items, text[start:]]


def _too_deep() -> BadInput:
    return BadInput("the spec is nested too deeply", hint=f"at most {MAX_DEPTH} specs stand inside each other")


def _read_item(text: str, whole: str, depth: int) -> Value:
    """Read one value of the spec `whole`, which is itself inside `depth - 1` others."""
    if text.startswith("(") and text.endswith(")"):
        return Spec._parse(text[1:-1], depth + 1)
    if re.fullmatch(r"'[^']*'", text):
        return text[1:-1]
    if text.startswith('"'):
        try:
            return str(json.loads(text, strict=False))
        except ValueError:
            problem = f"{text} in {whole!r} is not quoted text"
            raise BadInput(problem, hint='inside double quotes, write \\" for a quote and \\\\ for a backslash') from None
    if not text or re.search(r"[()\"']", text):
        raise BadInput(f"{whole!r} has a value that cannot be read: {text!r}", hint="put text with special characters in quotes")
    return text.strip()


def _write_item(value: Value, *, positional: bool = False) -> str:
    if isinstance(value, Spec):
        return f"({value})"
    return json.dumps(value) if _NEEDS_QUOTES.search(value) or (positional and "=" in value) else value


def number(text: str) -> float:
    """A finite number; `8/255` is divided exactly. Nothing is evaluated as code."""
    parts = text.split("/")
    value = math.inf if re.fullmatch(r"\s*[+-]?(nan|inf|infinity)\s*", text, re.IGNORECASE) else None
    if len(parts) <= 2 and len(text) <= 60 and all(_NUMBER.fullmatch(part) for part in parts):
        try:
            value = float(text) if len(parts) == 1 else float(Fraction(parts[0].strip()) / Fraction(parts[1].strip()))
        except (ZeroDivisionError, OverflowError):
            value = math.inf
    if value is None or not math.isfinite(value):
        problem = "is not a number" if value is None else "is not a finite number"
        raise BadInput(f"{text!r} {problem}", hint="write a number such as 0.3 or a fraction such as 8/255")
    return value


def exact(value: float) -> str:
    """The shortest text that reads back as the same number: `8/255` rather than 0.03137254901960784."""
    levels = round(value * 255) if abs(value) <= 1 else 0
    if len(repr(value)) > 8 and levels and levels / 255 == value:
        return f"{levels}/255"
    return repr(value).removesuffix(".0")


def in_proportion(value: float, new: float, old: float) -> float:
    """value * new / old as a person would compute it from the printed numbers: 0.015 * 0.05 / 0.15 is 0.005."""
    return float(Fraction(repr(value)) * Fraction(repr(new)) / Fraction(repr(old)))


def read_value(value: Value, kind: Any) -> Any:
    """Text as the annotation of its parameter says; without an annotation, as it looks."""
    if typing.get_origin(kind) in (Union, types.UnionType):
        return _read_union(value, typing.get_args(kind))
    if isinstance(value, Spec) or kind is Spec:
        if kind not in (Spec, Any):
            problem = f"a component in parentheses does not fit here: ({value})"
            raise BadInput(problem, hint="write a plain value without parentheses")
        return value if isinstance(value, Spec) else Spec.parse(value)
    if kind is Any:
        return _guess(value)
    if typing.get_origin(kind) is Literal:
        choices = {str(choice): choice for choice in typing.get_args(kind)}
        if value not in choices:
            raise BadInput(f"{value!r} is none of {', '.join(choices)}", hint=did_you_mean(value, choices))
        return choices[value]
    if (typing.get_origin(kind) or kind) in (tuple, list):
        return _read_list(value, kind)
    if kind in _READERS:
        return _READERS[kind](value)
    return _guess(value)


def _read_list(text: str, kind: Any) -> Any:
    """Values joined by colons; `tuple[int, int]` takes exactly two."""
    make, of, parts = typing.get_origin(kind) or kind, typing.get_args(kind), text.split(":")
    if make is tuple and of and of[-1] is not Ellipsis and len(of) != len(parts):
        problem = f"{text!r} has {len(parts)} values instead of {len(of)}"
        raise BadInput(problem, hint=f"join {len(of)} values with colons")
    kinds = of if make is tuple and of and of[-1] is not Ellipsis else (of or (Any,))[:1] * len(parts)
    return make(read_value(part, each) for part, each in zip(parts, kinds, strict=True))


def _read_union(value: Value, kinds: tuple[Any, ...]) -> Any:
    if types.NoneType in kinds and value == "none":
        return None
    problems = []
    for kind in sorted((kind for kind in kinds if kind is not types.NoneType), key=lambda kind: kind is str):
        try:
            return read_value(value, kind)
        except BadInput as problem:
            problems.append(problem)
    raise problems[0]


def _whole(text: str) -> int:
    value = number(text)
    if value != int(value):
        raise BadInput(f"{text!r} is not a whole number", hint="write a number such as 20, without a fraction")
    if abs(value) > LARGEST_SEED:
        raise BadInput(f"{text!r} is too large", hint=f"write a whole number up to {LARGEST_SEED}")
    # a float holds 53 bits, which would change the last digits of a large seed
    return int(text) if re.fullmatch(r"\s*[+-]?[0-9]+\s*", text) else int(value)


def _truth(text: str) -> bool:
    try:
        return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[text.lower()]
    except KeyError:
        raise BadInput(f"{text!r} is neither true nor false", hint="write true or false") from None


def _guess(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        value = number(text)
    except BadInput:
        return text
    return _whole(text) if re.fullmatch(r"[+-]?[0-9]+", text) else value


def check_path(text: str) -> None:
    """Raise BadInput for text that cannot be the path of a file on this system, whether the file exists or not."""
    if not text:
        raise BadInput("the path is empty", hint="write a path, or leave the setting out")
    if "\0" in text:
        raise BadInput(f"the path {text!r} contains a NUL character", hint="remove that character")
    check_text(text)
    try:
        Path(text).stat()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            problem = f"the path {text[:40]!r}… of {len(text):,} characters is too long"
            raise BadInput(problem, hint="use a shorter path") from None
        if error.errno == errno.ELOOP:
            raise BadInput(f"the path {text!r} is a loop of symbolic links", hint="remove one of the links") from None


def check_text(text: str) -> None:
    """Raise BadInput for text that is not Unicode: records, configurations and logs are UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise BadInput(f"{text!r} is not valid UTF-8", hint="use UTF-8; rename a file whose name is not") from None


def read_path(text: str) -> Path:
    """Return the path that a user wrote, `~` expanded; raise BadInput where it cannot be one."""
    check_path(text)
    try:
        path = Path(text).expanduser()
    except RuntimeError:  # `~name` of an unknown user
        raise BadInput(f"the home folder in {text!r} is not known", hint="write the path in full") from None
    check_path(str(path))
    return path


_READERS: Mapping[Any, Any] = {bool: _truth, int: _whole, float: number, str: str, Path: read_path}
