"""Component specs: `pgd:steps=20,eps=8/255` to a name with parameters, and back.

    name    name:key=value,key=value    name:value,key=value    path/to/file.py:Class,key=value

Values stay text until the component is built: only its signature determines whether `8/255` is a
number. Text may be quoted. A nested spec is written in parentheses: `awp:base=(trades:beta=6)`.
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
from typing import Any, Literal, Self, TypeAlias, Union

from .errors import BadInput, did_you_mean

Value = Union[str, "Spec"]
TypeHint: TypeAlias = Any
"""A type annotation: a class, or a form such as `float | None` or `Literal["a", "b"]`."""
TypedValue: TypeAlias = Any
"""A value of the type that a hint describes."""

_LOCAL = re.compile(
    r"(?P<name>(?:[A-Za-z]:[\\/])?[^:,]+\.py:[A-Za-z_]\w*)(?:,(?P<rest>.*))?", re.DOTALL
)
_NAME = re.compile(r"[^\s:,=()\"']+")
_ITEM = re.compile(r"(?P<key>[A-Za-z_][\w-]*)=(?P<value>.*)", re.DOTALL)
NUMBER_PATTERN = r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?\s*"
"""Numbers in text; each part of a fraction is one. JSON schemas of settings contain it, too."""
_NUMBER = re.compile(NUMBER_PATTERN, re.ASCII)
LARGEST_COUNT = 2**31 - 1
"""Upper bound of every count: epochs, steps, images, processes.

Flags, config files and study files share it.
"""
LARGEST_SEED = 2**63 - 1
"""Upper bound of seeds, which torch stores as signed integers of 64 bits."""
MAX_DEVICES = 1024
"""Upper bound of processes per machine."""
MAX_NODES = 65_536
"""Upper bound of machines."""
MAX_THREADS = 1024
"""Upper bound of threads per process."""
MAX_MINUTES = 525_600
"""Upper bound of minutes between checkpoints: a year."""
MAX_LENGTH = 10_000
"""Characters of a spec."""
MAX_DEPTH = 20
"""Levels of nested specs. Parsing and printing recurse: stay far below the limit of Python."""
MAX_NUMBER_LENGTH = 60
"""Characters of a number."""
MAX_RANGE_LENGTH = 256
"""Numbers of a range."""
RANGE_PATTERN = rf"{NUMBER_PATTERN}(/{NUMBER_PATTERN})?"
RANGE_PATTERN = rf"{RANGE_PATTERN}(\.\.{RANGE_PATTERN}(:\s*[0-9]+\s*)?)?"
"""Numbers and ranges of numbers in text, for JSON schemas."""
RANGE_EXAMPLES = "1/255..8/255 for its multiples, or 0..0.3:7 for 7 numbers"
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
        return 1 + max(
            (value.depth for value in self.params.values() if isinstance(value, Spec)), default=0
        )

    @property
    def is_local(self) -> bool:
        """Whether the name is a class in a file of the user's: `path/to/file.py:Class`."""
        match = _LOCAL.fullmatch(self.name)
        return match is not None and match["rest"] is None

    @property
    def short(self) -> str:
        """The name without the path of its file."""
        return self.name.rpartition(":")[2]

    def absolute(self) -> "Spec":
        """Return a local class by its absolute path, and any other spec unchanged."""
        if not self.is_local:
            return self
        path, _, attribute = self.name.rpartition(":")
        absolute = str(Path(path).absolute())
        # the parser would split the name there, so the stored spec could not be read back
        if "," in absolute or ":" in absolute:
            raise BadInput(
                f"the path {absolute!r} contains a comma or a colon",
                hint="move the file to another folder",
            )
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
        # a path is matched first: the colon before its class does not separate parameters
        local = _LOCAL.fullmatch(text)
        if local:
            name = local["name"]
            rest = local["rest"]
        else:
            name, _, rest = text.partition(":")
        items = [item.strip() for item in _split(rest, whole=text)] if rest else []
        value: str | None = None
        params: dict[str, Value] = {}
        for position, item in enumerate(items):
            pair = _ITEM.fullmatch(item)
            if pair:
                # `step-size` on a command line and `step_size` in Python are the same parameter
                key = pair["key"].replace("-", "_")
                if key in params:
                    raise BadInput(f"{text!r} gives {key!r} twice", hint=f"keep one {key}=…")
                params[key] = _read_item(pair["value"], text, depth)
                continue
            # only the first item may have no key, and a nested spec always needs one
            unnamed = _read_item(item, text, depth) if position == 0 else None
            if not isinstance(unnamed, str):
                raise BadInput(f"{item!r} in {text!r} is not key=value", hint=SYNTAX)
            value = unnamed
        return cls(name.strip(), value, params)

    def __str__(self) -> str:
        items = [f"{key}={_write_item(value)}" for key, value in self.params.items()]
        if self.value is not None:
            items.insert(0, _write_item(self.value, positional=True))
        if not items:
            return self.name
        # a local name contains a colon itself
        separator = "," if self.is_local else ":"
        return self.name + separator + ",".join(items)

    def with_params(self, **params: Value) -> "Spec":
        """Return the same component with these parameters set."""
        return Spec(self.name, self.value, {**self.params, **params})

    def without(self, *keys: str) -> "Spec":
        """Return the same component with these parameters left to their defaults."""
        params = {key: value for key, value in self.params.items() if key not in keys}
        return Spec(self.name, self.value, params)


