"""Rows of a report, one per model and alpha_test, and the names of runs and attacks in them."""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from ..measures import MARGIN_KERNEL, Estimate, Spread, mean_estimate, spread
from ..spec import Spec, format_number
from ..storage.records import Record, RepeatAlphaRow, RepeatRow
from .grouping import SeedGroup, group_by_training

# headings by the field names of a record
ACCURACIES = {"a_nat": "A_nat", "a_rob": "A_rob", "a_sa": "A_sa", "a_tr": "A_tr"}
# in the order of columns, with the one that is computed only on request
ALL_ACCURACIES = {
    "a_nat": "A_nat",
    "a_rob": "A_rob",
    "a_sa": "A_sa",
    "a_cal": "A_cal",
    "a_tr": "A_tr",
}

# the kernel of a training without weights, which has no alpha
UNWEIGHTED_KERNEL = "none"

# identifies the model of a record: the run's name and the checkpoint's SHA-256
ModelKey = tuple[str, str]

# joins attacks; a comma would be ambiguous, because specs contain commas
ATTACK_SEPARATOR = " + "


@dataclass(frozen=True)
class ReportRow:
    """One model at one alpha_test, with one record per training seed."""

    records: tuple[Record, ...]
    alpha_test: float | None

    @property
    def record(self) -> Record:
        """The record of the first seed, for facts that all seeds share."""
        return self.records[0]

    @property
    def seeds(self) -> int:
        """The number of training seeds."""
        return len(self.records)

    def accuracy(self, name: str) -> Estimate | None:
        """Return an accuracy by its field name: its mean over seeds, None if a seed lacks it."""
        estimates = self._estimates(name)
        return mean_estimate(estimates) if estimates else None

    def training_spread(self, name: str) -> Spread | None:
        """Return mean and standard deviation over training seeds; None for a single seed."""
        return spread(list(self.by_training_seed(name).values()))

    def by_training_seed(self, name: str) -> dict[int, float]:
        """Return the accuracy of every training seed; empty if a seed lacks it."""
        seeds = (record.checkpoint.seed for record in self.records)
        estimates = self._estimates(name)
        # not strict: there are either as many estimates as seeds or none
        return {seed: estimate.value for seed, estimate in zip(seeds, estimates, strict=False)}

    def attack_spread(self, name: str) -> tuple[float, float] | None:
        """Return mean and standard deviation over attack seeds; None without repetitions."""
        # a row over training seeds has their spread instead
        if self.seeds > 1:
            return None
        repeats: Iterable[RepeatRow | RepeatAlphaRow] = self.record.repeats
        if name != "a_rob":
            repeats = (
                row
                for repeat in self.record.repeats
                for row in repeat.by_alpha
                if row.alpha_test == self.alpha_test
            )
        values = [value for repeat in repeats if (value := getattr(repeat, name)) is not None]
        return (fmean(values), stdev(values)) if len(values) > 1 else None

    @property
    def ess(self) -> float | None:
        """The effective sample size behind A_sa, else behind A_tr."""
        for name in ("a_sa", "a_tr"):
            estimate = self.accuracy(name)
            if estimate is not None and estimate.ess is not None:
                return estimate.ess
        return None

    @property
    def temperature(self) -> float | None:
        """The temperature behind A_cal: its mean over seeds, None if a seed lacks it."""
        found = [record.temperature for record in self.records]
        known = [temperature for temperature in found if temperature is not None]
        return fmean(known) if len(known) == len(found) else None

    def _estimates(self, name: str) -> list[Estimate]:
        """Return the estimate of every seed; empty if a seed lacks it."""
        found = [find_estimate(record, name, self.alpha_test) for record in self.records]
        estimates = [estimate for estimate in found if estimate is not None]
        # a mean over fewer seeds than the row names would be misleading
        return estimates if len(estimates) == len(found) else []


def find_estimate(record: Record, name: str, alpha: float | None) -> Estimate | None:
    """Return an accuracy of a record by its field name; None if it was not measured."""
    if name in ("a_nat", "a_rob"):
        plain: Estimate | None = getattr(record, name)
        return plain
    weighted: Iterator[Estimate | None] = (
        getattr(row, name) for row in record.by_alpha if row.alpha_test == alpha
    )
    return next(weighted, None)


