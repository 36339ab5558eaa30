"""Read files that a user, a checkpoint or a dataset names.

Only regular files are opened, because a FIFO blocks and a device such as /dev/zero never ends. Text
has a size limit. Parsers raise ValueError for input that is nested too deeply. All functions raise
OSError with `strerror` set for a path that cannot be read, so that a caller needs one `except`
clause for it.
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
"""Bytes of a config or study file."""
DOTS_LIMIT = 10_000
"""Dots in a TOML file. tomllib needs quadratic time for a dotted key: about 1 s for this many."""
DEPTH_LIMIT = 100
"""Levels of nested lists and tables. Code that walks over values may recurse twice a level."""
NESTED_TOO_DEEPLY = "it is nested too deeply"

T = TypeVar("T")


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file for reading; raise OSError for anything else, without opening it."""
    # before opening: that can affect a device, and releases a process that writes to a FIFO
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
    """Return the mode of a file; raise OSError also for text that cannot be a file name."""
    try:
        return path.stat().st_mode
    except UnicodeEncodeError:
        # half of a surrogate pair, which JSON can contain
        reason = "the path contains a character that is not allowed in file names"
        raise OSError(errno.EINVAL, reason, ascii(str(path))) from None
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
    """Raise OSError unless `path` is a readable regular file.

    For libraries that open files by name, such as safetensors.
    """
    open_regular(path).close()


def is_regular(path: Path) -> bool:
    """Return whether `path` is a regular file; False for invalid names, such as too long ones."""
    try:
        return stat.S_ISREG(_mode(path))
    except OSError:
        return False


def is_folder(path: Path) -> bool:
    """Return whether `path` is a folder; False for invalid names, such as too long ones."""
    try:
        return stat.S_ISDIR(_mode(path))
    except OSError:
        return False


def read_bytes(path: Path, limit: int = TEXT_LIMIT) -> bytes:
    """Return the content of a regular file of at most `limit` bytes."""
    with open_regular(path) as file:
        # one byte more than allowed: the size of a growing file cannot be trusted
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit / 2**20:g} MiB", str(path))
    return content


def read_text(path: Path, limit: int = TEXT_LIMIT) -> str:
    """Return the content of a UTF-8 file; raise ValueError for another encoding."""
    return read_bytes(path, limit).decode("utf-8").replace("\r\n", "\n")


def parse_json(text: str | bytes) -> Any:  # noqa: ANN401 - any JSON value
    """Parse JSON; raise ValueError for text that is not JSON."""
    try:
        return _check_depth(json.loads(text))
    except RecursionError:
        raise ValueError(NESTED_TOO_DEEPLY) from None


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML; raise ValueError for text that is not TOML."""
    if text.count(".") > DOTS_LIMIT:
        raise ValueError(f"it has more than {DOTS_LIMIT:,} dots")
    try:
        return _check_depth(tomllib.loads(text))
    except RecursionError:
        raise ValueError(NESTED_TOO_DEEPLY) from None


def decode_json(content: str | bytes, kind: type[T]) -> T:
    """Decode JSON into a msgspec type; raise ValueError for content that does not fit.

    The errors of msgspec are ValueErrors.
    """
    try:
        # a field of type Any accepts values of any depth
        _check_depth(msgspec.json.decode(content))
        return msgspec.json.decode(content, type=kind)
    except RecursionError:
        raise ValueError(NESTED_TOO_DEEPLY) from None


def _check_depth(value: T) -> T:
    """Return the value; raise ValueError if lists and tables are nested too deeply."""
    # level by level, because recursion would exhaust the stack itself
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
    raise ValueError(NESTED_TOO_DEEPLY)
