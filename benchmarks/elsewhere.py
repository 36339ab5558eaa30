"""A second process, for the contestants that are not ours.

`wmr` sets malloc for its whole process. Theirs stays as their users have it; the two processes take turns, and one waits
while the other works.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from wmr_cli.workflows.timing import Work

from .cases import Case

Make = Callable[[Case, Path], Mapping[str, Work]]
"""A function of a module: it is called in the other process."""


class Elsewhere:
    """The other process, seen from this one."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def contestants(self, make: Make, case: Case, folder: Path) -> dict[str, Work]:
        """What `make` offers there, as work that can be asked for here. It stays until the next are made."""
        self._connection.send((make, case, folder))
        names: list[str] = self._connection.recv()
        return {name: partial(self._run, name) for name in names}

    def _run(self, name: str) -> None:
        self._connection.send(name)
        self._connection.recv()


@contextmanager
def elsewhere() -> Iterator[Elsewhere]:
    """Another process while this lasts."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    os.environ["WMR_KEEP_MEMORY"] = "0"
    process = context.Process(target=_serve, args=(there,), daemon=True)
    process.start()
    del os.environ["WMR_KEEP_MEMORY"]
    there.close()  # so that its end is heard of here, should it fail
    yield Elsewhere(here)
    here.close()
    process.join()


def _serve(connection: Connection) -> None:
    """Make contestants, or run one, as asked, until nobody asks."""
    made: Mapping[str, Work] = {}
    while True:
        try:
            asked = connection.recv()
        except EOFError:
            return
        if isinstance(asked, str):
            made[asked]()
            connection.send(None)
        else:
            make, case, folder = asked
            made = make(case, folder)
            connection.send(list(made))
