"""Writing that leaves the old file or the new one, never half of one."""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from ..errors import RunFolderError

STRAY = ".tmp"
"""How the name of an unfinished file ends; a process that was killed leaves one."""


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, flush it to the disk, then rename it into place."""
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=STRAY)
        os.close(handle)
        temporary = Path(name)
        write(temporary)
        with temporary.open("rb") as stream:
            os.fsync(stream.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        raise RunFolderError(f"cannot write {path}: {error.strerror or error}", hint="choose another place with --out") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def content_hash(parts: Iterable[tuple[str, str, Sequence[int], bytes]], header: Mapping[str, str]) -> str:
    """SHA-256 over the header's lines, then over name, type, shape and bytes of every tensor in the order of names."""
    digest = hashlib.sha256(json.dumps(sorted(header.items())).encode())
    for name, kind, shape, content in sorted(parts):
        digest.update(json.dumps([name, kind, list(shape)]).encode())
        digest.update(content)
    return digest.hexdigest()


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