def list_accuracies(records: Iterable[Record]) -> dict[str, str]:
    """Return headings by field name: the four accuracies, and A_cal if a record has it."""
    return ALL_ACCURACIES if any(record.calibration for record in records) else ACCURACIES


def make_rows(records: Iterable[Record]) -> Iterator[ReportRow]:
    """Yield a row per record and alpha; one row for a record without alphas."""
    for record in records:
        yield from make_group_rows(((record,),))


def make_group_rows(entry: SeedGroup) -> Iterator[ReportRow]:
    """Yield a row per alpha with all training seeds; a single seed has a row for each record."""
    if len(entry) == 1:
        yield from (ReportRow((record,), alpha) for record in entry[0] for alpha in _alphas(record))
        return
    alphas = {alpha: None for model in entry for record in model for alpha in _alphas(record)}
    if len(alphas) > 1:
        alphas.pop(None, None)  # A_nat and A_rob are the same in the rows of other alphas
    for alpha in sorted(alphas, key=lambda alpha: -1.0 if alpha is None else alpha):
        by_seed = ([record for record in model if alpha in _alphas(record)] for model in entry)
        yield ReportRow(tuple(records[0] for records in by_seed if records), alpha)


def merge_unweighted_rows(rows: Iterable[ReportRow]) -> Iterator[ReportRow]:
    """Yield rows, with one row without alpha for records that have no weighted accuracy.

    Such records have equal values at every alpha: the attack has no margins.
    """
    merged: set[tuple[str, ...]] = set()
    for row in rows:
        ids = tuple(record.id for record in row.records)
        if any(map(_has_weighted_accuracy, row.records)):
            yield row
        elif ids not in merged:
            merged.add(ids)
            yield ReportRow(row.records, None)


def lacks_margins(record: Record) -> bool:
    """Whether A_sa was requested and the attack has no margins to compute it from."""
    # other kernels may lack the weights of an alpha instead
    is_requested = record.kernel == MARGIN_KERNEL and "sa" in record.config.get("metrics", ("sa",))
    return bool(is_requested and record.by_alpha and not _has_weighted_accuracy(record))


def _has_weighted_accuracy(record: Record) -> bool:
    return any(row.a_sa or row.a_tr or row.a_cal for row in record.by_alpha)


def _alphas(record: Record) -> list[float | None]:
    return [row.alpha_test for row in record.by_alpha] or [None]


def run_name(record: Record) -> str:
    """Return the run's folder, with the file name unless it is the last checkpoint.

    The name depends on the record only. Imported weights and models that were not read from a file
    may have a path without a folder.
    """
    path = Path(record.checkpoint.path)
    folder = path.parent.name
    has_folder = folder not in ("", "..")
    if path.name == "last.safetensors":
        return folder if has_folder else _describe_training(record)
    return f"{folder}/{path.name}" if has_folder else path.name


def _describe_training(record: Record) -> str:
    """Return the default name of a run; records of wmr 0.1 may lack its folder."""
    checkpoint = record.checkpoint
    alpha = checkpoint.alpha_train
    parts = [Spec.parse(record.dataset.name).short, Spec.parse(checkpoint.defense).short]
    parts += [] if alpha is None else [f"a{format_number(alpha)}"]
    return "-".join([*parts, f"s{checkpoint.seed}"])


def row_name(row: ReportRow) -> str:
    """Return the run's name; for several seeds their common form `digits-trades-a2-s*`."""
    if row.seeds == 1:
        return run_name(row.record)
    patterns = {
        run_name(record).replace(f"-s{record.checkpoint.seed}", "-s*") for record in row.records
    }
    if len(patterns) == 1:
        return patterns.pop()
    return f"{run_name(row.record)} and {row.seeds - 1} more"


def model_key(record: Record) -> ModelKey:
    """Return the key that all records of one checkpoint share."""
    return run_name(record), record.checkpoint.sha256


