"""Errors show their hint in the traceback of a Python program."""

import copy
import pickle
import traceback

import pytest

from wmr_cli import errors
from wmr_cli.errors import BadInput, WmrError

CLASSES = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, WmrError)
]


@pytest.mark.parametrize("kind", CLASSES)
def test_a_traceback_ends_with_the_hint(kind: type[WmrError]) -> None:
    error = kind("eps is missing", hint="set `eps`")
    lines = "".join(traceback.format_exception(error)).splitlines()
    assert lines[-1] == "hint: set `eps`"
    assert str(error) == "eps is missing"


def test_an_error_without_a_hint_has_no_note() -> None:
    assert not hasattr(BadInput("eps is missing"), "__notes__")


@pytest.mark.parametrize("duplicate", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_a_copy_has_the_hint_once(duplicate: object) -> None:
    error = duplicate(BadInput("eps is missing", hint="set `eps`"))  # type: ignore[operator]
    assert (error.hint, error.__notes__) == ("set `eps`", ["hint: set `eps`"])
