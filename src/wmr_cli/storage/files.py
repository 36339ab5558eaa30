"""Write files so that a reader finds the old content or the new one, and lock folders.

A file is written beside its target and renamed over it. Only a regular file is ever replaced: a symbolic link, a FIFO or a
device at that place is an error, because a run folder from elsewhere may contain one that leads out of it. Files that the user
names on a command line go through `resolve_output` first, which follows links.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from ..errors import FolderInUse, RunFolderError

STRAY = ".tmp"
"""Suffix of a temporary file. A process that was killed leaves one."""
OPEN_DESCRIPTOR = re.compile(r"/dev/(stdout|stderr|fd/\d+)|/proc/(self|\d+)/fd/\d+")
ELSEWHERE = "choose another place, or make room there"

_held: list[tuple[Path, int]] = []
"""Folders that this process uses: absolute path and open descriptor. No file is written below one that has been
moved or deleted since."""


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, flush it to the disk, then rename it into place."""
    temporary: Path | None = None
    try:
        check_in_place(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        _check_replaceable(path)
        temporary = _make_temporary(path)
        write(temporary)
        with temporary.open("rb") as stream:
            os.fsync(stream.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunFolderError(f"cannot write {path}: {reason}", hint=ELSEWHERE) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_output(path: Path, text: str) -> None:
    """Write text to a file that the user names: atomically to a regular file, straight into a FIFO or a character device."""
    if not _is_stream(path):
        write_text(resolve_output(path), text)
        return
    try:
        # a FIFO without a reader raises ENXIO instead of blocking
        # O_APPEND, because /dev/stdout may be a file to which the shell appends
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(descriptor, True)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise RunFolderError(f"cannot write {path}: {error.strerror}", hint=ELSEWHERE) from None


def resolve_output(path: Path) -> Path:
    """Return where a file that the user names is written: the target of a symbolic link, or the path itself."""
    is_link = path.is_symlink() and not OPEN_DESCRIPTOR.fullmatch(str(path))
    return Path(os.path.realpath(path)) if is_link else path


def refuse_links(root: Path, *parts: str) -> None:
    """Raise RunFolderError if a symbolic link is on the way from `root` to a file below it; `root` itself may be a link."""
    for part in Path(*parts).parts:
        root = root / part
        refuse_link(root)


def refuse_link(folder: Path) -> None:
    """Raise RunFolderError if a folder inside a run or a study is a symbolic link: it may lead to files of the user."""
    if folder.is_symlink():
        raise RunFolderError(f"{folder} is a symbolic link", hint="replace it by a folder, or choose another place with --out")


def check_writable(path: Path) -> None:
    """Refuse a file that `write_atomically` could not write, before any work is done for it."""
    try:
        check_in_place(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        _check_replaceable(path)
        _make_temporary(path).unlink()
    except OSError as error:
        raise RunFolderError(f"cannot write {path}: {error.strerror}", hint=ELSEWHERE) from None


def _is_stream(path: Path) -> bool:
    """Whether a path leads to a FIFO, a character device or an open descriptor, such as /dev/stdout."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or OPEN_DESCRIPTOR.fullmatch(str(path)) is not None


def _check_replaceable(path: Path) -> None:
    """Refuse to rename over anything but a regular file."""
    with contextlib.suppress(FileNotFoundError):
        mode = path.lstat().st_mode
        if not stat.S_ISREG(mode):
            kinds = {stat.S_IFDIR: "a folder", stat.S_IFLNK: "a symbolic link", stat.S_IFIFO: "a FIFO"}
            kind = kinds.get(stat.S_IFMT(mode), "not a regular file")
            raise RunFolderError(f"cannot write {path}: it is {kind}", hint="choose another place, or remove it")


def _make_temporary(path: Path) -> Path:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.", suffix=STRAY)
    os.close(handle)
    return Path(name)


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


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder for this process alone; create it if it does not exist.

    The lock is a file in the folder, so it stays with a folder that is moved.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = _open_lock(folder, os.O_CREAT)
    except OSError as error:
        raise RunFolderError(f"cannot write to {folder}: {error.strerror}", hint="choose another place with --out") from None
    try:
        _acquire(lock, folder)
        with watched(folder):
            yield
    finally:
        os.close(lock)


def _acquire(lock: int, folder: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # an evaluation removes its folder at the end, and the lock of a removed folder protects nothing
        is_taken = not _is_same(folder / ".lock", lock)
    except BlockingIOError:
        is_taken = True
    except OSError as error:  # some network file systems have no locks
        raise RunFolderError(f"cannot lock {folder}: {error.strerror}", hint="choose another place with --out") from None
    if is_taken:
        raise FolderInUse(f"{folder} is in use by another process", hint="wait for it, or choose another --out")


@contextmanager
def watched(folder: Path) -> Iterator[None]:
    """Refuse to write below a folder once it has been moved or deleted."""
    # an open descriptor keeps the inode number from being used again
    entry = (folder.absolute(), os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    _held.append(entry)
    try:
        yield
    finally:
        _held.remove(entry)
        os.close(entry[1])


def check_in_place(path: Path) -> None:
    """Raise RunFolderError if a folder that this process uses, and that contains `path`, has been moved or deleted."""
    for folder, descriptor in _held:
        if path.absolute().is_relative_to(folder) and not _is_same(folder, descriptor):
            problem = f"{folder} was moved or deleted while it was in use"
            raise RunFolderError(problem, hint="nothing was written since; put it back and add --resume to go on")


def is_locked(folder: Path) -> bool:
    """Whether a process holds this folder by `locked`.

    The check takes the lock for an instant, and another process that wants it just then is refused: check seldom.
    """
    try:
        lock = _open_lock(folder, 0)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise RunFolderError(f"cannot lock {folder}: {error.strerror}", hint="check its owner and permissions") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        raise RunFolderError(f"cannot lock {folder}: {error.strerror}", hint="check its owner and permissions") from None
    finally:
        os.close(lock)
    return False


def _open_lock(folder: Path, flags: int) -> int:
    """Open the lock file. It is never truncated, and a link or a special file in its place is refused."""
    path = folder / ".lock"
    try:
        # network file systems require write access for an exclusive lock
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | flags, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise RunFolderError(f"{path} is not a lock file", hint="look at it, and remove it") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise RunFolderError(f"{path} is not a lock file", hint="look at it, and remove it")
    return descriptor


def _is_same(path: Path, descriptor: int) -> bool:
    """Whether a path still leads to what a descriptor has open."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False


def content_hash(parts: Iterable[tuple[str, str, Sequence[int], bytes]], header: Mapping[str, str]) -> str:
    """SHA-256 over the header's lines, then over name, type, shape and bytes of every tensor, given in the order of names."""
    digest = hashlib.sha256(json.dumps(sorted(header.items())).encode())
    for name, kind, shape, content in parts:
        digest.update(json.dumps([name, kind, list(shape)]).encode())
        digest.update(content)
    return digest.hexdigest()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
