"""Narrow a value to the type that a test expects, and fail where it has another one."""

from collections.abc import Generator, Iterator
from typing import TypeVar

Value = TypeVar("Value")


def instance_of(kind: type[Value], value: object) -> Value:
    """Return the value, which the test expects to be of this type."""
    assert isinstance(value, kind), f"{value!r} is not a {kind.__name__}"
    return value


def stop(running: Iterator[object]) -> None:
    """Close a generator before its end, as an interruption does."""
    assert isinstance(running, Generator)
    running.close()
