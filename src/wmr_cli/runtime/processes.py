"""Operating-system processes: usable cores, and a signal when the parent process dies."""

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1
# loaded at import: between fork and exec a child process must not load libraries
_LIBC = ctypes.CDLL(None)


def signal_when_parent_dies(number: signal.Signals) -> None:
    """Make Linux send this signal when the parent process dies, even by `kill -9`."""
    _LIBC.prctl(PR_SET_PDEATHSIG, number)


def count_usable_cores() -> int:
    """Count the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