def list_trainings(records: Iterable[Record]) -> list[list[ModelKey]]:
    """List all trainings, each with the models of its seeds, whatever the order of the records.

    A training has the same colour in every figure and panel: that of its place in this list.
    """
    ordered = sorted(records, key=training_order)
    return group_by_training({model_key(record): record for record in ordered})


def training_order(record: Record) -> tuple[Hashable, ...]:
    """Sort by defense, kernel, alpha (unweighted first), run."""
    checkpoint = record.checkpoint
    alpha = -1.0 if checkpoint.alpha_train is None else checkpoint.alpha_train
    return checkpoint.defense, checkpoint.kernel, alpha, run_name(record)


def attack_name(record: Record) -> str:
    """Return the attack's spec with restarts and draws, or the name of the worst case."""
    if record.attack.of is not None:
        return "worst case over attacks"
    spec = Spec.parse(record.attack.spec)
    if record.attack.restarts != 1:
        spec = spec.with_params(restarts=str(record.attack.restarts))
    if record.attack.draws is not None:
        rule = "" if record.attack.draw_rule == "mean" else f":{record.attack.draw_rule}"
        spec = spec.with_params(draws=f"{record.attack.draws}{rule}")
    return str(spec)


def eps_name(record: Record) -> str:
    """Return the radius, with the norm unless it is Linf."""
    eps = format_number(record.threat.eps)
    return eps if record.threat.norm == "linf" else f"{eps} {record.threat.norm}"


def describe_conditions(record: Record, attack: str | None = None) -> str:
    """Return for example `under pgd:steps=20, ε 0.15`, with the kernel unless it is the paper's.

    `attack` replaces the attack's name, see `AttackNames.name`.
    """
    kernel = "" if record.kernel == MARGIN_KERNEL else f", kernel {record.kernel}"
    return f"under {attack or attack_name(record)}, ε {eps_name(record)}{kernel}"


def list_combined_attacks(record: Record, known: Mapping[str, Record]) -> tuple[str, ...]:
    """Return the sorted names of the attacks behind a worst case; none for a single attack.

    A name comes from the attack's own record if it is `known`, else from the config, else it is
    the record's id.
    """
    ids = record.attack.of
    if ids is None:
        return ()
    configured = record.config.get("attacks")
    if isinstance(configured, list) and len(configured) == len(ids):
        fallbacks = [str(text) for text in configured]
    else:
        fallbacks = [f"record {one}" for one in ids]
    return tuple(
        sorted(
            attack_name(known[one]) if one in known else fallback
            for one, fallback in zip(ids, fallbacks, strict=True)
        )
    )


@dataclass(frozen=True)
class AttackNames:
    """Names of the attacks in one report; different worst cases are numbered."""

    # the attacks behind each worst case, by the record's id
    combined: Mapping[str, tuple[str, ...]]

    def combined_attacks(self, record: Record) -> tuple[str, ...]:
        """Return the attacks behind a worst case; none for a single attack."""
        return self.combined.get(record.id, ())

    def name(self, record: Record) -> str:
        """Return `pgd:steps=20`, `worst case over attacks`, or `worst case over attacks (2)`."""
        name = attack_name(record)
        distinct = list(dict.fromkeys(self.combined.values()))
        attacks = self.combined_attacks(record)
        if attacks and len(distinct) > 1:
            name += f" ({distinct.index(attacks) + 1})"
        return name

    def notes(self, records: Iterable[Record]) -> tuple[str, ...]:
        """Return a note per worst case that lists its attacks."""
        names = {self.combined_attacks(record): self.name(record) for record in records}
        return tuple(
            f"{name}: for each image the most harmful result of {ATTACK_SEPARATOR.join(attacks)}"
            for attacks, name in names.items()
            if attacks
        )


def name_attacks(records: Iterable[Record]) -> AttackNames:
    """Name the attacks of records that are shown together."""
    known = {record.id: record for record in records}
    combined = {name: list_combined_attacks(record, known) for name, record in known.items()}
    return AttackNames({name: attacks for name, attacks in combined.items() if attacks})
