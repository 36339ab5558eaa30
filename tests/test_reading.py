"""Only regular files are opened, and no file can exhaust memory, stack or time."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.bad_values import Maker
from support.special_files import IRREGULAR, make_fifo, time_limit
from wmr_cli import reading
from wmr_cli.config import TrainConfig, read_config_file
from wmr_cli.errors import BadFile

DEEP_NESTING = 100_000


@pytest.fixture(autouse=True)
def _time_limit() -> Iterator[None]:
    with time_limit(60):
        yield


@pytest.mark.parametrize("make", IRREGULAR.values(), ids=IRREGULAR)
@pytest.mark.parametrize(
    "read", [reading.open_regular, reading.check_regular, reading.read_bytes, reading.read_text]
)
def test_special_files_are_refused(make: Maker, read: Callable[[Path], object]) -> None:
    make(Path("file"))
    with pytest.raises(OSError, match="file") as caught:
        read(Path("file"))
    assert caught.value.strerror
    assert not reading.is_regular(Path("file"))


def test_a_fifo_is_refused_without_being_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    make_fifo(Path("file"))
    monkeypatch.setattr(os, "open", lambda *args: pytest.fail("it was opened"))
    with pytest.raises(OSError, match="file"):
        reading.open_regular(Path("file"))


@pytest.mark.parametrize("name", ["a" * 300, "a\0b", "\ud800", "none", "file/inside"])
def test_an_invalid_file_name_raises_os_error_with_a_reason(name: str) -> None:
    Path("file").write_text("")
    with pytest.raises(OSError) as caught:  # noqa: PT011 - any kind of it
        reading.open_regular(Path(name))
    assert caught.value.strerror
    assert not reading.is_regular(Path(name))
    assert not reading.is_folder(Path(name))


def test_a_regular_file_is_read_through_links_and_with_either_line_ending() -> None:
    Path("file").write_bytes("é\r\nb".encode())
    Path("link").symlink_to("file")
    assert reading.read_text(Path("link")) == "é\nb"
    assert reading.is_regular(Path("link"))
    assert reading.is_folder(Path())


def test_a_file_above_the_size_limit_is_refused() -> None:
    Path("file").write_bytes(b"0" * 11)
    assert len(reading.read_bytes(Path("file"), 11)) == 11
    with pytest.raises(OSError, match="larger"):
        reading.read_bytes(Path("file"), 10)


@pytest.mark.parametrize("depth", [200, 600, DEEP_NESTING])
@pytest.mark.parametrize(
    ("parse", "head", "begin", "end"),
    [
        (reading.parse_json, "", "[", "]"),
        (reading.parse_json, "", '{"a":', "}"),
        (reading.parse_toml, "a = ", "[", "]"),
        (reading.parse_toml, "a = ", "{a = ", "}"),
        (lambda text: reading.decode_json(text, dict), "", '{"a":', "}"),
    ],
)
def test_deep_nesting_raises_value_error(
    parse: Callable[[str], object], head: str, begin: str, end: str, depth: int
) -> None:
    with pytest.raises(ValueError, match="nested"):
        parse(head + begin * depth + "1" + end * depth)


def test_moderate_nesting_is_read() -> None:
    assert reading.parse_json("[" * 50 + "]" * 50)
    assert reading.parse_toml("a = " + "[" * 50 + "]" * 50)


def test_a_long_dotted_key_is_refused_quickly() -> None:
    started = time.perf_counter()
    with pytest.raises(ValueError, match="dots"):
        reading.parse_toml(".".join("a" * DEEP_NESTING) + " = 1")
    assert time.perf_counter() - started < 5


def test_json_of_another_type_raises_value_error() -> None:
    with pytest.raises(ValueError, match="Expected"):
        reading.decode_json("[]", TrainConfig)


@pytest.mark.parametrize("name", ["c.toml", "c.json"])
@pytest.mark.parametrize("make", IRREGULAR.values(), ids=IRREGULAR)
def test_a_config_that_is_not_a_regular_file_is_refused(make: Maker, name: str) -> None:
    make(Path(name))
    with pytest.raises(BadFile, match=r"c\.(toml|json)") as caught:
        read_config_file(Path(name))
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.json", "[" * DEEP_NESTING),
        ("c.json", '{"eps": ' + "[" * 600 + "]" * 600 + "}"),
        ("c.toml", "eps = " + "[" * DEEP_NESTING),
        ("c.toml", "#" * 2 * reading.SETTINGS_LIMIT),
    ],
    ids=["json", "less deep", "toml", "large"],
)
def test_a_config_that_would_exhaust_the_parser_is_refused(name: str, text: str) -> None:
    Path(name).write_text(text)
    with pytest.raises(BadFile, match=r"c\.(toml|json)") as caught:
        read_config_file(Path(name))
    assert caught.value.hint


def test_a_deeply_nested_stored_config_raises_value_error() -> None:
    with pytest.raises(ValueError, match="nested"):
        TrainConfig.from_json('{"eps": ' + "[" * DEEP_NESTING)
