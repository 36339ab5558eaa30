"""Write files so that a reader finds the old content or the new one, and lock folders.

A file is written beside its target and renamed over it. Only regular files are replaced. A symbolic
link, a FIFO or a device in place of the target is an error: a run folder that was downloaded may
contain a link to files outside. Paths that the user names go through `resolve_output` first, which
follows links.
"""

import contextlib
import errno
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from ..errors import FolderInUse, RunFolderError

TEMPORARY_SUFFIX = ".tmp"
"""Suffix of temporary files. A killed process leaves them behind."""
OPEN_DESCRIPTOR = re.compile(r"/dev/(stdout|stderr|fd/\d+)|/proc/(self|\d+)/fd/\d+")
"""Paths of descriptors that are open already, such as a pipe of the shell."""
SPACE_HINT = "choose another place, or make room there"
OUT_HINT = "choose another folder with `out`"
PERMISSION_HINT = "check its owner and permissions"

_watched: list[tuple[Path, int]] = []
"""Folders that this process uses: absolute path and open descriptor.

Nothing is written below a folder that has been moved or deleted: its new content may be the user's.
"""


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write` with a temporary file beside `path`, flush it, and rename it to `path`."""
    temporary: Path | None = None
    try:
        check_in_place(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        _check_replaceable(path)
        temporary = _make_temporary(path)
        write(temporary)
        # without fsync, a power failure after the rename may leave an empty file
        with temporary.open("rb") as stream:
            os.fsync(stream.fileno())
        # mkstemp creates files for the owner only; results follow the user's umask
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        # safetensors reports a full disk as an error of its own, without strerror
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise RunFolderError(f"cannot write {path}: {reason}", hint=SPACE_HINT) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_output(path: Path, text: str) -> None:
    """Write text to a path of the user: atomically to a file, directly to a FIFO or a device."""
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
        raise RunFolderError(f"cannot write {path}: {error.strerror}", hint=SPACE_HINT) from None


def resolve_output(path: Path) -> Path:
    """Return the target of a symbolic link that the user names, or the path itself."""
    # /dev/stdout is a link, but its target may be a pipe that has no path
    if path.is_symlink() and not OPEN_DESCRIPTOR.fullmatch(str(path)):
        return Path(os.path.realpath(path))
    return path


def refuse_links(root: Path, *parts: str) -> None:
    """Raise RunFolderError if a part of the path below `root` is a symbolic link.

    `root` itself may be a link, because the user named it.
    """
    for part in Path(*parts).parts:
        root = root / part
        refuse_link(root)


def refuse_link(folder: Path) -> None:
    """Raise RunFolderError if a folder of a run or a study is a link: it may lead outside."""
    if folder.is_symlink():
        raise RunFolderError(
            f"{folder} is a symbolic link",
            hint=f"replace it by a folder, or {OUT_HINT}",
        )


def check_writable(path: Path) -> None:
    """Raise RunFolderError before any work if `write_atomically` would fail for this file."""
    try:
        check_in_place(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        _check_replaceable(path)
        _make_temporary(path).unlink()
    except OSError as error:
        raise RunFolderError(f"cannot write {path}: {error.strerror}", hint=SPACE_HINT) from None


def _is_stream(path: Path) -> bool:
    """Return whether a path leads to a FIFO, a character device or an open descriptor."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return False
    return (
        stat.S_ISFIFO(mode)
        or stat.S_ISCHR(mode)
        or OPEN_DESCRIPTOR.fullmatch(str(path)) is not None
    )


def _check_replaceable(path: Path) -> None:
    """Refuse to rename over anything but a regular file."""
    with contextlib.suppress(FileNotFoundError):
        mode = path.lstat().st_mode
        if not stat.S_ISREG(mode):
            kinds = {
                stat.S_IFDIR: "a folder",
                stat.S_IFLNK: "a symbolic link",
                stat.S_IFIFO: "a FIFO",
            }
            kind = kinds.get(stat.S_IFMT(mode), "not a regular file")
            raise RunFolderError(
                f"cannot write {path}: it is {kind}", hint="choose another place, or remove it"
            )


def _make_temporary(path: Path) -> Path:
    handle, name = tempfile.mkstemp(
        dir=path.parent, prefix=f".{path.name[:100]}.", suffix=TEMPORARY_SUFFIX
    )
    os.close(handle)
    return Path(name)


def write_folder(folder: Path, files: Mapping[str, str]) -> None:
    """Write texts by their paths in a new or empty folder: all of them or nothing."""
    temporary: Path | None = None
    try:
        already_exists = folder.exists() or folder.is_symlink()
        if already_exists and (not folder.is_dir() or any(folder.iterdir())):
            raise RunFolderError(
                f"{folder} already exists", hint="choose a new or empty folder with `out`"
            )
        folder.parent.mkdir(parents=True, exist_ok=True)
        # a rename is atomic only inside one file system, so the temporary folder is nearby
        nearby = folder if already_exists else folder.parent
        temporary = Path(
            tempfile.mkdtemp(dir=nearby, prefix=f".{folder.name}.", suffix=TEMPORARY_SUFFIX)
        )
        for path, text in files.items():
            (temporary / path).parent.mkdir(parents=True, exist_ok=True)
            (temporary / path).write_text(text, encoding="utf-8")
        if already_exists:
            # it may be the working directory of the user's shell, so it must not be replaced
            for part in list(temporary.iterdir()):
                part.rename(folder / part.name)
        else:
            temporary.chmod(0o777 & ~_umask())
            temporary.rename(folder)
    except OSError as error:
        raise RunFolderError(f"cannot write {folder}: {error.strerror}", hint=OUT_HINT) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder for this process; create the folder if it does not exist.

    The lock is a file in the folder, so that it moves with the folder. The kernel releases the lock
    when the process ends, so that a killed process leaves no stale lock.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = _open_lock(folder, os.O_CREAT)
    except OSError as error:
        raise RunFolderError(f"cannot write to {folder}: {error.strerror}", hint=OUT_HINT) from None
    try:
        _acquire(lock, folder)
        with watch_folder(folder):
            yield
    finally:
        os.close(lock)


def _acquire(lock: int, folder: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # an evaluation removes its folder at the end: this lock may be on a file that is deleted,
        # while another process has created the folder and its lock file again
        is_taken = not _is_same(folder / ".lock", lock)
    except BlockingIOError:
        is_taken = True
    except OSError as error:
        # some network file systems do not support locks
        raise RunFolderError(f"cannot lock {folder}: {error.strerror}", hint=OUT_HINT) from None
    if is_taken:
        raise FolderInUse(
            f"{folder} is in use by another process", hint=f"wait for it, or {OUT_HINT}"
        )


@contextmanager
def watch_folder(folder: Path) -> Iterator[None]:
    """Raise errors for writes below a folder after it has been moved or deleted."""
    # the open descriptor prevents the file system from reusing the inode number
    entry = (folder.absolute(), os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    _watched.append(entry)
    try:
        yield
    finally:
        _watched.remove(entry)
        os.close(entry[1])


def check_in_place(path: Path) -> None:
    """Raise RunFolderError if a used folder that contains `path` has been moved or deleted."""
    for folder, descriptor in _watched:
        if path.absolute().is_relative_to(folder) and not _is_same(folder, descriptor):
            raise RunFolderError(
                f"{folder} was moved or deleted while it was in use",
                hint="nothing was written since; move it back and continue with `resume=True`",
            )


def is_locked(folder: Path) -> bool:
    """Return whether a process holds this folder with `lock_folder`.

    The check itself takes the lock for an instant, in which other processes cannot take it. Call it
    rarely.
    """
    try:
        lock = _open_lock(folder, 0)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise RunFolderError(
            f"cannot lock {folder}: {error.strerror}", hint=PERMISSION_HINT
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        raise RunFolderError(
            f"cannot lock {folder}: {error.strerror}", hint=PERMISSION_HINT
        ) from None
    finally:
        os.close(lock)
    return False


def _open_lock(folder: Path, flags: int) -> int:
    """Open the lock file without truncating it; refuse a link or a special file in its place."""
    path = folder / ".lock"
    try:
        # O_NONBLOCK: opening a FIFO would wait for its other end;
        # O_RDWR: network file systems require write access for an exclusive lock
        descriptor = os.open(
            path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | flags, 0o666
        )
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise RunFolderError(
                f"{path} is not a lock file", hint="look at it, and remove it"
            ) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise RunFolderError(f"{path} is not a lock file", hint="look at it, and remove it")
    return descriptor


def _is_same(path: Path, descriptor: int) -> bool:
    """Return whether a path still leads to the file or folder behind a descriptor."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False


def _umask() -> int:
    # the umask can only be read by setting it
    mask = os.umask(0)
    os.umask(mask)
    return mask
