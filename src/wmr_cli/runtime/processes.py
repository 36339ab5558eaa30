"""Operating-system processes: usable cores, and a signal when the parent process dies."""

import ctypes
import os
import re
import signal
import sys
from collections.abc import Callable

PR_SET_PDEATHSIG = 1
# loaded at import: between fork and exec a child process must not load libraries
_LIBC = ctypes.CDLL(None)


def end_with_parent(number: signal.Signals) -> Callable[[], None] | None:
    """Return what a child process must run first to receive this signal when this process dies.

    It is for `preexec_fn` of `subprocess.Popen`. Linux sends the signal also after `kill -9`; other
    systems do not, and the result is None.
    """
    if sys.platform != "linux":
        return None
    parent = os.getpid()

    def prepare() -> None:
        _LIBC.prctl(PR_SET_PDEATHSIG, number)
        # the parent may have died before the line above; then no signal comes
        if os.getppid() != parent:
            os._exit(1)

    return prepare


def count_usable_cores() -> int:
    """Count the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def count_granted_cores(local_processes: int) -> int:
    """Count the cores for each process of a run, from the affinity and from Slurm.

    `local_processes` is how many processes of the run this machine has.
    """
    cores = count_usable_cores()
    granted = os.environ.get("SLURM_CPUS_PER_TASK", "")
    # Slurm may grant cores without binding the process to them
    if re.fullmatch("0*[1-9][0-9]{0,8}", granted):
        cores = min(cores, int(granted))
        # a task of Slurm is one process, or the one that starts all others
        if os.environ.get("SLURM_NTASKS", "1") != "1":
            return cores
    return max(1, cores // local_processes)
