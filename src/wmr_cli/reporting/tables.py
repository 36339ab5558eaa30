"""Records to one line per alpha_test, and lines to the main table or to CSV."""

import csv
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from ..measures import Estimate
from ..spec import Spec, exact
from ..storage.records import Record, RepeatAlphaRow, RepeatRow
from .sheets import Sheet

HEADINGS = ("run", "defense", "α_train", "attack", "ε", "α_test", "A_nat", "A_rob", "A_sa", "A_tr", "n", "ESS")
FACTS = ("run", "defense", "α_train", "attack", "ε", "n")
SHARES = ("A_nat", "A_rob", "A_sa", "A_tr")
TEXTS = ("run", "defense", "attack")
CAPTION = "percent, with 95 % intervals over test images; ESS is the effective sample size behind A_sa"
SEEDS = "mean ± standard deviation over seeds of the attack stand with the interval, which belongs to the first seed"


@dataclass(frozen=True)
class Line:
    """One row of the table: a record at one alpha_test."""

    record: Record
    alpha_test: float | None
    a_sa: Estimate | None
    a_tr: Estimate | None

    def over_seeds(self, name: str) -> tuple[float, float] | None:
        """Mean and standard deviation of `a_rob`, `a_sa` or `a_tr` over the seeds of the attack; none without repeats."""
        parts: Iterable[RepeatRow | RepeatAlphaRow] = self.record.repeats
        if name != "a_rob":
            parts = (row for part in self.record.repeats for row in part.by_alpha if row.alpha_test == self.alpha_test)
        values = [value for part in parts if (value := getattr(part, name)) is not None]
        return (fmean(values), stdev(values)) if len(values) > 1 else None


def lines(records: Iterable[Record]) -> Iterator[Line]:
    """A line per alpha; one line for a record without any."""
    for record in records:
        for row in record.by_alpha:
            yield Line(record, row.alpha_test, row.a_sa, row.a_tr)
        if not record.by_alpha:
            yield Line(record, None, None, None)


def percent(share: Estimate | None) -> str:
    """`57.2 [53.1, 61.1]`, with no more digits than the interval supports."""
    if share is None:
        return "-"
    if share.degenerate:
        return "100 (all right)" if share.value else "0 (all wrong)"
    half = 50 * (share.high - share.low)
    digits = min(3, max(0, 1 - math.floor(math.log10(half))))
    value, low, high = (f"{100 * number:.{digits}f}" for number in (share.value, share.low, share.high))
    return f"{value} [{low}, {high}]"


def with_spread(share: Estimate | None, spread: tuple[float, float] | None) -> str:
    """The share and, where the attack was repeated, mean ± standard deviation over its seeds: `57.2 [53.1, 61.1]; 57.0 ± 0.3`."""
    if spread is None:
        return percent(share)
    mean, deviation = (100 * number for number in spread)
    digits = 1 if deviation == 0 else min(4, max(1, 1 - math.floor(math.log10(deviation))))
    return f"{percent(share)}; {mean:.{digits}f} ± {deviation:.{digits}f}"


def run_name(record: Record) -> str:
    """The run's folder, and the file where it is not the last checkpoint."""
    path = Path(record.checkpoint.path)
    folder = path.absolute().parent.name
    return folder if path.name == "last.safetensors" else f"{folder}/{path.name}"


def attack_name(record: Record) -> str:
    """The attack as a spec with its restarts, or that this is the worst of several."""
    if record.attack.of is not None:
        return "worst of all"
    spec = Spec.parse(record.attack.spec)
    return str(spec if record.attack.restarts == 1 else spec.with_params(restarts=str(record.attack.restarts)))


def cells(line: Line) -> tuple[str, ...]:
    """The texts of one line, in the order of the headings."""
    record = line.record
    ess = next((share.ess for share in (line.a_sa, line.a_tr) if share is not None and share.ess is not None), None)
    norm = "" if record.threat.norm == "linf" else f" {record.threat.norm}"
    return (
        run_name(record),
        record.checkpoint.defense,
        _plain(record.checkpoint.alpha_train),
        attack_name(record),
        exact(record.threat.eps) + norm,
        _plain(line.alpha_test),
        percent(record.a_nat),
        with_spread(record.a_rob, line.over_seeds("a_rob")),
        with_spread(line.a_sa, line.over_seeds("a_sa")),
        with_spread(line.a_tr, line.over_seeds("a_tr")),
        str(record.dataset.n),
        "-" if ess is None else f"{ess:.0f}",
    )


def sheet(records: Sequence[Record]) -> Sheet:
    """The main table: a row per record and alpha."""
    rows = [cells(line) for line in lines(records)]
    return Sheet(HEADINGS, rows, caption(records), texts=TEXTS, facts=FACTS, shares=SHARES)


def caption(records: Iterable[Record]) -> str:
    """What the numbers are."""
    return f"{CAPTION}; {SEEDS}" if any(record.repeats for record in records) else CAPTION


def comma_separated(records: Iterable[Record]) -> str:
    """Fractions in full, every interval in columns of its own."""
    columns = [
        "run",
        "id",
        "defense",
        "alpha_train",
        "kernel",
        "dataset",
        "split",
        "n",
        "norm",
        "eps",
        "attack",
        "alpha_test",
        "ess",
    ]
    shares, repeated = ["a_nat", "a_rob", "a_sa", "a_tr"], ["a_rob", "a_sa", "a_tr"]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    headings = [f"{share}{part}" for share in shares for part in ("", "_low", "_high")]
    writer.writerow([*columns, *headings, "seeds", *(f"{share}{part}" for share in repeated for part in ("_mean", "_sd"))])
    for line in lines(records):
        record = line.record
        ess = next((share.ess for share in (line.a_sa, line.a_tr) if share is not None), None)
        facts = [
            run_name(record), record.id, record.checkpoint.defense, record.checkpoint.alpha_train, record.kernel,
            record.dataset.name, record.dataset.split, record.dataset.n, record.threat.norm, record.threat.eps,
            attack_name(record), line.alpha_test, ess,
        ]  # fmt: skip
        measured = [
            None if share is None else getattr(share, part)
            for share in (record.a_nat, record.a_rob, line.a_sa, line.a_tr)
            for part in ("value", "low", "high")
        ]
        spread = [number for share in repeated for number in line.over_seeds(share) or (None, None)]
        seeds = len(record.repeats) or 1
        writer.writerow(["" if value is None else value for value in [*facts, *measured, seeds, *spread]])
    return stream.getvalue()


def _plain(value: float | None) -> str:
    return "-" if value is None else exact(value)
