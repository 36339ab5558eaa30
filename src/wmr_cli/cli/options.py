"""Flags that several commands share, and how their text is read."""

import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer
from typer.core import TyperCommand, TyperOption

from ..errors import BadInput, WmrError, did_you_mean
from ..spec import (
    LARGEST_COUNT,
    LARGEST_SEED,
    MAX_DEVICES,
    MAX_NODES,
    check_path,
    check_text,
    parse_number,
)
from .console import say
from .flag_names import use_flags_of

if TYPE_CHECKING:
    from ..registry import Registry


class Command(TyperCommand):
    """A command that refuses values which no flag can use: empty paths, text that is not UTF-8, infinite and huge numbers."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Check the text of the arguments: typer makes `Path(".")` of an empty one."""
        given = (
            {} if ctx.resilient_parsing else self.make_parser(ctx).parse_args(args=list(args))[0]
        )
        parameters: list[Any] = [*self.get_params(ctx)]
        use_flags_of(parameters)
        for parameter in parameters:
            value = given.get(parameter.name)
            check = check_path if "Path" in parameter.bare_type() else check_text
            for text in value if isinstance(value, list | tuple) else [value]:
                if isinstance(text, str):
                    read(_flag(parameter), text, check)
        return super().parse_args(ctx, args)

    def get_help_option(self, ctx: Any) -> TyperOption | None:
        """Return the help option, in the panel of the last flag.

        Without a panel it would be in a generic one, which Typer prints before all others.
        """
        option = super().get_help_option(ctx)
        if option is not None and self.params:
            option.rich_help_panel = getattr(self.params[-1], "rich_help_panel", None)
        return option

    def invoke(self, ctx: Any) -> Any:
        """Check the numbers, then run the command."""
        parameters: list[Any] = [*self.get_params(ctx)]
        for parameter in parameters:
            value = ctx.params.get(parameter.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise BadInput(
                    f"{_flag(parameter)}: {value} is not a finite number",
                    hint="write a number such as 10",
                )
            largest = LARGEST_SEED if parameter.name.endswith("seed") else LARGEST_COUNT
            if isinstance(value, int) and value > largest:
                raise BadInput(
                    f"{_flag(parameter)}: {value} is too large", hint=f"write {largest} or less"
                )
        return super().invoke(ctx)


def _flag(parameter: Any) -> str:
    """Return what the user types for a parameter: `--out`, or `CHECKPOINT`."""
    return str(
        parameter.opts[0]
        if parameter.param_type_name == "option"
        else parameter.metavar or parameter.name
    )


T = TypeVar("T")
Word = TypeVar("Word", bound=str)
METRICS = ("nat", "rob", "sa", "tr")
LOSSES: tuple[Literal["ce", "margin", "zero-one"], ...] = ("ce", "margin", "zero-one")
INTERVALS: tuple[Literal["delta", "bootstrap"], ...] = ("delta", "bootstrap")
LAYOUTS: tuple[Literal["auto", "channels-last", "contiguous"], ...] = (
    "auto",
    "channels-last",
    "contiguous",
)
LARGEST = 1e9
FORMATS = ("table", "markdown", "csv", "json")
REPORTS = ("table", "markdown", "latex", "csv", "json", "html")
PAPER = ("auto", "mnist", "cifar10", "tiny-imagenet", "all")


def default_data_dir() -> Path:
    """Where data sets are unless the user says otherwise."""
    from ..config import default_data_dir as usual

    return usual()


Model = Annotated[
    str | None,
    typer.Option(
        "--model", metavar="S", help="The network, for foreign weights: `wmr list models`."
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Silence everything on stderr but errors.")
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Fixes everything random.")]
Device = Annotated[
    str, typer.Option("--device", metavar="D", help="auto, cpu, cuda, cuda:N or mps.")
]
Devices = Annotated[
    int | None,
    typer.Option(
        "--devices",
        metavar="N",
        min=1,
        max=MAX_DEVICES,
        help="How many of them share the work, on each machine.",
        show_default="1",
    ),
]
Nodes = Annotated[
    int | None,
    typer.Option(
        "--nodes", metavar="N", min=1, max=MAX_NODES, help="On how many machines.", show_default="1"
    ),
]
Layout = Annotated[str, typer.Option(metavar="|".join(LAYOUTS), help="How images lie in memory.")]
Fold = Annotated[
    bool,
    typer.Option(
        "--fold/--no-fold",
        help="Attack a lean twin of the network, batch-norm folded into convolutions.",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        envvar="WMR_DATA_DIR",
        help="Where data sets are.",
        show_default="~/.cache/wmr/data",
    ),
]


TrustCode = Annotated[
    list[str] | None,
    typer.Option(
        "--trust-code",
        metavar="SHA256",
        help="Allow code that only a file names, by the SHA-256 of the Python file; may be given several times.",
    ),
]


def allow_code(named: Iterable[str | None], hashes: Iterable[str] | None, *, quiet: bool) -> None:
    """Trust the local classes that the user has named in these flags, and the files with these hashes; remember both."""
    from ..local_code import trust_hashes, trust_named

    problems = trust_named([spec for spec in named if spec is not None], remember=True)
    for text in hashes or ():
        problems += read("--trust-code", text, lambda one: trust_hashes([one], remember=True)) or []
    for text in dict.fromkeys(problems):
        say(text, quiet=quiet, warns=True)


def components(quiet: bool) -> "Registry":
    """Everything that can be built by name; plugins that were set aside are mentioned."""
    from ..plugins import installed

    found = installed()
    if found.broken:
        names = ", ".join(plugin.name for plugin in found.broken)
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
    value = parse_number(text)
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
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"\d{1,18}", part, re.ASCII) for part in parts):
        raise BadInput(f"{text!r} is not a list of whole numbers", hint="write 55,75,90")
    return tuple(map(int, parts))


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
