"""What commands of a sweep say: messages in a log that grows, results on stdout in a file that the next command replaces."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ..errors import BadFile, RunFolderError
from ..reading import open_regular, read_bytes

TAIL = 20_000
"""As many bytes at the end of a log are searched for the reason of a failure."""


@contextmanager
def streams(log: Path, output: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """A log to add to, and an empty file for results."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        # a link that a study folder from elsewhere contains must not lead to a file of the user
        with open(log, "ab", opener=_open_no_link) as messages, open(output, "wb", opener=_open_no_link) as results:
            yield messages, results
    except OSError as error:
        problem = f"a command that writes to {log.parent} cannot be started: {error.strerror}"
        raise RunFolderError(problem, hint="make room there, or check its owner and permissions") from None


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def length(log: Path) -> int:
    """Bytes that the log has by now."""
    return log.stat().st_size if log.exists() else 0


def tail(log: Path, begin: int) -> list[str]:
    """The last lines that were written after `begin`; none where the log is gone."""
    try:
        with open_regular(log) as file:
            file.seek(max(begin, length(log) - TAIL))
            return file.read(TAIL).decode(errors="replace").splitlines()
    except OSError:
        return []


def record_ids(output: Path) -> list[str]:
    """The ids of the records that `wmr evaluate --format json` has listed, whatever a model or plugin has printed around them."""
    try:
        text = read_bytes(output).decode(errors="replace")
    except OSError as error:
        raise BadFile(f"cannot read {output}: {error.strerror}", hint="repeat the sweep") from None
    for begin in (place for place, letter in enumerate(text) if letter == "["):
        ids = _ids(text, begin)
        if ids:
            return ids
    raise BadFile(f"{output} lists no records", hint="see the file; repeat the sweep to evaluate again")


def _ids(text: str, begin: int) -> list[str]:
    """Of a list of records that begins here; none where anything else does."""
    try:
        listed: Any = json.JSONDecoder().raw_decode(text, begin)[0]
        ids = [record["id"] for record in listed]
        return ids if all(isinstance(name, str) for name in ids) else []
    except (ValueError, TypeError, KeyError, RecursionError):
        return []
