"""How far a long wait inside a component has come, for whoever watches: a download, the reading of many pictures."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Watcher = Callable[[str, int, int | None], None]
"""Called with what is waited for, how much of it is done, and how much there is in all, if that is known."""

_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watch_progress(watcher: Watcher) -> Iterator[None]:
    """What is reported inside goes to this watcher."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def report_progress(what: str, done: int, total: int | None) -> None:
    """Tell the watcher, if there is one."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher(what, done, total)
