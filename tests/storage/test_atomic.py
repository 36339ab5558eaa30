"""Only regular files are replaced, a lock touches nothing but itself, and a folder that is gone is not made again."""

import contextlib
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from wmr_cli.errors import FolderInUse, RunFolderError
from wmr_cli.storage.atomic import (
    check_writable,
    is_locked,
    lock_folder,
    resolve_output,
    watch_folder,
    write_atomically,
    write_output,
    write_text,
)


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_device(path: Path) -> None:
    """Like /dev/full. It needs root, and a file system that allows devices."""
    with contextlib.suppress(PermissionError):
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 7))
        path.open("rb").close()
        return
    pytest.skip("devices cannot be made here")


def make_link(path: Path) -> None:
    path.with_name("target").write_text("precious")
    path.symlink_to(path.with_name("target"))


def make_dangling_link(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


SPECIAL: dict[str, Callable[[Path], None]] = {
    "fifo": make_fifo,
    "device": make_device,
    "link": make_link,
    "dangling": make_dangling_link,
    "folder": Path.mkdir,
}


@pytest.mark.parametrize("kind", SPECIAL)
def test_nothing_but_a_regular_file_is_replaced(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    SPECIAL[kind](path)
    before = path.lstat()
    with pytest.raises(RunFolderError, match="cannot write"):
        write_text(path, "new")
    with pytest.raises(RunFolderError, match="cannot write"):
        check_writable(path)
    assert path.lstat().st_ino == before.st_ino
    assert stat.S_IFMT(path.lstat().st_mode) == stat.S_IFMT(before.st_mode)
    assert {"nowhere", "file", "target"} >= set(os.listdir(tmp_path))


def test_a_file_that_the_user_names_by_a_link_is_written_where_the_link_leads(
    tmp_path: Path,
) -> None:
    make_link(tmp_path / "file")
    write_output(tmp_path / "file", "new")
    assert (tmp_path / "file").is_symlink()
    assert (tmp_path / "target").read_text() == "new"
    assert resolve_output(tmp_path / "file") == tmp_path / "target"


def test_output_goes_through_a_fifo_to_its_reader(tmp_path: Path) -> None:
    make_fifo(tmp_path / "fifo")
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    write_output(tmp_path / "fifo", "new")
    assert os.read(reader, 100) == b"new"
    os.close(reader)
    assert stat.S_ISFIFO((tmp_path / "fifo").lstat().st_mode)


def test_a_fifo_without_a_reader_is_refused_instead_of_waiting(tmp_path: Path) -> None:
    make_fifo(tmp_path / "fifo")
    with pytest.raises(RunFolderError, match="cannot write"):
        write_output(tmp_path / "fifo", "new")


def test_a_full_device_is_an_error_and_stays_a_device(tmp_path: Path) -> None:
    make_device(tmp_path / "full")
    with pytest.raises(RunFolderError, match="No space left"):
        write_output(tmp_path / "full", "new")
    assert stat.S_ISCHR((tmp_path / "full").lstat().st_mode)


def test_standard_output_can_be_named_as_a_file(capfd: pytest.CaptureFixture[str]) -> None:
    write_output(Path("/dev/stdout"), "new\n")
    assert capfd.readouterr().out == "new\n"


def test_standard_output_that_a_shell_appends_to_keeps_its_beginning(tmp_path: Path) -> None:
    code = "from wmr_cli.storage.atomic import write_output; from pathlib import Path; write_output(Path('/dev/stdout'), 'new')"
    (tmp_path / "log").write_text("old text\n")
    with (tmp_path / "log").open("a") as log:
        subprocess.run([sys.executable, "-c", code], stdout=log, check=True)
    assert (tmp_path / "log").read_text() == "old text\nnew"


def test_a_file_of_the_user_is_left_alone_by_the_check(tmp_path: Path) -> None:
    for name in ("report.md.probe", "report.md.tmp", ".report.md.tmp"):
        (tmp_path / name).write_text("precious")
    check_writable(tmp_path / "report.md")
    assert sorted(os.listdir(tmp_path)) == [".report.md.tmp", "report.md.probe", "report.md.tmp"]
    assert {(tmp_path / name).read_text() for name in os.listdir(tmp_path)} == {"precious"}


def test_a_name_as_long_as_the_file_system_allows_is_written(tmp_path: Path) -> None:
    check_writable(tmp_path / ("a" * 255))
    write_text(tmp_path / ("a" * 255), "new")
    with pytest.raises(RunFolderError, match="File name too long"):
        check_writable(tmp_path / ("a" * 256))


def test_a_lock_does_not_follow_or_truncate_a_link(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("content")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(RunFolderError, match="is not a lock file"), lock_folder(tmp_path / "run"):
        pass
    with pytest.raises(RunFolderError, match="is not a lock file"):
        is_locked(tmp_path / "run")
    assert (tmp_path / "precious").read_text() == "content"


@pytest.mark.parametrize("kind", ["fifo", "device", "folder"])
def test_a_special_file_is_not_a_lock(kind: str, tmp_path: Path) -> None:
    SPECIAL[kind](tmp_path / ".lock")
    with pytest.raises(RunFolderError, match="is not a lock file"), lock_folder(tmp_path):
        pass


def test_a_lock_file_keeps_its_content(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("somebody's note")
    with lock_folder(tmp_path):
        assert is_locked(tmp_path)
    assert (tmp_path / ".lock").read_text() == "somebody's note"
    assert not is_locked(tmp_path)


def test_a_folder_is_locked_once(tmp_path: Path) -> None:
    with lock_folder(tmp_path / "run"), pytest.raises(FolderInUse), lock_folder(tmp_path / "run"):
        pass


def test_a_folder_that_is_moved_takes_its_lock_along(tmp_path: Path) -> None:
    with lock_folder(tmp_path / "run"):
        (tmp_path / "run").rename(tmp_path / "moved")
        with pytest.raises(FolderInUse), lock_folder(tmp_path / "moved"):
            pass
        with pytest.raises(RunFolderError, match="was moved or deleted"):
            write_text(tmp_path / "run" / "evaluations" / "new", "")
        assert not (tmp_path / "run").exists()


def test_another_folder_in_the_place_of_a_moved_one_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with watch_folder(tmp_path / "run"):
        (tmp_path / "run").rename(tmp_path / "moved")
        (tmp_path / "run").mkdir()
        with pytest.raises(RunFolderError, match="was moved or deleted"):
            write_text(tmp_path / "run" / "file", "")
    assert not list((tmp_path / "run").iterdir())
    write_text(tmp_path / "run" / "file", "")


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    write_text(tmp_path / "file", "old")

    def fail(temporary: Path) -> None:
        temporary.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(RunFolderError, match="No space left"):
        write_atomically(tmp_path / "file", fail)
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "old"
