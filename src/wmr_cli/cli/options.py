"""Flags that several commands share, and how their text is read."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from ..errors import BadInput, WmrError, did_you_mean
from ..spec import number
from .console import say

if TYPE_CHECKING:
    from ..registry import Registry

T = TypeVar("T")
Word = TypeVar("Word", bound=str)
METRICS = ("nat", "rob", "sa", "tr")
LOSSES: tuple[Literal["ce", "margin", "zero-one"], ...] = ("ce", "margin", "zero-one")
INTERVALS: tuple[Literal["delta", "bootstrap"], ...] = ("delta", "bootstrap")
LAYOUTS: tuple[Literal["auto", "channels-last", "contiguous"], ...] = ("auto", "channels-last", "contiguous")
LARGEST = 1e9
FORMATS = ("table", "markdown", "csv", "json")
REPORTS = ("table", "markdown", "latex", "csv", "json", "html")
PAPER = ("auto", "mnist", "cifar10", "tiny-imagenet", "all")


def default_data_dir() -> Path:
    """Where data sets are unless the user says otherwise."""
    from ..config import default_data_dir as usual

    return usual()


Model = Annotated[str | None, typer.Option("--model", metavar="S", help="The network, for foreign weights: `wmr list models`.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Silence everything on stderr but errors.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Fixes everything random.")]
Device = Annotated[str, typer.Option("--device", metavar="D", help="auto, cpu, cuda, cuda:N or mps.")]
Devices = Annotated[
    int | None,
    typer.Option("--devices", metavar="N", min=1, help="How many of them share the work, on each machine.", show_default="1"),
]
Nodes = Annotated[int | None, typer.Option("--nodes", metavar="N", min=1, help="On how many machines.", show_default="1")]
Layout = Annotated[str, typer.Option(metavar="|".join(LAYOUTS), help="How images lie in memory.")]
Fold = Annotated[
    bool, typer.Option("--fold/--no-fold", help="Attack a lean twin of the network, batch-norm folded into convolutions.")
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", metavar="DIR", envvar="WMR_DATA_DIR", help="Where data sets are.", show_default="~/.cache/wmr/data"
    ),
]


def components(quiet: bool) -> "Registry":
    """Everything that can be built by name; plugins that were set aside are mentioned."""
    from ..plugins import installed

    found = installed()
    if found.set_aside:
        names = ", ".join(plugin.name for plugin in found.set_aside)
        say(f"set aside: {names}; `wmr plugins` says why", quiet=quiet, warns=True)
    return found.registry


def read(flag: str, text: str | None, reader: Callable[[str], T]) -> T | None:
    """A flag's text by its reader; the error names the flag."""
    if text is None:
        return None
    try:
        return reader(text)
    except WmrError as problem:
        raise BadInput(f"{flag}: {problem}", hint=problem.hint) from None


def size(text: str) -> float:
    """A number that is not negative."""
    value = number(text)
    if value < 0:
        raise BadInput(f"{text!r} is negative", hint="write 0 or more")
    if value > LARGEST:
        raise BadInput(f"{text!r} is too large", hint=f"write {LARGEST:g} or less")
    return value


def sizes(text: str) -> tuple[float, ...]:
    """`1,1.5,2`, each once, in ascending order."""
    return tuple(sorted({size(part.strip()) for part in text.split(",")}))


def whole_numbers(text: str) -> tuple[int, ...]:
    """`55,75,90`."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise BadInput(f"{text!r} is no list of whole numbers", hint="write 55,75,90") from None


def choice(*known: Word) -> Callable[[str], Word]:
    """One of a few words."""

    def reader(text: str) -> Word:
        for word in known:
            if text == word:
                return word
        raise BadInput(f"{text!r} is none of {', '.join(known)}", hint=did_you_mean(text, known))

    return reader


def choices(*known: str) -> Callable[[str], tuple[str, ...]]:
    """Several of a few words, joined by commas."""
    one = choice(*known)
    return lambda text: tuple(one(part.strip()) for part in text.split(","))