def _split(text: str, whole: str) -> list[str]:
    """Split at commas outside quotes and parentheses."""
    items: list[str] = []
    start = 0
    depth = 0
    quote = ""
    is_escaped = False
    for position, char in enumerate(text):
        if quote:
            closes = char == quote and not is_escaped
            # single quotes take a backslash literally, which Windows paths need
            is_escaped = char == "\\" and quote == '"' and not is_escaped
            if closes:
                quote = ""
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
        raise BadInput(
            f"{whole!r} has an open quote or parenthesis",
            hint="close it, and quote the spec for your shell",
        )
    return [*items, text[start:]]


def _too_deep() -> BadInput:
    return BadInput("the spec is nested too deeply", hint=f"at most {MAX_DEPTH} levels are allowed")


def _read_item(text: str, whole: str, depth: int) -> Value:
    """Read one value of the spec `whole`, which is nested inside `depth - 1` others."""
    if text.startswith("(") and text.endswith(")"):
        return Spec._parse(text[1:-1], depth + 1)
    if re.fullmatch(r"'[^']*'", text):
        return text[1:-1]
    if text.startswith('"'):
        try:
            # not strict: a value may contain tabs and line breaks
            return str(json.loads(text, strict=False))
        except ValueError:
            problem = f"{text} in {whole!r} is not quoted text"
            raise BadInput(
                problem, hint='inside double quotes, write \\" for a quote and \\\\ for a backslash'
            ) from None
    if not text or re.search(r"[()\"']", text):
        raise BadInput(
            f"{whole!r} has a value that cannot be read: {text!r}",
            hint="put text with special characters in quotes",
        )
    return text.strip()


def _write_item(value: Value, *, positional: bool = False) -> str:
    if isinstance(value, Spec):
        return f"({value})"
    # without quotes, an unnamed value with "=" would be read back as key=value
    if _NEEDS_QUOTES.search(value) or (positional and "=" in value):
        return json.dumps(value)
    return value


def parse_number(text: str) -> float:
    """Return a finite number; `8/255` is divided exactly. No text is evaluated as code."""
    value: float | None = None
    parts = text.split("/")
    # the pattern limits exponents to three digits: Fraction("1e400000000") would fill the memory
    is_number = all(_NUMBER.fullmatch(part) for part in parts)
    if re.fullmatch(r"\s*[+-]?(nan|inf|infinity)\s*", text, re.IGNORECASE):
        value = math.inf
    elif is_number and len(parts) <= 2 and len(text) <= MAX_NUMBER_LENGTH:
        try:
            value = _divide(*parts) if len(parts) == 2 else float(text)
        except (ZeroDivisionError, OverflowError):
            value = math.inf
    if value is None or not math.isfinite(value):
        problem = "is not a number" if value is None else "is not a finite number"
        raise BadInput(
            f"{text!r} {problem}", hint="write a number such as 0.3 or a fraction such as 8/255"
        )
    return value


