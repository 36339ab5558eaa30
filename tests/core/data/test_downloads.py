"""Downloads are verified, atomic, and continued after an interruption."""

import gzip
import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from support.special_files import IRREGULAR, make_fifo, time_limit
from wmr_cli.core.contexts import watch_progress
from wmr_cli.core.data import downloads
from wmr_cli.core.data.downloads import Remote, fetch, looks_like_html, unpack
from wmr_cli.errors import BadFile, MissingData

CONTENT = bytes(range(256)) * 5000
PAGE = b"\n <!DOCTYPE html><html><body>Quota exceeded</body></html>"


class RecordingServer(ThreadingHTTPServer):
    """A server that records its requests and can stop in the middle of a file."""

    requests: ClassVar[list[tuple[str, str | None]]] = []
    bytes_before_break = 0


class Handler(BaseHTTPRequestHandler):
    server: RecordingServer

    def do_GET(self) -> None:
        self.server.requests.append((self.path, self.headers.get("Range")))
        if self.path == "/gone":
            self.send_error(404)
            return
        content = {"/page": PAGE, "/other": CONTENT[::-1]}.get(self.path, CONTENT)
        first = 0
        if self.path == "/resumes" and self.headers.get("Range"):
            first = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
        if first >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if first else 200)
        self.send_header("Content-Length", str(len(content) - first))
        self.end_headers()
        self.wfile.write(content[first : self.server.bytes_before_break or None])

    def log_message(self, *args: int | str) -> None:
        pass


@pytest.fixture
def server() -> Iterator[SimpleNamespace]:
    """Return a server with a valid file, another file and a web page."""
    running = RecordingServer(("127.0.0.1", 0), Handler)
    running.requests.clear()
    threading.Thread(target=running.serve_forever, daemon=True).start()
    yield SimpleNamespace(at=f"http://127.0.0.1:{running.server_port}", running=running)
    running.shutdown()
    running.server_close()


def make_remote(server: SimpleNamespace, *paths: str, **changes: Any) -> Remote:
    facts = {
        "name": "data.bin",
        "urls": tuple(server.at + path for path in paths),
        "md5": hashlib.md5(CONTENT).hexdigest(),
    }
    return Remote(**{**facts, **changes})


def file_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_file_is_downloaded_into_a_new_folder(server: SimpleNamespace, tmp_path: Path) -> None:
    (path,) = fetch([make_remote(server, "/good", size=len(CONTENT))], tmp_path / "new" / "folder")
    assert path.read_bytes() == CONTENT
    assert file_names(path.parent) == ["data.bin"]


def test_existing_file_is_not_downloaded(server: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(CONTENT)
    fetch([make_remote(server, "/good")], tmp_path)
    assert server.running.requests == []


def test_addresses_are_tried_in_order(server: SimpleNamespace, tmp_path: Path) -> None:
    (path,) = fetch([make_remote(server, "/gone", "/page", "/other", "/good")], tmp_path)
    assert path.read_bytes() == CONTENT
    assert [path for path, _ in server.running.requests] == ["/gone", "/page", "/other", "/good"]


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("/page", "web page"),
        ("/other", "MD5"),
        ("/gone", "404"),
    ],
)
def test_another_file_is_refused_and_removed(
    server: SimpleNamespace, tmp_path: Path, path: str, problem: str
) -> None:
    with pytest.raises(MissingData, match=problem) as caught:
        fetch([make_remote(server, path)], tmp_path)
    assert file_names(tmp_path) == []
    assert str(tmp_path) in caught.value.hint


def test_file_of_another_size_is_refused(server: SimpleNamespace, tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="1,280,000 bytes"):
        fetch([make_remote(server, "/good", size=7)], tmp_path)


