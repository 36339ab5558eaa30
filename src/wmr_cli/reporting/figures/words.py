"""Text in figures: what comes from users stays as it is, and every model has a name of its own."""

import functools
from collections.abc import Callable, Sequence

from matplotlib import font_manager

from ...spec import Spec, exact
from ...storage.records import Record
from ..lines import Line, line_name, run_name
from .style import SETTINGS

A_NAT, A_ROB, A_SA, A_TR = (rf"$A_\mathrm{{{name}}}$" for name in ("nat", "rob", "sa", "tr"))
ALPHA_TEST, ALPHA_TRAIN, EPS, RHO = r"$\alpha_\mathrm{test}$", r"$\alpha_\mathrm{train}$", r"$\varepsilon$", r"$\rho$"
NORMS = {"linf": r"$L_\infty$", "l2": "$L_2$"}
WIDEST = 52
"""Characters of a name on one line."""


def literal(text: str) -> str:
    """User text as it is: a dollar starts no formula; what cannot be seen or has no glyph is written as its code."""
    return "".join(_shown(char) for char in text).replace("$", r"\$")


def wrapped(text: str, width: int = WIDEST) -> str:
    """User text on as many lines as it needs, cut after a sign between words where there is one near the end of a line."""
    rest, lines = "".join(_shown(char) for char in text), []
    while len(rest) > width:
        signs = [place for place in range(2 * width // 3, width) if not rest[place].isalnum()]
        cut = signs[-1] + 1 if signs else width
        lines.append(rest[:cut])
        rest = rest[cut:]
    return "\n".join(line.replace("$", r"\$") for line in (*lines, rest))


def _shown(char: str) -> str:
    if char.isprintable() and ord(char) in _glyphs():
        return char
    return char.encode("unicode_escape").decode("ascii")


@functools.cache
def _glyphs() -> frozenset[int]:
    """The characters that our fonts can draw."""
    fonts = (font_manager.get_font(font_manager.findfont(name)) for name in SETTINGS["font.family"])
    return frozenset(code for font in fonts for code in font.get_charmap())


def ball(norm: str, eps: float) -> str:
    """What the attacker may change."""
    return f"{NORMS.get(norm) or literal(norm)} {EPS} = {exact(eps)}"


Model = tuple[str, str]
"""Whom a record is about: the run's name and the hash of the weights."""


def model_of(record: Record) -> Model:
    """The same for all records of one checkpoint."""
    return run_name(record), record.checkpoint.sha256


def labels(trained: Sequence[Sequence[Record]]) -> list[str]:
    """A label for every training, the shortest kind that tells them all apart: `trades, α_train 2` before the name of the run."""
    for kind in (_by_training, _by_full_training, _by_run, _by_path):
        found = [kind(*records) for records in trained]
        if len(set(found)) == len(found):
            return found
    return [wrapped(f"{first.checkpoint.path} {first.checkpoint.sha256[:8]}") for first, *_ in trained]


def _trained(defense: Callable[[str], str], record: Record) -> str:
    alpha = record.checkpoint.alpha_train
    kernel = "" if record.checkpoint.kernel == "exp" else f" {record.checkpoint.kernel}"
    name = wrapped(defense(record.checkpoint.defense) + kernel)
    return name if alpha is None else f"{name}, {ALPHA_TRAIN} = {exact(alpha)}"


def _by_training(record: Record, *_: Record) -> str:
    return _trained(lambda spec: Spec.parse(spec).short, record)


def _by_full_training(record: Record, *_: Record) -> str:
    return _trained(str, record)


def _by_run(*records: Record) -> str:
    return wrapped(line_name(Line(records, None)))


def _by_path(record: Record, *_: Record) -> str:
    return wrapped(record.checkpoint.path)
