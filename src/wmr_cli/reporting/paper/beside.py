"""The rows of the paper that belong to a user's lines, and the difference to them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...errors import BadInput
from ...spec import Spec
from ..lines import Line, line_name
from . import DATASETS, SHARES
from .corrections import Corrected, corrected_rows
from .departures import departures

FAMILIES = {"pgd": "PGD", "trades": "TRADES", "free": "AT4Free", "yopo": "YOPO-5-3", "iaat": "IAAT"}
OTHERS = ("digits", "fashion-mnist", "cifar100", "svhn")
"""Data sets that are known not to be the paper's."""
PARAMETERS = {"pgd": {"steps", "step", "start", "keep", "loss"}, "authors-eval": {"steps", "step", "loss"}}
PARAMETERS["pgd-margin"] = PARAMETERS["pgd"]
"""What the paper's attack has to set; one with anything else is another attack."""


@dataclass(frozen=True)
class Printed:
    """What the paper prints for one share: its values in percent with their tables, and why they are not as printed."""

    values: dict[float, tuple[str, ...]]
    reasons: tuple[str, ...] = ()

    @property
    def value(self) -> float | None:
        """As a fraction; none where nothing is printed or tables disagree."""
        return round(next(iter(self.values)) / 100, 6) if len(self.values) == 1 else None


@dataclass(frozen=True)
class Match:
    """A line, the paper's rows for the same method under the same attack, and in what the two are known to differ."""

    line: Line
    rows: tuple[Corrected, ...]
    shares: dict[str, Printed]
    departures: tuple[str, ...]

    @property
    def tables(self) -> list[str]:
        """Where the values stand."""
        used = {table for share in self.shares.values() for where in share.values.values() for table in where}
        return list(dict.fromkeys(made.table for made in self.rows if made.table in used))

    def difference(self, name: str) -> tuple[float, float, float] | None:
        """The line's share minus the paper's, with the interval of the line; the paper gives none."""
        share, printed = self.line.share(name), self.shares[name].value
        return None if share is None or printed is None else (share.value - printed, share.low - printed, share.high - printed)


def beside(lines: Iterable[Line], asked: str) -> list[Match]:
    """Every line that the paper has a row for. `asked` is a data set of the paper, or `auto`: that of each record."""
    made = ((line, dataset) for line in lines if (dataset := _dataset(line, asked)) is not None)
    return [match for line, dataset in made if (match := _match(line, dataset)) is not None]


def _dataset(line: Line, asked: str) -> str | None:
    """Which of the paper's data sets a line is on. Data of your own are what you say they are, others are what they are."""
    own = _name(line.record.dataset.name)
    if own in DATASETS:
        return own if asked in ("auto", "all", own) else None
    return asked if asked in DATASETS and own not in OTHERS else None


def _match(line: Line, dataset: str) -> Match | None:
    method, attack, record = _method(line), _attack(line), line.record
    if method is None or attack is None or record.kernel != "exp" or record.dataset.split != "test":
        return None
    alike = [
        made
        for made in corrected_rows()
        if made.dataset == dataset
        and (made.family, made.row.alpha_train) == method
        and (made.row.attack, made.row.eps_test) == (attack, record.threat.eps)
    ]
    if not alike:
        return None
    # A_nat and A_rob do not depend on alpha_test, so any row has them
    at_alpha = [made for made in alike if made.row.alpha_test == line.alpha_test and made.row.alpha_test is not None]
    shares = {name: _printed(alike if name in ("a_nat", "a_rob") else at_alpha, name) for name in SHARES}
    return Match(line, tuple(alike), shares, tuple(departures(record, dataset, (made.row.eps_train for made in alike))))


def _method(line: Line) -> tuple[str, float | None] | None:
    """Family and alpha of training, none for the baseline; nothing for a method that the paper does not have."""
    facts = line.record.checkpoint
    family = FAMILIES.get(_name(facts.defense))
    if family is None or facts.kernel not in ("exp", "none"):
        return None
    return family, (facts.alpha_train or None) if facts.kernel == "exp" else None


def _attack(line: Line) -> str | None:
    """`20-PGD` or `20-PGD-margin` for an attack of that kind in an Linf ball."""
    record = line.record
    spec = Spec.parse(record.attack.spec)
    loss = spec.params.get("loss", "margin" if spec.name == "pgd-margin" else "ce")
    steps = str(spec.params.get("steps", ""))
    is_other = (
        record.attack.of is not None or spec.value is not None or not spec.params.keys() <= PARAMETERS.get(spec.name, set())
    )
    if is_other or record.threat.norm != "linf" or not steps.isdecimal():
        return None
    return {"ce": f"{steps}-PGD", "margin": f"{steps}-PGD-margin"}.get(str(loss))


def _printed(rows: Sequence[Corrected], name: str) -> Printed:
    values: dict[float, list[str]] = {}
    reasons: dict[str, None] = {}
    for made in rows:
        value = getattr(made.row, name)
        if value is not None and made.table not in values.setdefault(value, []):
            values[value].append(made.table)
        if name in made.reasons:
            reasons[made.reasons[name]] = None
    return Printed({value: tuple(tables) for value, tables in values.items()}, tuple(reasons))


def _name(text: str) -> str:
    try:
        return Spec.parse(text).name
    except BadInput:
        return text


def named(match: Match) -> str:
    """The line and in what it departs from the paper, for a note."""
    return f"beside the paper, {line_name(match.line)}: {', '.join(match.departures)}"
