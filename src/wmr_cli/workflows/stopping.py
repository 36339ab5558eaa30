"""Signals that wait: the step in hand is finished and saved first."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""Ctrl-C, the polite end, and the warning that schedulers send before they take a machine away."""
SAVE = 1
"""What calls for saving alone; the numbers of the signals are larger, so that of several calls the largest counts."""


class Calls:
    """What has been called for while steps were taken: 0, `SAVE` or the number of a signal."""

    def __init__(self, save_minutes: float) -> None:
        self._seconds = 60 * save_minutes
        self._saved = time.monotonic()
        self.signal: int = 0

    @property
    def pending(self) -> int:
        is_due = self._seconds and time.monotonic() - self._saved >= self._seconds
        return self.signal or (SAVE if is_due else 0)

    def saved(self) -> None:
        """The clock starts anew."""
        self._saved = time.monotonic()

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Signals are noted instead of obeyed; the second Ctrl-C is obeyed."""
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread hears signals
            return
        before: dict[int, Any] = {}

        def note(number: int, frame: FrameType | None) -> None:
            if self.signal and number == signal.SIGINT:
                signal.default_int_handler(number, frame)
            self.signal = self.signal or number

        try:
            heard = [each for each in SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
            before |= {each: signal.signal(each, note) for each in heard}
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
