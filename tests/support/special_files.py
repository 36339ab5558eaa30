"""Paths that are not regular files, and a time limit for reads that may block."""

import faulthandler
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from support.typed import not_none


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """End the process with a traceback after `seconds`: exceptions cannot leave a blocked call."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=not_none(sys.__stderr__))
    yield
    faulthandler.cancel_dump_traceback_later()


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_folder(path: Path) -> None:
    path.mkdir()


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))  # socket names have a length limit


def make_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


IRREGULAR: dict[str, Callable[[Path], None]] = {
    "fifo": make_fifo,
    "folder": make_folder,
    "socket": make_socket,
    "device": make_device,
}
WITHOUT_END: dict[str, Callable[[Path], None]] = {"fifo": make_fifo, "device": make_device}
"""Files that block a reader, or that never end."""
