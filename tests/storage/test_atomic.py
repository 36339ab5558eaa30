"""Atomic writes replace regular files only; locks and watched folders leave other files alone."""

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
    """Create a device like /dev/full; this needs root, and a file system that allows devices."""
    with contextlib.suppress(PermissionError):
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 7))
        path.open("rb").close()
        return
    pytest.skip("devices cannot be created here")


def make_link(path: Path) -> None:
    path.with_name("target").write_text("precious")
    path.symlink_to(path.with_name("target"))


def make_dangling_link(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


SPECIAL_FILES: dict[str, Callable[[Path], None]] = {
    "fifo": make_fifo,
    "device": make_device,
    "link": make_link,
    "dangling": make_dangling_link,
    "folder": Path.mkdir,
}


@pytest.mark.parametrize("kind", SPECIAL_FILES)
def test_only_a_regular_file_is_replaced(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    SPECIAL_FILES[kind](path)
    before = path.lstat()
    with pytest.raises(RunFolderError, match="cannot write"):
        write_text(path, "new")
    with pytest.raises(RunFolderError, match="cannot write"):
        check_writable(path)
    assert path.lstat().st_ino == before.st_ino
    assert stat.S_IFMT(path.lstat().st_mode) == stat.S_IFMT(before.st_mode)
    assert {"nowhere", "file", "target"} >= set(os.listdir(tmp_path))


def test_output_to_a_link_of_the_user_is_written_to_its_target(tmp_path: Path) -> None:
    make_link(tmp_path / "file")
    write_output(tmp_path / "file", "new")
    assert (tmp_path / "file").is_symlink()
    assert (tmp_path / "target").read_text() == "new"
    assert resolve_output(tmp_path / "file") == tmp_path / "target"


def test_output_to_a_fifo_reaches_its_reader(tmp_path: Path) -> None:
    make_fifo(tmp_path / "fifo")
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    write_output(tmp_path / "fifo", "new")
    assert os.read(reader, 100) == b"new"
    os.close(reader)
    assert stat.S_ISFIFO((tmp_path / "fifo").lstat().st_mode)


def test_output_to_a_fifo_without_a_reader_fails_without_blocking(tmp_path: Path) -> None:
    make_fifo(tmp_path / "fifo")
    with pytest.raises(RunFolderError, match="cannot write"):
        write_output(tmp_path / "fifo", "new")


def test_a_full_device_is_an_error_and_stays_a_device(tmp_path: Path) -> None:
    make_device(tmp_path / "full")
    with pytest.raises(RunFolderError, match="No space left"):
        write_output(tmp_path / "full", "new")
    assert stat.S_ISCHR((tmp_path / "full").lstat().st_mode)


def test_output_to_dev_stdout_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    write_output(Path("/dev/stdout"), "new\n")
    assert capfd.readouterr().out == "new\n"


def test_output_to_dev_stdout_keeps_a_file_that_the_shell_appends_to(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path\n"
        "from wmr_cli.storage.atomic import write_output\n"
        "write_output(Path('/dev/stdout'), 'new')"
    )
    log_file = tmp_path / "log"
    log_file.write_text("old text\n")
    with log_file.open("a") as log:
        subprocess.run([sys.executable, "-c", code], stdout=log, check=True)
    assert log_file.read_text() == "old text\nnew"


def test_the_check_leaves_similar_file_names_of_the_user_alone(tmp_path: Path) -> None:
    for name in ("report.md.probe", "report.md.tmp", ".report.md.tmp"):
        (tmp_path / name).write_text("precious")
    check_writable(tmp_path / "report.md")
    assert sorted(os.listdir(tmp_path)) == [".report.md.tmp", "report.md.probe", "report.md.tmp"]
    assert {(tmp_path / name).read_text() for name in os.listdir(tmp_path)} == {"precious"}


def test_the_longest_possible_file_name_is_written(tmp_path: Path) -> None:
    check_writable(tmp_path / ("a" * 255))
    write_text(tmp_path / ("a" * 255), "new")
    with pytest.raises(RunFolderError, match="File name too long"):
        check_writable(tmp_path / ("a" * 256))


def test_a_lock_does_not_follow_or_truncate_a_link(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("content")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(RunFolderError, match=r"\.lock"), lock_folder(tmp_path / "run"):
        pass
    with pytest.raises(RunFolderError, match=r"\.lock"):
        is_locked(tmp_path / "run")
    assert (tmp_path / "precious").read_text() == "content"


@pytest.mark.parametrize("kind", ["fifo", "device", "folder"])
def test_a_special_file_is_not_a_lock(kind: str, tmp_path: Path) -> None:
    SPECIAL_FILES[kind](tmp_path / ".lock")
    with pytest.raises(RunFolderError, match=r"\.lock"), lock_folder(tmp_path):
        pass


def test_a_lock_file_keeps_its_content(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("a note")
    with lock_folder(tmp_path):
        assert is_locked(tmp_path)
    assert (tmp_path / ".lock").read_text() == "a note"
    assert not is_locked(tmp_path)


def test_a_folder_cannot_be_locked_twice(tmp_path: Path) -> None:
    with lock_folder(tmp_path / "run"), pytest.raises(FolderInUse), lock_folder(tmp_path / "run"):
        pass


def test_the_lock_moves_with_its_folder(tmp_path: Path) -> None:
    with lock_folder(tmp_path / "run"):
        (tmp_path / "run").rename(tmp_path / "moved")
        with pytest.raises(FolderInUse), lock_folder(tmp_path / "moved"):
            pass
        with pytest.raises(RunFolderError, match="was moved or deleted"):
            write_text(tmp_path / "run" / "evaluations" / "new", "")
        assert not (tmp_path / "run").exists()


def test_a_new_folder_at_the_path_of_a_moved_one_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with watch_folder(tmp_path / "run"):
        (tmp_path / "run").rename(tmp_path / "moved")
        (tmp_path / "run").mkdir()
        with pytest.raises(RunFolderError, match="was moved or deleted"):
            write_text(tmp_path / "run" / "file", "")
    assert not list((tmp_path / "run").iterdir())
    write_text(tmp_path / "run" / "file", "")


def test_a_failed_write_keeps_the_old_file_and_removes_the_temporary_one(tmp_path: Path) -> None:
    write_text(tmp_path / "file", "old")

    def fail(temporary: Path) -> None:
        temporary.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(RunFolderError, match="No space left"):
        write_atomically(tmp_path / "file", fail)
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "old"
