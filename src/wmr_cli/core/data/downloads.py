"""Files from elsewhere: proved by their hash before anybody reads them, there whole or not at all.

A download that was cut off leaves `NAME.part`, and the same command goes on from it. A file that lies in its place
already is never overwritten.
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

BLOCK, MEGA = 1 << 20, 10**6
PATIENCE = 30
"""Seconds without a byte after which a server counts as silent."""


@dataclass(frozen=True)
class Remote:
    """A file that others publish: where it is, and what proves that it arrived whole."""

    name: str
    urls: tuple[str, ...]
    """tried in this order"""
    md5: str
    size: int | None = None


def fetch(remotes: Sequence[Remote], folder: Path) -> list[Path]:
    """These files in `folder`, downloaded where they are missing; each is what its hash promises."""
    for remote in remotes:
        target = folder / remote.name
        if target.exists():
            _prove(
                target,
                remote,
                f"{target} is",
                hint=f"move it away and repeat the command, or put the official {remote.name} there",
            )
        else:
            _download(remote, folder, [other.name for other in remotes])
    return [folder / remote.name for remote in remotes]


def _download(remote: Remote, folder: Path, needed: list[str]) -> None:
    """From the first address that has it, by way of `NAME.part`."""
    part, problems = folder / f"{remote.name}.part", []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(part) as stream:
            if (folder / remote.name).exists():  # another process was at it
                part.unlink(missing_ok=True)
                return
            for url in remote.urls:
                try:
                    _receive(url, remote, stream)
                    _prove(
                        part,
                        remote,
                        f"{url} sent",
                        hint="repeat the command later: nothing of it was kept",
                    )
                except (BadFile, OSError, http.client.HTTPException) as problem:
                    if isinstance(problem, BadFile):
                        stream.truncate(0)
                    reason = _reason(problem)
                    problems.append(reason if url in reason else f"{url}: {reason}")
                    continue
                part.rename(folder / remote.name)
                return
            if not part.stat().st_size:
                part.unlink()
    except OSError as error:
        raise MissingData(
            f"cannot write to {folder}: {error.strerror or error}", hint="choose another --data-dir"
        ) from None
    hint = f"repeat the command when there is network, or put {', '.join(needed)} into {folder.absolute()}"
    raise MissingData(f"cannot download {remote.name} ({'; '.join(problems)})", hint=hint)


@contextmanager
def _alone(part: Path) -> Iterator[BinaryIO]:
    """The unfinished file, for this process alone; who holds it may rename it or take it away."""
    while True:
        # without O_NONBLOCK, opening a FIFO of this name waits for a reader
        descriptor = os.open(
            part, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o666
        )
        with os.fdopen(descriptor, "ab") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            if _names(part, stream):
                yield stream
                return


def _names(path: Path, stream: BinaryIO) -> bool:
    """Whether the open file is the one of that name, which another process may take away at any moment."""
    try:
        return os.path.samestat(path.stat(), os.fstat(stream.fileno()))
    except FileNotFoundError:
        return False


def _receive(url: str, remote: Remote, stream: BinaryIO) -> None:
    """Append what is still missing, from where the stream ends."""
    done = stream.seek(0, 2)
    request = urllib.request.Request(
        url, headers={"User-Agent": "wmr", **({"Range": f"bytes={done}-"} if done else {})}
    )
    try:
        answer = urllib.request.urlopen(request, timeout=PATIENCE)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:  # it is all there already
            return
        raise
    with answer:
        if answer.status != http.HTTPStatus.PARTIAL_CONTENT:
            stream.truncate(0)  # a server that cannot go on starts again
            done = 0
        length = answer.headers.get("Content-Length")
        total = remote.size if length is None else done + int(length)
        while block := answer.read(BLOCK):
            if done == 0:
                _refuse_page(block, remote, f"{url} sent")
            stream.write(block)
            done += len(block)
            report_progress(
                f"downloading {remote.name}, MB",
                -(-done // MEGA),
                None if total is None else -(-total // MEGA),
            )
        stream.flush()
    if total is not None and done < total:
        raise OSError(f"the connection broke off after {done:,} of {total:,} bytes, which are kept")


def _prove(path: Path, remote: Remote, says: str, hint: str) -> None:
    """Refuse a file that is not the official one."""
    try:
        with open_regular(path) as stream:
            _refuse_page(stream.read(64), remote, says, hint)
            stream.seek(0)
            size, digest = os.fstat(stream.fileno()).st_size, hashlib.md5(usedforsecurity=False)
            while block := stream.read(BLOCK):
                digest.update(block)
    except OSError as error:
        raise BadFile(f"cannot read {path}: {error.strerror or error}", hint=hint) from None
    if (remote.size is not None and size != remote.size) or digest.hexdigest() != remote.md5:
        raise BadFile(
            f"{says} {size:,} bytes with MD5 {digest.hexdigest()}, not {remote.name} with MD5 {remote.md5}",
            hint=hint,
        )


def _refuse_page(beginning: bytes, remote: Remote, says: str, hint: str = "") -> None:
    if looks_like_html(beginning):
        raise BadFile(f"{says} a web page instead of {remote.name}", hint=hint)


def looks_like_html(beginning: bytes) -> bool:
    """Whether a file that begins like this is HTML or XML: what many servers send in place of a file."""
    return beginning.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"<")


def _reason(problem: BaseException) -> str:
    if isinstance(problem, urllib.error.HTTPError):
        return f"{problem.code} {problem.reason}"
    reason = getattr(problem, "reason", None)
    return str(getattr(reason, "strerror", None) or reason or problem)


def unpack(archive: Path, into: Path, top: str) -> None:
    """The folder `top` of a tar or zip archive, in `into`: it appears whole. Files that are there already stay as they are."""
    report_progress(f"unpacking {archive.name}", 0, 1)
    try:
        with tempfile.TemporaryDirectory(
            dir=into, prefix=f".{top}.", ignore_cleanup_errors=True
        ) as temporary:
            options = {} if archive.suffix == ".zip" else {"filter": "data"}
            shutil.unpack_archive(archive, temporary, **options)  # type: ignore[arg-type]
            source = Path(temporary) / top
            if not source.is_dir():
                raise BadFile(
                    f"{archive} has no folder {top!r}", hint="move it away and repeat the command"
                )
            _move(source, into / top)
    except (shutil.ReadError, tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise BadFile(
            f"{archive} cannot be unpacked: {error}", hint="move it away and repeat the command"
        ) from None
    except OSError as error:
        problem = f"cannot unpack {archive} in {into}: {error.strerror or error}"
        raise MissingData(problem, hint="make room there, or choose another --data-dir") from None
    report_progress(f"unpacking {archive.name}", 1, 1)


def _move(source: Path, target: Path) -> None:
    """A folder to its place at once; where it exists already, what is missing there, file by file."""
    if not target.exists():
        with contextlib.suppress(OSError):  # another process may have been faster
            source.rename(target)
            return
    for file in source.rglob("*"):
        place = target / file.relative_to(source)
        if file.is_file() and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            file.rename(place)
