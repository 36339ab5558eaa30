"""What a user, a file or a plugin can get wrong.

WmrError                a message, and a hint that says what to do about it
├── BadInput            a flag, spec or setting that cannot be used
│   └── UnknownName     a name that nobody registered
├── BadFile             a checkpoint, record or config file that is not what it should be
│   └── UntrustedCode   a file that names code which the user has not named
├── MissingData         data that are not there and cannot be downloaded
├── RunFolderError      a run folder that is taken or not writable
│   └── FolderInUse     one that another process holds
├── OutOfMemory         a batch that does not fit into the memory of its device
├── BrokenContract      a model, data set or attack that breaks its promise, with the image it broke it on
└── PluginError         a plugin that cannot be used

`wmr` shows message and hint and exits with 2. Below `cli` they are caught only where one of many may fail and the others go on:
plugins, records of a report, runs of a sweep.
"""

import difflib
import re
from collections.abc import Iterable


class WmrError(Exception):
    """Something the user can mend; the hint says how."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class BadInput(WmrError):
    """A flag, spec or setting that cannot be used."""


class UnknownName(BadInput):
    """A name that nobody registered."""


class BadFile(WmrError):
    """A checkpoint, record or config file that is not what it should be."""


class UntrustedCode(BadFile):
    """A file that names code which the user has not named."""


class MissingData(WmrError):
    """Data that are not there and cannot be downloaded."""


class RunFolderError(WmrError):
    """A run folder that is taken or not writable."""


class FolderInUse(RunFolderError):
    """A folder that another process holds; it will let go of it."""


class OutOfMemory(WmrError):
    """A batch that does not fit into the memory of its device."""


class BrokenContract(WmrError):
    """A model, data set or attack that breaks its promise."""


class PluginError(WmrError):
    """A plugin that cannot be used."""


_NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")
_AMOUNT = re.compile(r"tried to allocate ([\d.,]+ \w+)", re.IGNORECASE)


def out_of_memory(error: BaseException) -> OutOfMemory | None:
    """What to tell a user whose memory was too small; None where that was not what went wrong.

    Python has an error of its own for it, and so have some devices; the processor's allocator says it in words.
    """
    text = str(error)
    if not isinstance(error, MemoryError) and not (isinstance(error, RuntimeError) and any(word in text for word in _NO_MEMORY)):
        return None
    amount = _AMOUNT.search(text)
    asked = f": {amount[1]} could not be had" if amount else ""
    return OutOfMemory(f"there is not enough memory{asked}", hint="use a smaller --batch-size, or a smaller model")


MANY = 60
"""More names than this do not help a reader; they are counted instead."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint with the nearest known name, or with all of them where none is near."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]!r}?"
    if len(names) > MANY:
        return f"there are {len(names):,} names, from {names[0]!r} to {names[-1]!r}, and none is near"
    return f"there are: {', '.join(names)}" if names else "there are none"
