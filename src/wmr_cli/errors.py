"""Errors that a user, a file or a plugin causes.

WmrError                a message, and a hint on how to solve the problem
├── BadInput            a spec or setting that cannot be used
│   └── UnknownName     a name that is not registered
├── BadFile             a checkpoint, record or config file with unusable content
│   └── UntrustedCode   a file that names code which the user has not named
├── MissingData         data that are not on disk and cannot be downloaded
├── RunFolderError      a run folder that exists already or is not writable
│   └── FolderInUse     a folder that another process has locked
├── OutOfMemory         a batch that does not fit into the memory of its device
├── BrokenContract      a component that breaks its contract, with the image it failed on
└── PluginError         a plugin that cannot be used

`wmr` prints message and hint and exits with status 2. Below `cli`, errors are caught only where one
of many items may fail: plugins, records of a report, runs of a sweep.

Settings in messages
--------------------
Below `cli`, messages, hints and warnings name a setting in backticks, as it is written in Python
and in config files: "`batch_size`", or with a value "`validate_every=0`", "`overwrite=True`". The
command line replaces such a name by the flag of the running command (`--batch-size`,
`--validate-every 0`, `--overwrite`), if the command has that flag; see `cli/flags.py`. A name
without such a flag, as in a study file, stays as it is.
"""

import difflib
import re
from collections.abc import Iterable

MAX_LISTED_NAMES = 60
"""A hint lists at most this many names; longer lists are counted instead."""
MIN_SIMILARITY = 0.6
"""Ratio of difflib from which on a known name is suggested for a misspelt one."""

_OUT_OF_MEMORY_TEXTS = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    # cuDNN, cuBLAS and cuSOLVER allocate workspaces themselves and return a status code
    "STATUS_ALLOC_FAILED",
    "DEVICE_ALLOCATION_FAILED",
)
_ALLOCATION_SIZE = re.compile(r"tried to allocate ([\d.,]+ \w+)", re.IGNORECASE)


class WmrError(Exception):
    """A problem that the user can solve; the hint says how. Tracebacks show it as a note."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        if hint:
            self.add_note(f"hint: {hint}")


class BadInput(WmrError):
    """A spec or setting that cannot be used."""


class UnknownName(BadInput):
    """A name that is not registered."""


class BadFile(WmrError):
    """A checkpoint, record or config file with unusable content."""


class UntrustedCode(BadFile):
    """A file that names code which the user has not named."""


class MissingData(WmrError):
    """Data that are not on disk and cannot be downloaded."""


class RunFolderError(WmrError):
    """A run folder that exists already or is not writable."""


class FolderInUse(RunFolderError):
    """A folder that another process has locked."""


class OutOfMemory(WmrError):
    """A batch that does not fit into the memory of its device."""


class BrokenContract(WmrError):
    """A component that breaks its contract."""


class PluginError(WmrError):
    """A plugin that cannot be used."""


def out_of_memory(error: BaseException) -> OutOfMemory | None:
    """Return the error for a user if `error` means that memory ran out, otherwise None."""
    text = str(error)
    if not isinstance(error, MemoryError):
        # PyTorch's CPU allocator raises a plain RuntimeError; only its text identifies it
        is_allocator_error = isinstance(error, RuntimeError) and any(
            phrase in text for phrase in _OUT_OF_MEMORY_TEXTS
        )
        if not is_allocator_error:
            return None
    size = _ALLOCATION_SIZE.search(text)
    details = f": failed to allocate {size[1]}" if size else ""
    return OutOfMemory(
        f"out of memory{details}", hint="use a smaller `batch_size`, or a smaller model"
    )


def missing_extra(package: str) -> BadInput:
    """Return the error for a package that is not installed; the extra has the same name."""
    return BadInput(f"{package} is not installed", hint=f"pip install 'wmr-cli[{package}]'")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint with the nearest known name, or with all of them if none is near."""
    names = sorted(known)
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=MIN_SIMILARITY)
    if nearest:
        return f"did you mean {nearest[0]!r}?"
    if not names:
        return "no names are available"
    if len(names) > MAX_LISTED_NAMES:
        return (
            f"{len(names):,} names are known, from {names[0]!r} to {names[-1]!r}; none is similar"
        )
    return f"available: {', '.join(names)}"
