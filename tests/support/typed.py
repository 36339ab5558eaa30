"""Narrow a value to the type that a test expects, and fail where it has another one."""

from collections.abc import Generator, Iterator
from typing import Any, TypeVar

Value = TypeVar("Value")


def instance_of(kind: type[Value], value: object) -> Value:
    """Return the value, which the test expects to be of this type."""
    assert isinstance(value, kind), f"{value!r} is not a {kind.__name__}"
    return value


def not_none(value: Value | None) -> Value:
    """Return the value, which the test expects to be present."""
    assert value is not None
    return value


def mistyped(value: object) -> Any:  # noqa: ANN401
    """Return a value that a test passes where its type is not accepted."""
    return value


def stop(running: Iterator[object]) -> None:
    """Close a generator before its end, as an interruption does."""
    assert isinstance(running, Generator)
    running.close()
