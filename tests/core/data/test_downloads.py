"""Downloads are what they claim, whole or not there, and go on where they were cut off."""

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

    asked: ClassVar[list[tuple[str, str | None]]] = []
    breaks_off = 0


class Handler(BaseHTTPRequestHandler):
    server: RecordingServer

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers.get("Range")))
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
        self.wfile.write(content[first : self.server.breaks_off or None])

    def log_message(self, *args: int | str) -> None:
        pass


@pytest.fixture
def server() -> Iterator[SimpleNamespace]:
    """A server of one good file, one wrong file and one web page; it can break off in the middle."""
    running = RecordingServer(("127.0.0.1", 0), Handler)
    running.asked.clear()
    threading.Thread(target=running.serve_forever, daemon=True).start()
    yield SimpleNamespace(at=f"http://127.0.0.1:{running.server_port}", running=running)
    running.shutdown()
    running.server_close()


def remote(server: SimpleNamespace, *paths: str, **changes: Any) -> Remote:
    facts = {
        "name": "data.bin",
        "urls": tuple(server.at + path for path in paths),
        "md5": hashlib.md5(CONTENT).hexdigest(),
    }
    return Remote(**{**facts, **changes})


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_arrives_whole_and_alone(server: SimpleNamespace, tmp_path: Path) -> None:
    (path,) = fetch([remote(server, "/good", size=len(CONTENT))], tmp_path / "new" / "folder")
    assert path.read_bytes() == CONTENT
    assert left(path.parent) == ["data.bin"]


def test_a_file_that_is_there_is_not_asked_for(server: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(CONTENT)
    fetch([remote(server, "/good")], tmp_path)
    assert server.running.asked == []


def test_the_next_address_is_tried(server: SimpleNamespace, tmp_path: Path) -> None:
    (path,) = fetch([remote(server, "/gone", "/page", "/other", "/good")], tmp_path)
    assert path.read_bytes() == CONTENT
    assert [path for path, _ in server.running.asked] == ["/gone", "/page", "/other", "/good"]


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/page", "a web page instead of data.bin"),
        ("/other", "not data.bin with MD5"),
        ("/gone", "404 Not Found"),
    ],
)
def test_what_is_not_the_file_is_named_and_not_kept(
    server: SimpleNamespace, tmp_path: Path, path: str, says: str
) -> None:
    with pytest.raises(MissingData, match=says) as caught:
        fetch([remote(server, path)], tmp_path)
    assert left(tmp_path) == []
    assert f"put data.bin into {tmp_path}" in caught.value.hint


def test_a_wrong_size_is_refused(server: SimpleNamespace, tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="1,280,000 bytes"):
        fetch([remote(server, "/good", size=7)], tmp_path)


def test_a_download_that_was_cut_off_goes_on(server: SimpleNamespace, tmp_path: Path) -> None:
    server.running.breaks_off = 300_000
    with pytest.raises(
        MissingData, match="broke off after 300,000 of 1,280,000 bytes, which are kept"
    ):
        fetch([remote(server, "/resumes")], tmp_path)
    assert left(tmp_path) == ["data.bin.part"]
    server.running.breaks_off = 0
    (path,) = fetch([remote(server, "/resumes")], tmp_path)
    assert server.running.asked[-1] == ("/resumes", "bytes=300000-")
    assert path.read_bytes() == CONTENT
    assert left(tmp_path) == ["data.bin"]


def test_a_server_that_cannot_go_on_starts_again(server: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "data.bin.part").write_bytes(CONTENT[:1000])
    (path,) = fetch([remote(server, "/good")], tmp_path)
    assert path.read_bytes() == CONTENT


def test_a_part_that_is_already_whole_is_taken(server: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "data.bin.part").write_bytes(CONTENT)
    (path,) = fetch([remote(server, "/resumes")], tmp_path)
    assert path.read_bytes() == CONTENT


def test_a_spoilt_part_is_thrown_away(server: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "data.bin.part").write_bytes(b"?" * 1000)
    with pytest.raises(MissingData, match=r"not data\.bin"):
        fetch([remote(server, "/resumes")], tmp_path)
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("content", "says"),
    [(PAGE, "a web page instead of data.bin"), (CONTENT[:-1], "not data.bin with MD5")],
)
def test_a_wrong_file_in_its_place_is_named_and_left_alone(
    server: SimpleNamespace, tmp_path: Path, content: bytes, says: str
) -> None:
    (tmp_path / "data.bin").write_bytes(content)
    with pytest.raises(BadFile, match=says):
        fetch([remote(server, "/good")], tmp_path)
    assert (tmp_path / "data.bin").read_bytes() == content


def test_without_network_the_error_says_which_files_to_put_where(tmp_path: Path) -> None:
    nowhere = [Remote(name, ("http://127.0.0.1:9/x",), "0") for name in ("one.gz", "two.gz")]
    with pytest.raises(MissingData, match=r"cannot download one\.gz .*refused") as caught:
        fetch(nowhere, tmp_path / "MNIST" / "raw")
    assert (
        caught.value.hint
        == f"repeat the command when there is network, or put one.gz, two.gz into {tmp_path / 'MNIST' / 'raw'}"
    )


