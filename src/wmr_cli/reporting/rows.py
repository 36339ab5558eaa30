"""A line of a table: a model at one alpha_test, or the mean over the seeds of its training."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from ..measures import MARGIN_KERNEL, Estimate, Spread, mean_estimate, spread
from ..spec import Spec, format_number
from ..storage.records import Record, RepeatAlphaRow, RepeatRow
from .grouping import SeedGroup, single

ACCURACIES = {"a_nat": "A_nat", "a_rob": "A_rob", "a_sa": "A_sa", "a_tr": "A_tr"}
"""The four accuracies as records and as people call them."""


@dataclass(frozen=True)
class ReportRow:
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

    def accuracy(self, name: str) -> Estimate | None:
        """`a_nat`, `a_rob`, `a_sa` or `a_tr`; of several seeds their mean, and none where one has none."""
        found = self._accuracies(name)
        return mean_estimate(found) if found else None

    def training_spread(self, name: str) -> Spread | None:
        """Mean and standard deviation over seeds of training; none of a single one."""
        return spread(list(self.by_training_seed(name).values()))

    def by_training_seed(self, name: str) -> dict[int, float]:
        """The share of every seed."""
        seeds = (record.checkpoint.seed for record in self.records)
        return {
            seed: share.value for seed, share in zip(seeds, self._accuracies(name), strict=False)
        }

    def attack_spread(self, name: str) -> tuple[float, float] | None:
        """Mean and standard deviation of `a_rob`, `a_sa` or `a_tr` over the seeds of the attack; none without repeats."""
        if self.seeds > 1:
            return None
        parts: Iterable[RepeatRow | RepeatAlphaRow] = self.record.repeats
        if name != "a_rob":
            parts = (
                row
                for part in self.record.repeats
                for row in part.by_alpha
                if row.alpha_test == self.alpha_test
            )
        values = [value for part in parts if (value := getattr(part, name)) is not None]
        return (fmean(values), stdev(values)) if len(values) > 1 else None

    @property
    def ess(self) -> float | None:
        """The effective sample size behind A_sa, or behind A_tr where there is no other."""
        shares = (self.accuracy("a_sa"), self.accuracy("a_tr"))
        return next(
            (share.ess for share in shares if share is not None and share.ess is not None), None
        )

    def _accuracies(self, name: str) -> list[Estimate]:
        """Of every seed; nothing where one of them has none."""
        found = [_accuracy_of(record, name, self.alpha_test) for record in self.records]
        there = [share for share in found if share is not None]
        return there if len(there) == len(found) else []


def _accuracy_of(record: Record, name: str, alpha: float | None) -> Estimate | None:
    if name in ("a_nat", "a_rob"):
        plain: Estimate | None = getattr(record, name)
        return plain
    shares: Iterator[Estimate | None] = (
        getattr(row, name) for row in record.by_alpha if row.alpha_test == alpha
    )
    return next(shares, None)


def make_rows(records: Iterable[Record]) -> Iterator[ReportRow]:
    """A line per record and alpha; one line for a record without any."""
    for entry in single(records):
        yield from make_group_rows(entry)


def make_group_rows(entry: SeedGroup) -> Iterator[ReportRow]:
    """A line per alpha. Of one model every record is shown; of several seeds the first that has the alpha."""
    if len(entry) == 1:
        yield from (ReportRow((record,), alpha) for record in entry[0] for alpha in _alphas(record))
        return
    alphas = {alpha: None for model in entry for record in model for alpha in _alphas(record)}
    if len(alphas) > 1:
        alphas.pop(None, None)  # a record without alphas adds nothing to those that have some
    for alpha in sorted(alphas, key=lambda alpha: -1.0 if alpha is None else alpha):
        with_it = ([record for record in model if alpha in _alphas(record)] for model in entry)
        yield ReportRow(tuple(found[0] for found in with_it if found), alpha)


def _alphas(record: Record) -> list[float | None]:
    return [row.alpha_test for row in record.by_alpha] or [None]


def run_name(record: Record) -> str:
    """The run's folder, and the file where it is not the last checkpoint; the bare name of a network without a file."""
    path = Path(record.checkpoint.path)
    if path.parent == Path() and not path.suffix:
        return path.name
    folder = path.absolute().parent.name
    return folder if path.name == "last.safetensors" else f"{folder}/{path.name}"