def _divide(numerator: str, denominator: str) -> float:
    # a quotient of fractions is rounded once, one of floats three times
    return float(Fraction(numerator.strip()) / Fraction(denominator.strip()))


def parse_range(text: str) -> list[float]:
    """Return the numbers of a range, each computed exactly and rounded once.

    `1/255..8/255` are the multiples of its first number up to its last one, and `0..0.3:7` are 7
    evenly spaced numbers with both ends.
    """
    ends, colon, count_text = text.partition(":")
    first_text, _, last_text = ends.partition("..")
    first = _parse_exactly(first_text)
    last = _parse_exactly(last_text)
    if first >= last:
        raise BadInput(f"the range {text!r} is empty", hint=f"write {RANGE_EXAMPLES}")
    if not colon:
        if first <= 0 or last % first:
            raise BadInput(
                f"the last number of {text!r} is not a multiple of the first one",
                hint=f"append a count: {ends}:8",
            )
        step = first
        count = int(last / first)
    elif re.fullmatch(r"\s*[0-9]{1,6}\s*", count_text, re.ASCII) and int(count_text) >= 2:
        count = int(count_text)
        step = (last - first) / (count - 1)
    else:
        raise BadInput(
            f"{count_text!r} in {text!r} is not a count of at least 2",
            hint=f"write {RANGE_EXAMPLES}",
        )
    if count > MAX_RANGE_LENGTH:
        raise BadInput(
            f"the range {text!r} has {count:,} numbers", hint=f"at most {MAX_RANGE_LENGTH} fit"
        )
    return [float(first + number * step) for number in range(count)]


def _parse_exactly(text: str) -> Fraction:
    parse_number(text)
    numerator, _, denominator = text.partition("/")
    return Fraction(numerator.strip()) / Fraction(denominator.strip() or 1)


def format_number(value: float) -> str:
    """Return the shortest text that reads back as the same number, such as `8/255`."""
    levels = round(value * 255) if abs(value) <= 1 else 0
    # a short decimal such as 0.2 is clearer than 51/255
    if len(repr(value)) > 8 and levels and levels / 255 == value:
        return f"{levels}/255"
    return repr(value).removesuffix(".0")


def scale_exactly(value: float, new: float, old: float) -> float:
    """Return value * new / old, computed from the printed decimals and rounded once."""
    # floating point: 0.007 * 0.1 / 0.3 = 0.002333333333333334; decimals: 0.0023333333333333335
    return float(Fraction(repr(value)) * Fraction(repr(new)) / Fraction(repr(old)))


def read_value(value: Value, kind: TypeHint) -> TypedValue:
    """Convert text to the type of its parameter; without a type, guess it from the text."""
    if _origin(kind) in (Union, types.UnionType):
        return _read_union(value, typing.get_args(kind))
    if isinstance(value, Spec) or kind is Spec:
        if kind not in (Spec, Any):
            problem = f"a component in parentheses does not fit here: ({value})"
            raise BadInput(problem, hint="write a plain value without parentheses")
        return value if isinstance(value, Spec) else Spec.parse(value)
    if kind is Any:
        return _guess_type(value)
    if _origin(kind) is Literal:
        choices = {str(choice): choice for choice in typing.get_args(kind)}
        if value not in choices:
            raise BadInput(
                f"{value!r} is none of {', '.join(choices)}", hint=did_you_mean(value, choices)
            )
        return choices[value]
    if (_origin(kind) or kind) in (tuple, list):
        return _read_list(value, kind)
    if kind in _READERS:
        return _READERS[kind](value)
    return _guess_type(value)