def test_interrupted_download_is_continued(server: SimpleNamespace, tmp_path: Path) -> None:
    server.running.bytes_before_break = 300_000
    with pytest.raises(MissingData, match="300,000 of 1,280,000 bytes"):
        fetch([make_remote(server, "/resumes")], tmp_path)
    assert file_names(tmp_path) == ["data.bin.part"]
    server.running.bytes_before_break = 0
    (path,) = fetch([make_remote(server, "/resumes")], tmp_path)
    assert server.running.requests[-1] == ("/resumes", "bytes=300000-")
    assert path.read_bytes() == CONTENT
    assert file_names(tmp_path) == ["data.bin"]


def test_download_restarts_on_a_server_without_ranges(
    server: SimpleNamespace, tmp_path: Path
) -> None:
    (tmp_path / "data.bin.part").write_bytes(CONTENT[:1000])
    (path,) = fetch([make_remote(server, "/good")], tmp_path)
    assert path.read_bytes() == CONTENT


def test_complete_partial_file_is_used(server: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "data.bin.part").write_bytes(CONTENT)
    (path,) = fetch([make_remote(server, "/resumes")], tmp_path)
    assert path.read_bytes() == CONTENT


def test_damaged_partial_file_is_removed(server: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "data.bin.part").write_bytes(b"?" * 1000)
    with pytest.raises(MissingData, match="MD5"):
        fetch([make_remote(server, "/resumes")], tmp_path)
    assert file_names(tmp_path) == []


@pytest.mark.parametrize(
    ("content", "problem"),
    [(PAGE, "web page"), (CONTENT[:-1], "MD5")],
)
def test_existing_invalid_file_is_refused_and_kept(
    server: SimpleNamespace, tmp_path: Path, content: bytes, problem: str
) -> None:
    (tmp_path / "data.bin").write_bytes(content)
    with pytest.raises(BadFile, match=problem):
        fetch([make_remote(server, "/good")], tmp_path)
    assert (tmp_path / "data.bin").read_bytes() == content


def test_hint_names_all_missing_files_and_their_folder(tmp_path: Path) -> None:
    unreachable = [Remote(name, ("http://127.0.0.1:9/x",), "0") for name in ("one.gz", "two.gz")]
    with pytest.raises(MissingData, match=r"cannot download one\.gz .*refused") as caught:
        fetch(unreachable, tmp_path / "MNIST" / "raw")
    for part in ("one.gz", "two.gz", str(tmp_path / "MNIST" / "raw")):
        assert part in caught.value.hint


