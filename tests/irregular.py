"""Paths that are not regular files, and a time limit for tests that would wait for one for ever."""

import faulthandler
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """End the test process with a traceback if the block takes longer: no exception gets out of a blocked library call."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_folder(path: Path) -> None:
    path.mkdir()


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))  # the length of its name is limited


def make_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


IRREGULAR: dict[str, Callable[[Path], None]] = {
    "fifo": make_fifo,
    "folder": make_folder,
    "socket": make_socket,
    "device": make_device,
}
WITHOUT_END: dict[str, Callable[[Path], None]] = {"fifo": make_fifo, "device": make_device}
"""Those that block a reader, or never stop giving bytes."""
