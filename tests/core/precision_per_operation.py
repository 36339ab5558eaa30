"""Tests of arithmetic without TF32, for a process of their own: see `test_contexts.py`."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from wmr_cli.core.contexts import exact_float32

BACKENDS: Any = torch.backends
pytestmark = pytest.mark.skipif(
    not hasattr(BACKENDS.cudnn, "conv"), reason="torch has no precision per operation"
)
PLACES = (
    *("fp32_precision", "cuda.matmul.fp32_precision", "mkldnn.matmul.fp32_precision"),
    *("cudnn.fp32_precision", "cudnn.conv.fp32_precision", "cudnn.rnn.fp32_precision"),
)
OPERATIONS = [place for place in PLACES if place.count(".") == 2]
FLAGS = ("cudnn.enabled", "cudnn.benchmark", "cudnn.deterministic")


def find_owner(place: str) -> tuple[Any, str]:
    owner: Any = BACKENDS
    *names, last = place.split(".")
    for name in names:
        owner = getattr(owner, name)
    return owner, last


def read(place: str) -> object:
    owner, name = find_owner(place)
    return getattr(owner, name)


def write(place: str, value: object) -> None:
    owner, name = find_owner(place)
    setattr(owner, name, value)


@pytest.fixture(autouse=True)
def _restore_precisions() -> Iterator[None]:
    before = {place: read(place) for place in PLACES}
    yield
    for place, precision in before.items():
        write(place, precision)
    # the older settings can be read again
    torch.get_float32_matmul_precision()
    assert BACKENDS.cudnn.allow_tf32 is not None


@pytest.mark.parametrize("precision", ["tf32", "ieee"])
@pytest.mark.parametrize("place", PLACES)
def test_precisions_per_operation_are_exact_inside_and_restored(place: str, precision: str) -> None:
    write(place, precision)
    # "none" and "ieee" are the same arithmetic
    has_tf32 = [read(name) == "tf32" for name in PLACES]
    flags = [read(name) for name in FLAGS]
    with exact_float32():
        assert {read(name) for name in OPERATIONS} <= {"ieee", "none"}
        assert [read(name) for name in FLAGS] == [True, False, True]
    assert [read(name) == "tf32" for name in PLACES] == has_tf32
    assert [read(name) for name in FLAGS] == flags


def test_an_inherited_precision_stays_inherited() -> None:
    write("fp32_precision", "tf32")
    with exact_float32():
        pass
    write("fp32_precision", "ieee")
    assert read("cuda.matmul.fp32_precision") == "ieee"