def row_name(line: ReportRow) -> str:
    """The run, or what the names of several seeds have in common: `digits-trades-a2-s*`."""
    names = {
        run_name(record).replace(f"-s{record.checkpoint.seed}", "-s*") for record in line.records
    }
    if line.seeds == 1:
        return run_name(line.record)
    return names.pop() if len(names) == 1 else f"{run_name(line.record)} and {line.seeds - 1} more"


def attack_name(record: Record) -> str:
    """The attack as a spec with its restarts, or that this is the worst of several."""
    if record.attack.of is not None:
        return "worst of all"
    spec = Spec.parse(record.attack.spec)
    return str(
        spec
        if record.attack.restarts == 1
        else spec.with_params(restarts=str(record.attack.restarts))
    )


def eps_name(record: Record) -> str:
    """The radius, with the norm where it is not the usual one."""
    return format_number(record.threat.eps) + (
        "" if record.threat.norm == "linf" else f" {record.threat.norm}"
    )


def describe_conditions(record: Record, attack: str | None = None) -> str:
    """Under what a model was measured: `under pgd:steps=20, ε 0.15`, with the kernel where it is not the usual one.

    `attack` is its name where the record alone does not tell.
    """
    kernel = "" if record.kernel == MARGIN_KERNEL else f", kernel {record.kernel}"
    return f"under {attack or attack_name(record)}, ε {eps_name(record)}{kernel}"


ATTACK_SEPARATOR = " + "
"""Between attacks; a spec has commas of its own."""


def list_combined_attacks(record: Record, known: Mapping[str, Record]) -> tuple[str, ...]:
    """The attacks whose worst case a record is, in a fixed order; none where it is of a single attack.

    They are named by their own records where those are `known`, else as they were asked for, else by the ids of the records.
    """
    parts = record.attack.of
    if parts is None:
        return ()
    asked = record.config.get("attacks")
    texts = (
        asked
        if isinstance(asked, list) and len(asked) == len(parts)
        else [f"record {part}" for part in parts]
    )
    return tuple(
        sorted(
            attack_name(known[part]) if part in known else str(text)
            for part, text in zip(parts, texts, strict=True)
        )
    )


@dataclass(frozen=True)
class AttackNames:
    """The worst cases among some records: the attacks behind each, by id. Where those differ, worst cases are numbered."""

    behind: Mapping[str, tuple[str, ...]]

    def of(self, record: Record) -> tuple[str, ...]:
        """The attacks behind a record; none where it is of a single attack."""
        return self.behind.get(record.id, ())

    def name(self, record: Record) -> str:
        """`pgd:steps=20`, `worst of all`, or `worst of all (2)`."""
        distinct = list(dict.fromkeys(self.behind.values()))
        number = (
            f" ({distinct.index(self.of(record)) + 1})"
            if len(distinct) > 1 and self.of(record)
            else ""
        )
        return attack_name(record) + number

    def notes(self, records: Iterable[Record]) -> tuple[str, ...]:
        """What stands below a table of these records: the attacks behind every worst case, once each."""
        named = {self.of(record): self.name(record) for record in records if self.of(record)}
        return tuple(
            f"{name}: every image as the most harmful of these attacks left it: {ATTACK_SEPARATOR.join(attacks)}"
            for attacks, name in named.items()
        )


def name_attacks(records: Iterable[Record]) -> AttackNames:
    """The attacks of records that are shown together."""
    known = {record.id: record for record in records}
    return AttackNames(
        {
            name: attacks
            for name, record in known.items()
            if (attacks := list_combined_attacks(record, known))
        }
    )