def test_a_place_that_cannot_be_written_is_named(server: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(MissingData, match="cannot write"):
        fetch([remote(server, "/good")], tmp_path / "file")


def test_progress_is_reported_in_megabytes(
    server: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "BLOCK", 500_000)
    seen = []
    with watch_progress(lambda *report: seen.append(report)):
        fetch([remote(server, "/good")], tmp_path)
    assert seen[-1] == ("downloading data.bin, MB", 2, 2), "the last report closes the bar"
    assert len(seen) == 3


@pytest.mark.parametrize("beginning", [b"<html>", b"  \n<!DOCTYPE", b"\xef\xbb\xbf<?xml"])
def test_pages_are_recognised(beginning: bytes) -> None:
    assert looks_like_html(beginning)
    assert not looks_like_html(b"PK\x03\x04<")


def packed(tmp_path: Path, kind: str, files: dict[str, bytes]) -> Path:
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
def test_an_archive_is_unpacked_whole(tmp_path: Path, kind: str) -> None:
    unpack(packed(tmp_path, kind, {"top/a": b"1", "top/in/b": b"2"}), tmp_path, "top")
    assert (tmp_path / "top" / "in" / "b").read_bytes() == b"2"
    assert left(tmp_path) == [f"archive.{kind}", "top"]


def test_files_that_are_there_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "top").mkdir()
    (tmp_path / "top" / "a").write_bytes(b"mine")
    unpack(packed(tmp_path, "zip", {"top/a": b"1", "top/in/b": b"2"}), tmp_path, "top")
    assert (tmp_path / "top" / "a").read_bytes() == b"mine"
    assert (tmp_path / "top" / "in" / "b").read_bytes() == b"2"


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_a_corrupt_archive_leaves_nothing_behind(tmp_path: Path, kind: str) -> None:
    archive = packed(tmp_path, kind, {f"top/{number}": bytes(1000) for number in range(50)})
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    with pytest.raises(BadFile, match="cannot be unpacked"):
        unpack(archive, tmp_path, "top")
    assert left(tmp_path) == [archive.name]


def test_a_full_or_closed_disk_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = packed(tmp_path, "zip", {"top/a": b"1"})

    def full(*args: Path | str, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.unpack_archive", full)
    with pytest.raises(MissingData, match="No space left on device"):
        unpack(archive, tmp_path, "top")
    assert left(tmp_path) == [archive.name]


def test_unpacking_begins_and_ends(tmp_path: Path) -> None:
    seen = []
    with watch_progress(lambda *report: seen.append(report)):
        unpack(packed(tmp_path, "zip", {"top/a": b"1"}), tmp_path, "top")
    assert seen == [("unpacking archive.zip", 0, 1), ("unpacking archive.zip", 1, 1)]


def test_several_processes_that_want_one_file_get_it(
    server: SimpleNamespace, tmp_path: Path
) -> None:
    with ThreadPoolExecutor(4) as pool:  # each opens the lock anew, as processes do
        found = list(
            pool.map(lambda _: fetch([remote(server, "/good")], tmp_path)[0].read_bytes(), range(4))
        )
    assert found == [CONTENT] * 4
    assert left(tmp_path) == ["data.bin"]
    assert len(server.running.asked) == 1


def test_the_unfinished_file_may_vanish_while_others_wait_for_it(tmp_path: Path) -> None:
    part, inside = tmp_path / "data.bin.part", []

    def take(_: int) -> None:
        with downloads._alone(part) as stream:
            inside.append(stream)
            assert len(inside) == 1
            inside.remove(stream)
            part.unlink()

    with ThreadPoolExecutor(8) as pool:
        assert len(list(pool.map(take, range(200)))) == 200


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_an_archive_of_something_else_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(BadFile, match="has no folder 'top'"):
        unpack(packed(tmp_path, kind, {"else/a": b"1"}), tmp_path, "top")


def test_an_archive_cannot_write_outside(tmp_path: Path) -> None:
    archive = packed(tmp_path, "tar.gz", {"top/a": b"1", "../escaped": b"2"})
    with pytest.raises(BadFile, match="cannot be unpacked"):
        unpack(archive, tmp_path, "top")
    assert not (tmp_path.parent / "escaped").exists()


def test_a_plain_gzip_is_no_archive_of_folders(tmp_path: Path) -> None:
    (tmp_path / "archive.tar.gz").write_bytes(gzip.compress(b"not a tar"))
    with pytest.raises(BadFile, match="cannot be unpacked"):
        unpack(tmp_path / "archive.tar.gz", tmp_path, "top")


@pytest.mark.parametrize("make", IRREGULAR.values(), ids=IRREGULAR)
def test_only_a_regular_file_is_taken_for_a_download(
    server: SimpleNamespace, tmp_path: Path, make: Callable[..., Any]
) -> None:
    make(tmp_path / "data.bin")
    with (
        time_limit(60),
        pytest.raises(BadFile, match=r"it is a folder|not a regular file") as refused,
    ):
        fetch([remote(server, "/good")], tmp_path)
    assert "move it away" in refused.value.hint


def test_an_unfinished_download_that_is_a_fifo_is_refused(
    server: SimpleNamespace, tmp_path: Path
) -> None:
    make_fifo(tmp_path / "data.bin.part")
    with time_limit(60), pytest.raises(MissingData, match="cannot write to") as refused:
        fetch([remote(server, "/good")], tmp_path)
    assert refused.value.hint
