"""Download files atomically and verify their checksums.

An interrupted download leaves `NAME.part`, which the same command continues. Existing files are
never overwritten.
"""

import contextlib
import fcntl
import hashlib
import http.client
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ...errors import BadFile, MissingData
from ...reading import open_regular
from ..contexts import report_progress

BLOCK_BYTES = 1 << 20
MEGABYTE = 10**6
TIMEOUT_SECONDS = 30
"""A server that sends nothing for this long is considered unavailable."""


@dataclass(frozen=True)
class Remote:
    """A published file, and the checksum that verifies it."""

    name: str
    urls: tuple[str, ...]
    """tried in this order"""
    md5: str
    size: int | None = None


def fetch(remotes: Sequence[Remote], folder: Path) -> list[Path]:
    """Return the paths of these files in `folder`, verified and downloaded if missing."""
    for remote in remotes:
        target = folder / remote.name
        if target.exists():
            hint = f"move it away and repeat the command, or put the official {remote.name} there"
            _verify(target, remote, f"{target} is", hint=hint)
        else:
            _download(remote, folder, [other.name for other in remotes])
    return [folder / remote.name for remote in remotes]


def _download(remote: Remote, folder: Path, needed: list[str]) -> None:
    """Download from the first address that has the file, through `NAME.part`."""
    part = folder / f"{remote.name}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _lock_partial_file(part) as stream:
            # another process may have finished it while this one waited for the lock
            if (folder / remote.name).exists():
                part.unlink(missing_ok=True)
                return
            problems = []
            for url in remote.urls:
                problem = _try_address(url, remote, part, stream)
                if problem is None:
                    # atomic: the final name appears only with verified content
                    part.rename(folder / remote.name)
                    return
                problems.append(problem)
            if not part.stat().st_size:
                part.unlink()
    except OSError as error:
        raise MissingData(
            f"cannot write to {folder}: {error.strerror or error}", hint="choose another `data_dir`"
        ) from None
    raise MissingData(
        f"cannot download {remote.name} ({'; '.join(problems)})",
        hint=f"repeat the command when there is network access, "
        f"or put {', '.join(needed)} into {folder.absolute()}",
    )


def _try_address(url: str, remote: Remote, part: Path, stream: BinaryIO) -> str | None:
    """Download and verify the file from one address; return the problem, if any."""
    try:
        _receive(url, remote, stream)
        _verify(part, remote, f"{url} sent", hint="")
    except (BadFile, OSError, http.client.HTTPException) as error:
        # bytes of another file cannot be continued; those of a broken connection can
        if isinstance(error, BadFile):
            stream.truncate(0)
        reason = _reason(error)
        return reason if url in reason else f"{url}: {reason}"
    return None


@contextmanager
def _lock_partial_file(part: Path) -> Iterator[BinaryIO]:
    """Open the partial file for this process alone; the holder may rename or remove it."""
    while True:
        # without O_NONBLOCK, opening a FIFO of this name waits for a reader
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(part, flags, 0o666)
        with os.fdopen(descriptor, "ab") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            # the process that held the lock before may have renamed or removed the file
            if _is_file_at(part, stream):
                yield stream
                return


def _is_file_at(path: Path, stream: BinaryIO) -> bool:
    """Return whether the open file is the one at this path."""
    try:
        return os.path.samestat(path.stat(), os.fstat(stream.fileno()))
    except FileNotFoundError:
        return False


