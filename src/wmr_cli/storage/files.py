"""Writing that leaves the old file or the new one, never half of one."""

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from ..errors import FolderInUse, RunFolderError

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
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunFolderError(f"cannot write {path}: {reason}", hint="choose another place, or make room there") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def write_folder(folder: Path, files: Mapping[str, str]) -> None:
    """Write these texts, by their path in a folder that is new or empty: all of them or nothing."""
    temporary: Path | None = None
    try:
        is_there = folder.exists() or folder.is_symlink()
        if is_there and (not folder.is_dir() or any(folder.iterdir())):
            raise RunFolderError(f"{folder} is there already", hint="choose a folder that is new or empty with --out")
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=folder if is_there else folder.parent, prefix=f".{folder.name}.", suffix=STRAY))
        for path, text in files.items():
            (temporary / path).parent.mkdir(parents=True, exist_ok=True)
            (temporary / path).write_text(text, encoding="utf-8")
        if is_there:  # it may be the folder the user is in, so it stays the one it is
            for part in list(temporary.iterdir()):
                part.rename(folder / part.name)
        else:
            temporary.chmod(0o777 & ~_umask())
            temporary.rename(folder)
    except OSError as error:
        raise RunFolderError(f"cannot write {folder}: {error.strerror}", hint="choose another place with --out") from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def check_writable(path: Path) -> None:
    """Refuse a file that could not be written, before any work is done for it."""
    probe = path.with_name(f"{path.name}.probe")
    write_atomically(probe, lambda temporary: None)
    probe.unlink()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """The folder for this process alone; made if it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise RunFolderError(f"cannot write to {folder}: {error.strerror}", hint="choose another place with --out") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUse(f"{folder} is in use by another process", hint="wait for it, or choose another --out") from None
        except OSError as error:  # a disk over the network may know no locks
            raise RunFolderError(f"cannot lock {folder}: {error.strerror}", hint="choose another place with --out") from None
        yield


def content_hash(parts: Iterable[tuple[str, str, Sequence[int], bytes]], header: Mapping[str, str]) -> str:
    """SHA-256 over the header's lines, then over name, type, shape and bytes of every tensor, given in the order of names."""
    digest = hashlib.sha256(json.dumps(sorted(header.items())).encode())
    for name, kind, shape, content in parts:
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
