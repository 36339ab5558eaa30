"""Operating-system processes: usable and idle cores, and a signal when the parent process dies."""

import ctypes
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median_low

PR_SET_PDEATHSIG = 1
# loaded at import: between fork and exec a child process must not load libraries
_LIBC = ctypes.CDLL(None)


LOAD_FILE = Path("/proc/loadavg")
LOAD_SAMPLES = 11
LOAD_SAMPLE_SECONDS = 0.01
"""Long enough that a process which runs for a moment does not halve the threads of a long run."""


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


def count_idle_cores() -> int:
    """Count the usable cores that other processes leave idle at this moment, at least one.

    All usable cores where the system does not say, as outside Linux.
    """
    usable = count_usable_cores()
    samples = []
    for _ in range(LOAD_SAMPLES):
        running = _count_running_threads()
        if running is None:
            return usable
        samples.append(running)
        time.sleep(LOAD_SAMPLE_SECONDS)
    # of all cores, because other processes may run on cores that this one may not use;
    # without the thread that reads the file
    idle = (os.cpu_count() or 1) - (median_low(samples) - 1)
    return max(1, min(usable, idle))


def _count_running_threads() -> int | None:
    """Count the threads of all processes that run or wait for a core now."""
    # not the load averages: these would count a command that ended a moment ago
    try:
        text = LOAD_FILE.read_text(encoding="ascii")
    except OSError:
        return None
    found = re.search(r" (\d+)/\d+ ", text)
    return int(found[1]) if found else None
