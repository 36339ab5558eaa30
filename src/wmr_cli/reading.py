"""Read files that a user, a checkpoint or a dataset names.

Only regular files are opened, because a FIFO blocks and a device such as /dev/zero never ends. Text has a size limit. Parsers
raise ValueError for input that is nested too deeply. All functions raise OSError with `strerror` set for a path that cannot be
read, so that a caller needs one `except` clause for it.
"""

import errno
import io
import json
import os
import stat
import tomllib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

TEXT_LIMIT = 64 * 2**20
"""Bytes. A record with the indices of a million images has about 8 MB."""
SETTINGS_LIMIT = 2**20
"""Bytes of a file of settings that a person writes."""
DOTS_LIMIT = 10_000
"""The time that tomllib takes for a dotted key grows with the square of its dots: about a second for so many."""
DEPTH_LIMIT = 100
"""Lists and tables inside each other. Code that walks over the values may recurse twice per level."""
TOO_DEEP = "it is nested too deeply"

T = TypeVar("T")


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file for reading; raise OSError for a FIFO, a device, a socket or a folder, without opening it."""
    # opening a device can have effects of its own, and opening a FIFO releases a waiting writer: look first
    _check_mode(_mode(path), path)
    # the file can be replaced by a FIFO in between, which blocks without O_NONBLOCK
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        _check_mode(os.fstat(descriptor).st_mode, path)
    except OSError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def _mode(path: Path) -> int:
    """Return the type of a file; raise OSError, never ValueError, for text that cannot be a file name."""
    try:
        return path.stat().st_mode
    except UnicodeEncodeError:  # half of a surrogate pair, as JSON can spell it
        raise OSError(
            errno.EINVAL,
            "the path contains a character that no file name can have",
            ascii(str(path)),
        ) from None
    except ValueError:
        raise OSError(
            errno.EINVAL, "the path contains a NUL character", str(path).replace("\0", "\\0")
        ) from None


def _check_mode(mode: int, path: Path) -> None:
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, "it is a folder", str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def check_regular(path: Path) -> None:
    """Raise OSError unless `path` is a regular file that can be read, for libraries that open files by name."""
    open_regular(path).close()


def is_regular(path: Path) -> bool:
    """Return whether `path` is a regular file; False for names that the system refuses, such as one that is too long."""
    try:
        return stat.S_ISREG(_mode(path))
    except OSError:
        return False


def is_folder(path: Path) -> bool:
    """Return whether `path` is a folder; False for names that the system refuses, such as one that is too long."""
    try:
        return stat.S_ISDIR(_mode(path))
    except OSError:
        return False


def read_bytes(path: Path, limit: int = TEXT_LIMIT) -> bytes:
    """Return the content of a regular file of at most `limit` bytes."""
    with open_regular(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit / 2**20:g} MiB", str(path))
    return content


def read_text(path: Path, limit: int = TEXT_LIMIT) -> str:
    """Return the content of a UTF-8 file; raise ValueError for another encoding."""
    return read_bytes(path, limit).decode("utf-8").replace("\r\n", "\n")


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; raise ValueError for text that is not JSON."""
    try:
        return _check_depth(json.loads(text))
    except RecursionError:
        raise ValueError(TOO_DEEP) from None


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML; raise ValueError for text that is not TOML."""
    if text.count(".") > DOTS_LIMIT:
        raise ValueError(f"it has more than {DOTS_LIMIT:,} dots")
    try:
        return _check_depth(tomllib.loads(text))
    except RecursionError:
        raise ValueError(TOO_DEEP) from None


def decode_json(content: str | bytes, kind: type[T]) -> T:
    """Decode JSON into a msgspec type; raise ValueError (msgspec's own errors are such) for content that does not fit."""
    try:
        _check_depth(msgspec.json.decode(content))  # a field of type Any takes values of any depth
        return msgspec.json.decode(content, type=kind)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None


def _check_depth(value: T) -> T:
    """Return the value, or raise ValueError if lists and tables are nested too deeply, level by level instead of recursively."""
    level: list[Any] = [value]
    for _ in range(DEPTH_LIMIT):
        containers = [
            part.values() if isinstance(part, dict) else part
            for part in level
            if isinstance(part, dict | list)
        ]
        if not containers:
            return value
        level = [inner for part in containers for inner in part if isinstance(inner, dict | list)]
    raise ValueError(TOO_DEEP)
