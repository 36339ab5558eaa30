"""Values that a test knows to be present."""

from typing import TypeVar

Value = TypeVar("Value")


def not_none(value: Value | None) -> Value:
    """Return the value, which the test expects to be present."""
    assert value is not None
    return value