def _receive(url: str, remote: Remote, stream: BinaryIO) -> None:
    """Append the missing bytes to the end of the stream."""
    done = stream.seek(0, os.SEEK_END)
    headers = {"User-Agent": "wmr"}
    if done:
        headers["Range"] = f"bytes={done}-"
    try:
        response = urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=TIMEOUT_SECONDS
        )
    except urllib.error.HTTPError as error:
        # the partial file is complete already
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return
        raise
    with response:
        # a server without ranges sends the file from its beginning
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:
            stream.truncate(0)
            done = 0
        length = response.headers.get("Content-Length")
        total = remote.size if length is None else done + int(length)
        total_megabytes = None if total is None else -(-total // MEGABYTE)
        task = f"downloading {remote.name}, MB"
        while block := response.read(BLOCK_BYTES):
            if done == 0:
                _check_not_html(block, remote, f"{url} sent")
            stream.write(block)
            done += len(block)
            report_progress(task, -(-done // MEGABYTE), total_megabytes)
        stream.flush()
    if total is not None and done < total:
        raise OSError(f"the connection broke off after {done:,} of {total:,} bytes, which are kept")


def _verify(path: Path, remote: Remote, subject: str, hint: str) -> None:
    """Check size and checksum of a file; `subject` starts the message of an error."""
    try:
        with open_regular(path) as stream:
            _check_not_html(stream.read(64), remote, subject, hint)
            stream.seek(0)
            size = os.fstat(stream.fileno()).st_size
            # the publishers give MD5; it detects damage, not malice
            digest = hashlib.md5(usedforsecurity=False)
            while block := stream.read(BLOCK_BYTES):
                digest.update(block)
    except OSError as error:
        raise BadFile(f"cannot read {path}: {error.strerror or error}", hint=hint) from None
    has_size = remote.size is None or size == remote.size
    if not has_size or digest.hexdigest() != remote.md5:
        raise BadFile(
            f"{subject} {size:,} bytes with MD5 {digest.hexdigest()}, "
            f"not {remote.name} with MD5 {remote.md5}",
            hint=hint,
        )


def _check_not_html(beginning: bytes, remote: Remote, subject: str, hint: str = "") -> None:
    if looks_like_html(beginning):
        raise BadFile(f"{subject} a web page instead of {remote.name}", hint=hint)


def looks_like_html(beginning: bytes) -> bool:
    """Return whether these first bytes are HTML or XML, which servers send for missing files."""
    return beginning.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"<")


def _reason(error: BaseException) -> str:
    """Return the cause of a network error in a few words."""
    if isinstance(error, urllib.error.HTTPError):
        return f"{error.code} {error.reason}"
    # URLError wraps the error of the socket
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return str(cause)


def unpack(archive: Path, into: Path, top: str) -> None:
    """Unpack the folder `top` of a tar or zip archive into `into`, atomically.

    Existing files are kept.
    """
    task = f"unpacking {archive.name}"
    report_progress(task, 0, 1)
    try:
        # in the same folder: a rename across file systems is not atomic
        with tempfile.TemporaryDirectory(
            dir=into, prefix=f".{top}.", ignore_cleanup_errors=True
        ) as temporary:
            # refuse members outside the folder; shutil skips those of zip archives by itself
            options = {} if archive.suffix == ".zip" else {"filter": "data"}
            shutil.unpack_archive(archive, temporary, **options)  # type: ignore[arg-type]
            source = Path(temporary) / top
            if not source.is_dir():
                raise BadFile(
                    f"{archive} has no folder {top!r}", hint="move it away and repeat the command"
                )
            _move_missing(source, into / top)
    except (shutil.ReadError, tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise BadFile(
            f"{archive} cannot be unpacked: {error}", hint="move it away and repeat the command"
        ) from None
    except OSError as error:
        raise MissingData(
            f"cannot unpack {archive} in {into}: {error.strerror or error}",
            hint="free space there, or choose another `data_dir`",
        ) from None
    report_progress(task, 1, 1)


def _move_missing(source: Path, target: Path) -> None:
    """Move a folder at once or, if the target exists, only the files missing there."""
    if not target.exists():
        # another process may create the target first
        with contextlib.suppress(OSError):
            source.rename(target)
            return
    for file in source.rglob("*"):
        destination = target / file.relative_to(source)
        if file.is_file() and not destination.exists():
            destination.parent.mkdir(parents=True, exist_ok=True)
            file.rename(destination)