def _origin(kind: TypeHint) -> TypeHint:
    """Return `tuple` of `tuple[int, ...]`; None for a plain class."""
    origin: TypeHint = typing.get_origin(kind)
    return origin


def _read_list(text: str, kind: TypeHint) -> TypedValue:
    """Read values joined by colons; `tuple[int, int]` takes exactly two."""
    container = _origin(kind) or kind
    hints = typing.get_args(kind)
    parts = text.split(":")
    has_fixed_length = container is tuple and hints and hints[-1] is not Ellipsis
    if has_fixed_length and len(hints) != len(parts):
        problem = f"{text!r} has {len(parts)} values instead of {len(hints)}"
        raise BadInput(problem, hint=f"join {len(hints)} values with colons")
    if not has_fixed_length:
        # `tuple[int, ...]` and `list[int]` repeat their first hint; a bare `list` has none
        hints = (hints or (Any,))[:1] * len(parts)
    return container(read_value(part, hint) for part, hint in zip(parts, hints, strict=True))


def _read_union(value: Value, kinds: tuple[TypeHint, ...]) -> TypedValue:
    if types.NoneType in kinds and value == "none":
        return None
    problems = []
    # text last: it accepts anything, so `str | float` would never be a number
    candidates = sorted(
        (kind for kind in kinds if kind is not types.NoneType), key=lambda kind: kind is str
    )
    for kind in candidates:
        try:
            return read_value(value, kind)
        except BadInput as problem:
            problems.append(problem)
    raise problems[0]


def _read_integer(text: str) -> int:
    value = parse_number(text)
    if value != int(value):
        raise BadInput(
            f"{text!r} is not a whole number", hint="write a number such as 20, without a fraction"
        )
    if abs(value) > LARGEST_SEED:
        raise BadInput(f"{text!r} is too large", hint=f"write a whole number up to {LARGEST_SEED}")
    # a float holds 53 bits, which would change the last digits of a large seed
    return int(text) if re.fullmatch(r"\s*[+-]?[0-9]+\s*", text) else int(value)


def _read_bool(text: str) -> bool:
    if text.lower() in ("true", "yes", "1"):
        return True
    if text.lower() in ("false", "no", "0"):
        return False
    raise BadInput(f"{text!r} is neither true nor false", hint="write true or false")


def _guess_type(text: str) -> TypedValue:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        value = parse_number(text)
    except BadInput:
        return text
    return _read_integer(text) if re.fullmatch(r"[+-]?[0-9]+", text) else value


def check_path(text: str) -> None:
    """Raise BadInput for text that cannot be a path on this system. The file need not exist."""
    if not text:
        raise BadInput("the path is empty", hint="write a path, or leave the setting out")
    if "\0" in text:
        raise BadInput(f"the path {text!r} contains a NUL character", hint="remove that character")
    check_text(text)
    # only the system knows how long a path may be, and whether its links form a loop
    try:
        Path(text).stat()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            problem = f"the path {text[:40]!r}… of {len(text):,} characters is too long"
            raise BadInput(problem, hint="use a shorter path") from None
        if error.errno == errno.ELOOP:
            raise BadInput(
                f"the path {text!r} is a loop of symbolic links", hint="remove one of the links"
            ) from None


def check_text(text: str) -> None:
    """Raise BadInput for text that is not Unicode: records, configurations and logs are UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise BadInput(
            f"{text!r} is not valid UTF-8", hint="use UTF-8; rename a file whose name is not"
        ) from None


def read_path(text: str) -> Path:
    """Return the path that a user wrote, with `~` expanded; raise BadInput if it is not valid."""
    check_path(text)
    try:
        path = Path(text).expanduser()
    except RuntimeError:  # `~name` of an unknown user
        raise BadInput(
            f"the home folder in {text!r} is not known", hint="write the path in full"
        ) from None
    # the expanded path is longer
    check_path(str(path))
    return path


_READERS: Mapping[Any, Any] = {
    bool: _read_bool,
    int: _read_integer,
    float: parse_number,
    str: str,
    Path: read_path,
}