def test_folder_that_cannot_be_written_is_an_error(server: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(MissingData, match="cannot write"):
        fetch([make_remote(server, "/good")], tmp_path / "file")


def test_progress_is_reported_in_megabytes(
    server: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "BLOCK_BYTES", 500_000)
    seen = []
    with watch_progress(lambda *report: seen.append(report)):
        fetch([make_remote(server, "/good")], tmp_path)
    # the last report completes the progress bar
    assert seen[-1] == ("downloading data.bin, MB", 2, 2)
    assert len(seen) == 3


@pytest.mark.parametrize("beginning", [b"<html>", b"  \n<!DOCTYPE", b"\xef\xbb\xbf<?xml"])
def test_html_and_xml_are_recognised(beginning: bytes) -> None:
    assert looks_like_html(beginning)
    assert not looks_like_html(b"PK\x03\x04<")


def make_archive(tmp_path: Path, kind: str, files: dict[str, bytes]) -> Path:
    archive = tmp_path / f"archive.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(archive, "w") as made:
            for name, content in files.items():
                made.writestr(name, content)
    else:
        with tarfile.open(archive, "w:gz") as made:
            for name, content in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                made.addfile(member, io.BytesIO(content))
    return archive


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_archive_is_unpacked_without_temporary_files(tmp_path: Path, kind: str) -> None:
    unpack(make_archive(tmp_path, kind, {"top/a": b"1", "top/in/b": b"2"}), tmp_path, "top")
    assert (tmp_path / "top" / "in" / "b").read_bytes() == b"2"
    assert file_names(tmp_path) == [f"archive.{kind}", "top"]


def test_unpacking_keeps_existing_files(tmp_path: Path) -> None:
    (tmp_path / "top").mkdir()
    (tmp_path / "top" / "a").write_bytes(b"mine")
    unpack(make_archive(tmp_path, "zip", {"top/a": b"1", "top/in/b": b"2"}), tmp_path, "top")
    assert (tmp_path / "top" / "a").read_bytes() == b"mine"
    assert (tmp_path / "top" / "in" / "b").read_bytes() == b"2"


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_damaged_archive_leaves_no_files(tmp_path: Path, kind: str) -> None:
    archive = make_archive(tmp_path, kind, {f"top/{number}": bytes(1000) for number in range(50)})
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    with pytest.raises(BadFile, match="cannot be unpacked"):
        unpack(archive, tmp_path, "top")
    assert file_names(tmp_path) == [archive.name]


def test_full_disk_is_reported_as_missing_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = make_archive(tmp_path, "zip", {"top/a": b"1"})

    def full(*args: Path | str, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.unpack_archive", full)
    with pytest.raises(MissingData, match="No space left on device"):
        unpack(archive, tmp_path, "top")
    assert file_names(tmp_path) == [archive.name]


def test_unpacking_reports_its_start_and_end(tmp_path: Path) -> None:
    seen = []
    with watch_progress(lambda *report: seen.append(report)):
        unpack(make_archive(tmp_path, "zip", {"top/a": b"1"}), tmp_path, "top")
    assert seen == [("unpacking archive.zip", 0, 1), ("unpacking archive.zip", 1, 1)]


def test_concurrent_requests_download_a_file_once(server: SimpleNamespace, tmp_path: Path) -> None:
    # every thread opens the lock itself, as processes do
    with ThreadPoolExecutor(4) as pool:
        found = list(
            pool.map(
                lambda _: fetch([make_remote(server, "/good")], tmp_path)[0].read_bytes(), range(4)
            )
        )
    assert found == [CONTENT] * 4
    assert file_names(tmp_path) == ["data.bin"]
    assert len(server.running.requests) == 1


def test_partial_file_may_be_removed_while_others_wait_for_its_lock(tmp_path: Path) -> None:
    part = tmp_path / "data.bin.part"
    holders = []

    def take(_: int) -> None:
        with downloads._lock_partial_file(part) as stream:
            holders.append(stream)
            assert len(holders) == 1
            holders.remove(stream)
            part.unlink()

    with ThreadPoolExecutor(8) as pool:
        assert len(list(pool.map(take, range(200)))) == 200


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_archive_without_the_folder_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(BadFile, match="top"):
        unpack(make_archive(tmp_path, kind, {"else/a": b"1"}), tmp_path, "top")


def test_archive_cannot_write_outside_its_folder(tmp_path: Path) -> None:
    archive = make_archive(tmp_path, "tar.gz", {"top/a": b"1", "../escaped": b"2"})
    with pytest.raises(BadFile, match="cannot be unpacked"):
        unpack(archive, tmp_path, "top")
    assert not (tmp_path.parent / "escaped").exists()


def test_plain_gzip_is_refused(tmp_path: Path) -> None:
    (tmp_path / "archive.tar.gz").write_bytes(gzip.compress(b"not a tar"))
    with pytest.raises(BadFile, match="cannot be unpacked"):
        unpack(tmp_path / "archive.tar.gz", tmp_path, "top")


@pytest.mark.parametrize("make", IRREGULAR.values(), ids=IRREGULAR)
def test_irregular_file_is_refused(
    server: SimpleNamespace, tmp_path: Path, make: Callable[..., Any]
) -> None:
    make(tmp_path / "data.bin")
    with time_limit(60), pytest.raises(BadFile) as refused:
        fetch([make_remote(server, "/good")], tmp_path)
    assert refused.value.hint


def test_partial_file_that_is_a_fifo_is_refused(server: SimpleNamespace, tmp_path: Path) -> None:
    make_fifo(tmp_path / "data.bin.part")
    with time_limit(60), pytest.raises(MissingData, match="cannot write") as refused:
        fetch([make_remote(server, "/good")], tmp_path)
    assert refused.value.hint
