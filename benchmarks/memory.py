"""The system's malloc as each contestant's users have it: `wmr` sets it for the whole process, and others share this one."""

import ctypes
import sys
from collections.abc import Callable

from wmr_cli.workflows.devices import M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, keep_memory
from wmr_cli.workflows.timing import Work

LARGEST_MAPPED, TRIMMED = 2**25, 2**26
"""Where glibc arrives by itself once blocks of 32 MiB and more have been freed."""


def usual_memory() -> object:
    """As glibc has it by itself; nothing where there is no glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return mallopt and (mallopt(M_MMAP_THRESHOLD, LARGEST_MAPPED), mallopt(M_TRIM_THRESHOLD, TRIMMED))


def with_memory(work: Work, *, is_ours: bool) -> Work:
    """A contestant in its own surroundings."""
    prepare: Callable[[], object] = keep_memory if is_ours else usual_memory

    def prepared() -> object:
        prepare()
        return work()

    return prepared
