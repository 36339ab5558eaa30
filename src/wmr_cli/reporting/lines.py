"""A line of a table: a model at one alpha_test, or the mean over the seeds of its training."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from ..measures import Estimate, Spread, mean_estimate, spread
from ..spec import Spec, exact
from ..storage.records import Record, RepeatAlphaRow, RepeatRow
from .peers import Entry, single

SHARES = {"a_nat": "A_nat", "a_rob": "A_rob", "a_sa": "A_sa", "a_tr": "A_tr"}
"""The four accuracies as records and as people call them."""


@dataclass(frozen=True)
class Line:
    """One row of a table: a record at one alpha_test, or one record each of several seeds of training."""

    records: tuple[Record, ...]
    alpha_test: float | None

    @property
    def record(self) -> Record:
        """The first, which speaks for all where they agree."""
        return self.records[0]

    @property
    def seeds(self) -> int:
        """Of how many seeds of training this is the mean."""
        return len(self.records)

    def share(self, name: str) -> Estimate | None:
        """`a_nat`, `a_rob`, `a_sa` or `a_tr`; of several seeds their mean, and none where one has none."""
        found = self._shares(name)
        return mean_estimate(found) if found else None

    def over_training(self, name: str) -> Spread | None:
        """Mean and standard deviation over seeds of training; none of a single one."""
        return spread(list(self.by_training_seed(name).values()))

    def by_training_seed(self, name: str) -> dict[int, float]:
        """The share of every seed."""
        seeds = (record.checkpoint.seed for record in self.records)
        return {seed: share.value for seed, share in zip(seeds, self._shares(name), strict=False)}

    def over_seeds(self, name: str) -> tuple[float, float] | None:
        """Mean and standard deviation of `a_rob`, `a_sa` or `a_tr` over the seeds of the attack; none without repeats."""
        if self.seeds > 1:
            return None
        parts: Iterable[RepeatRow | RepeatAlphaRow] = self.record.repeats
        if name != "a_rob":
            parts = (row for part in self.record.repeats for row in part.by_alpha if row.alpha_test == self.alpha_test)
        values = [value for part in parts if (value := getattr(part, name)) is not None]
        return (fmean(values), stdev(values)) if len(values) > 1 else None

    @property
    def ess(self) -> float | None:
        """The effective sample size behind A_sa, or behind A_tr where there is no other."""
        shares = (self.share("a_sa"), self.share("a_tr"))
        return next((share.ess for share in shares if share is not None and share.ess is not None), None)

    def _shares(self, name: str) -> list[Estimate]:
        """Of every seed; nothing where one of them has none."""
        found = [_share(record, name, self.alpha_test) for record in self.records]
        there = [share for share in found if share is not None]
        return there if len(there) == len(found) else []


def _share(record: Record, name: str, alpha: float | None) -> Estimate | None:
    if name in ("a_nat", "a_rob"):
        plain: Estimate | None = getattr(record, name)
        return plain
    shares: Iterator[Estimate | None] = (getattr(row, name) for row in record.by_alpha if row.alpha_test == alpha)
    return next(shares, None)


def lines(records: Iterable[Record]) -> Iterator[Line]:
    """A line per record and alpha; one line for a record without any."""
    for entry in single(records):
        yield from lines_of(entry)


def lines_of(entry: Entry) -> Iterator[Line]:
    """A line per alpha. Of one model every record is shown; of several seeds the first that has the alpha."""
    if len(entry) == 1:
        yield from (Line((record,), alpha) for record in entry[0] for alpha in _alphas(record))
        return
    alphas = {alpha: None for model in entry for record in model for alpha in _alphas(record)}
    if len(alphas) > 1:
        alphas.pop(None, None)  # a record without alphas adds nothing to those that have some
    for alpha in sorted(alphas, key=lambda alpha: -1.0 if alpha is None else alpha):
        with_it = ([record for record in model if alpha in _alphas(record)] for model in entry)
        yield Line(tuple(found[0] for found in with_it if found), alpha)


def _alphas(record: Record) -> list[float | None]:
    return [row.alpha_test for row in record.by_alpha] or [None]


def run_name(record: Record) -> str:
    """The run's folder, and the file where it is not the last checkpoint; the bare name of a network without a file."""
    path = Path(record.checkpoint.path)
    if path.parent == Path() and not path.suffix:
        return path.name
    folder = path.absolute().parent.name
    return folder if path.name == "last.safetensors" else f"{folder}/{path.name}"


def line_name(line: Line) -> str:
    """The run, or what the names of several seeds have in common: `digits-trades-a2-s*`."""
    names = {run_name(record).replace(f"-s{record.checkpoint.seed}", "-s*") for record in line.records}
    if line.seeds == 1:
        return run_name(line.record)
    return names.pop() if len(names) == 1 else f"{run_name(line.record)} and {line.seeds - 1} more"


def attack_name(record: Record) -> str:
    """The attack as a spec with its restarts, or that this is the worst of several."""
    if record.attack.of is not None:
        return "worst of all"
    spec = Spec.parse(record.attack.spec)
    return str(spec if record.attack.restarts == 1 else spec.with_params(restarts=str(record.attack.restarts)))


def ball_name(record: Record) -> str:
    """The radius, with the norm where it is not the usual one."""
    return exact(record.threat.eps) + ("" if record.threat.norm == "linf" else f" {record.threat.norm}")


def conditions(record: Record, attack: str | None = None) -> str:
    """Under what a model was measured: `under pgd:steps=20, ε 0.15`, with the kernel where it is not the usual one.

    `attack` is its name where the record alone does not tell.
    """
    kernel = "" if record.kernel == "exp" else f", kernel {record.kernel}"
    return f"under {attack or attack_name(record)}, ε {ball_name(record)}{kernel}"
