"""A second process, in which the other libraries run.

`wmr` changes malloc settings for its whole process. Other libraries must run with the defaults that
their users have. The two processes alternate: one waits while the other works.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from wmr_cli.benchmarking.timing import Work

from .cases import Case

MakeWork = Callable[[Case, Path], Mapping[str, Work]]
"""A function at the top level of a module, so that it can be sent to the other process."""


class PeerProcess:
    """The connection to the other process."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def make_work(self, make: MakeWork, case: Case, folder: Path) -> dict[str, Work]:
        """Call `make` in the other process, and return functions that run its results there.

        They are valid until the next call.
        """
        self._connection.send((make, case, folder))
        names: list[str] = self._connection.recv()
        return {name: partial(self._run, name) for name in names}

    def _run(self, name: str) -> None:
        self._connection.send(name)
        self._connection.recv()


@contextmanager
def start_peer_process() -> Iterator[PeerProcess]:
    """Start the other process, and end it on exit."""
    # spawn: a fork would inherit the malloc settings of this process
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    os.environ["WMR_KEEP_MEMORY"] = "0"
    process = context.Process(target=_serve, args=(there,), daemon=True)
    process.start()
    del os.environ["WMR_KEEP_MEMORY"]
    # close our copy, so that `recv` raises EOFError if the process fails
    there.close()
    yield PeerProcess(here)
    here.close()
    process.join()


def _serve(connection: Connection) -> None:
    """Make functions, or run one by name, until the connection is closed."""
    functions: Mapping[str, Work] = {}
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        if isinstance(request, str):
            functions[request]()
            connection.send(None)
        else:
            make, case, folder = request
            functions = make(case, folder)
            connection.send(list(functions))
