"""Match rows of a report with the paper's rows, and list how their settings differ.

The paper's settings are those of the presets `paper/…`: its own numbers or, where it gives none,
those of the code that it builds on.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from ..config import resolve
from ..errors import BadInput
from ..measures import MARGIN_KERNEL
from ..reporting.rows import UNWEIGHTED_KERNEL, ReportRow, attack_name, row_name, run_name
from ..spec import Spec, format_number, parse_number, scale_exactly
from ..storage.records import Record
from .errata import CorrectedRow, load_corrected_rows
from .results import ACCURACY_FIELDS, DATASETS

# Built-in datasets that are not the paper's. `folder` and `arrays` may hold any data.
OTHER_DATASETS = ("digits", "fashion-mnist", "cifar100", "svhn")

# the paper's names of defenses, by ours
PAPER_DEFENSES = {
    "pgd": "PGD",
    "trades": "TRADES",
    "free": "AT4Free",
    "yopo": "YOPO-5-3",
    "iaat": "IAAT",
}

TEST_IMAGES = 10_000
# step sizes in the released evaluation script that differ from those in the training log
RELEASED_STEP_SIZES = {"cifar10": 0.0031}


@dataclass(frozen=True)
class PaperAttack:
    """How an attack of ours corresponds to the paper's."""

    # the loss that it maximises unless its spec has another one
    loss: str
    # parameters that its spec may have; with any other it is a different attack
    params: frozenset[str]
    restarts: int = 1
    # whether it repeats the released evaluation script
    is_released: bool = False


PGD_PARAMS = frozenset({"steps", "step", "start", "keep", "loss"})
PAPER_ATTACKS = {
    "pgd": PaperAttack(loss="ce", params=PGD_PARAMS),
    "pgd-margin": PaperAttack(loss="margin", params=PGD_PARAMS),
    "authors-eval": PaperAttack(
        loss="ce", params=frozenset({"steps", "step", "loss"}), restarts=10, is_released=True
    ),
}
Fact: TypeAlias = str | int | float | None
KIND_OF_LOSS = {"ce": "PGD", "margin": "PGD-margin"}
# largest ratio at which a row of the paper is shown beside another radius or number of steps
MAX_RATIOS = {"ε": 1.1, "steps": 4.0}
# values of parameters that the paper's attack has and its presets do not set
PAPER_PARAMS = {"start": "uniform", "keep": "last"}

# settings that affect the trained weights, with their names in notes
TRAINING_SETTINGS = {
    "norm": "training norm",
    "attack": "training attack",
    "steps": "training steps",
    "step_size": "training step size",
    "attack_mode": "model mode under attack",
    "weight_grad": "weight gradient",
    "normalize": "weight normalisation",
    "max_weight": "largest weight",
    "batch_size": "batch size",
    "augment": "augmentation",
    "optimizer": "optimizer",
    "lr": "learning rate",
    "momentum": "momentum",
    "weight_decay": "weight decay",
    "decay": "decayed parameters",
    "clip_grad": "gradient clipping",
    "label_smoothing": "label smoothing",
    "schedule": "schedule",
    "milestones": "milestones",
    "gamma": "gamma",
    "warmup": "warm-up",
    "eps_ramp": "ε ramp",
    "alpha_ramp": "α ramp",
    "init": "initial weights",
    "freeze": "frozen layers",
    "backbone_lr_scale": "learning-rate factor before the head",
    "precision": "precision",
}

# settings that are not listed if the setting they depend on differs already
DEPENDS_ON = {"milestones": "schedule", "gamma": "schedule", "momentum": "optimizer"}

WEIGHTS_NAMES = {"best.safetensors": "best weights", "ema.safetensors": "EMA weights"}


@dataclass(frozen=True)
class PrintedAccuracy:
    """What the paper prints for one accuracy, and why a value is corrected or left out."""

    # the tables that print each value, in percent
    values: dict[float, tuple[str, ...]]
    reasons: tuple[str, ...] = ()

    @property
    def value(self) -> float | None:
        """The value as a fraction; None if nothing is printed or tables disagree."""
        if len(self.values) != 1:
            return None
        (percent,) = self.values
        # rounded: 95.20 / 100 has more digits in binary
        return round(percent / 100, 6)


@dataclass(frozen=True)
class Match:
    """A row of a report, and the paper's rows for the same method and attack."""

    row: ReportRow
    paper_rows: tuple[CorrectedRow, ...]
    accuracies: dict[str, PrintedAccuracy]
    setting_differences: tuple[str, ...]
    # how the attack differs from the paper's, if it is only near it
    departures: tuple[str, ...] = ()

    @property
    def tables(self) -> list[str]:
        """The paper's tables that print one of the accuracies."""
        used = {
            table
            for accuracy in self.accuracies.values()
            for tables in accuracy.values.values()
            for table in tables
        }
        return list(dict.fromkeys(paper.table for paper in self.paper_rows if paper.table in used))

    def difference(self, name: str) -> tuple[float, float, float] | None:
        """Return the row's accuracy minus the paper's, with the row's interval."""
        own = self.row.accuracy(name)
        printed = self.accuracies[name].value
        if own is None or printed is None:
            return None
        return own.value - printed, own.low - printed, own.high - printed

    def describe_differences(self) -> str:
        """Return the row's name and how its settings differ, for a note."""
        differences = ", ".join(self.setting_differences)
        return f"settings of {row_name(self.row)} that differ from the paper's: {differences}"


def match_rows(rows: Iterable[ReportRow], requested: str) -> list[Match]:
    """Return a match for every row that the paper has numbers for.

    `requested` is a dataset or table of the paper, or `auto` or `all` for the dataset of each
    record. Without an exact match, ε and the number of steps may be near those of the paper.
    """
    candidates = Candidates.select(requested)
    found = (_match_row(row, candidates) for row in rows)
    return [match for match in found if match is not None]


def explain_mismatches(records: Iterable[Record], requested: str) -> dict[str, list[str]]:
    """Return the names of runs that fail one condition only, by a text about this condition."""
    candidates = Candidates.select(requested)
    reasons: dict[str, list[str]] = {}
    for record in records:
        reason = _find_only_departure(record, candidates)
        if reason is not None:
            reasons.setdefault(reason, []).append(run_name(record))
    return reasons


@dataclass(frozen=True)
class Candidates:
    """Rows of the paper that a record may match."""

    rows: Sequence[CorrectedRow]
    # the dataset that data of the user's own count as
    dataset: str | None

    @classmethod
    def select(cls, requested: str) -> "Candidates":
        """Return the rows of a dataset or table, or those of all."""
        rows = load_corrected_rows()
        if requested in ("auto", "all"):
            return cls(rows, None)
        selected = [paper for paper in rows if requested in (paper.dataset, paper.table)]
        return cls(selected, selected[0].dataset)


def _match_row(row: ReportRow, candidates: Candidates) -> Match | None:
    record = row.record
    own = _describe_record(record, candidates)
    near = []
    for paper in candidates.rows:
        departures = _list_departures(own, _describe_paper(paper))
        if all(departure.is_near for departure in departures):
            near.append((sum(departure.distance for departure in departures), departures, paper))
    if not near:
        return None
    _, departures, nearest = min(near, key=itemgetter(0))
    measured = (nearest.row.attack, nearest.row.eps_test)
    # several tables may print the same method under the same attack
    paper_rows = [paper for *_, paper in near if (paper.row.attack, paper.row.eps_test) == measured]
    at_alpha = [
        paper
        for paper in paper_rows
        if row.alpha_test is not None and paper.row.alpha_test == row.alpha_test
    ]
    # A_nat and A_rob do not depend on alpha_test, so that any row has them
    accuracies = {
        name: _collect_printed(paper_rows if name in ("a_nat", "a_rob") else at_alpha, name)
        for name in ACCURACY_FIELDS
    }
    training_eps = {paper.row.eps_train for paper in paper_rows}
    differences = tuple(list_setting_differences(record, nearest.dataset, training_eps))
    return Match(
        row,
        tuple(paper_rows),
        accuracies,
        differences,
        tuple(departure.describe() for departure in departures),
    )


def _find_only_departure(record: Record, candidates: Candidates) -> str | None:
    """Return the condition that fails where all others hold, with all values of the paper."""
    own = _describe_record(record, candidates)
    alone: dict[str, dict[Fact, str]] = {}
    for paper in candidates.rows:
        departures = _list_departures(own, _describe_paper(paper))
        failed = [departure for departure in departures if not departure.is_near]
        if len(failed) == 1:
            values = alone.setdefault(failed[0].describe_own(), {})
            values[failed[0].paper] = failed[0].describe_paper()
    if not alone:
        return None
    own_value, paper_values = next(iter(alone.items()))
    # numbers in their order, which begins with none
    ordered = sorted(paper_values, key=lambda value: value if isinstance(value, int | float) else 0)
    *others, last = (paper_values[value] for value in ordered)
    expected = f"{', '.join(others)} or {last}" if others else last
    return f"{own_value} instead of {expected}"


def _describe_record(record: Record, candidates: Candidates) -> dict[str, Fact]:
    """Return the facts of a record that decide which rows of the paper it matches."""
    checkpoint = record.checkpoint
    dataset = _component_name(record.dataset.name)
    # built-in datasets are what they are
    if dataset not in (*DATASETS, *OTHER_DATASETS):
        dataset = candidates.dataset or dataset
    defense = _component_name(checkpoint.defense)
    is_weighted = checkpoint.kernel != UNWEIGHTED_KERNEL
    return {
        "dataset": dataset,
        "split": record.dataset.split,
        "kernel": record.kernel,
        "defense": PAPER_DEFENSES.get(defense, defense),
        "training kernel": checkpoint.kernel if is_weighted else MARGIN_KERNEL,
        # alpha 0 is the unweighted baseline, which the paper prints without an alpha
        "α_train": (checkpoint.alpha_train or None) if is_weighted else None,
        "norm": record.threat.norm,
        **_describe_attack(record),
        "ε": record.threat.eps,
    }


def _describe_attack(record: Record) -> dict[str, Fact]:
    """Return kind and steps of an attack that the paper has, `PGD` or `PGD-margin`, or its name."""
    spec = Spec.parse(record.attack.spec)
    attack = PAPER_ATTACKS.get(spec.name)
    other: dict[str, Fact] = {"attack": attack_name(record)}
    # a parameter that the paper does not mention makes it another attack
    if attack is None or spec.value is not None or not spec.params.keys() <= attack.params:
        return other
    kind = KIND_OF_LOSS.get(str(spec.params.get("loss", attack.loss)))
    steps = str(spec.params.get("steps", ""))
    # a worst case has the spec of none of its attacks
    if kind is None or record.attack.of is not None or not steps.isdecimal():
        return other
    return {"attack": kind, "steps": int(steps)}


def _describe_paper(paper: CorrectedRow) -> dict[str, Fact]:
    """Return the same facts of a row of the paper."""
    # such as `20-PGD-margin`
    steps, _, attack = paper.row.attack.partition("-")
    return {
        "dataset": paper.dataset,
        "split": "test",
        "kernel": MARGIN_KERNEL,
        "defense": paper.family,
        "training kernel": MARGIN_KERNEL,
        "α_train": paper.row.alpha_train,
        "norm": "linf",
        "attack": attack,
        "steps": int(steps),
        "ε": paper.row.eps_test,
    }


@dataclass(frozen=True)
class Departure:
    """A fact of a record that differs from the paper's."""

    name: str
    own: Fact
    paper: Fact

    @property
    def distance(self) -> float:
        """The absolute logarithm of the ratio of two positive numbers; otherwise infinite."""
        if isinstance(self.own, str) or isinstance(self.paper, str):
            return math.inf
        return abs(math.log(self.own / self.paper)) if self.own and self.paper else math.inf

    @property
    def is_near(self) -> bool:
        """Whether the row is shown all the same, with this departure."""
        return self.name in MAX_RATIOS and self.distance <= math.log(MAX_RATIOS[self.name])

    def describe(self) -> str:
        """Return for example `ε 0.0314 instead of 0.031`."""
        return f"{self.describe_own()} instead of {self.describe_paper()}"

    def describe_own(self) -> str:
        """Return for example `ε 0.0314` or `10 steps`."""
        value = self._format(self.own)
        return f"{value} steps" if self.name == "steps" else f"{self.name} {value}"

    def describe_paper(self) -> str:
        """Return for example `0.031`."""
        return self._format(self.paper)

    def _format(self, value: Fact) -> str:
        if not isinstance(value, float):
            return "none" if value is None else str(value)
        # 8/255 is easier to compare with 0.031 as 0.0314
        rounded = {f"{each:.3g}" for each in (self.own, self.paper) if isinstance(each, float)}
        is_equal = (
            isinstance(self.own, float) and isinstance(self.paper, float) and len(rounded) < 2
        )
        return format_number(value) if is_equal else f"{value:.3g}"


def _list_departures(own: Mapping[str, Fact], paper: Mapping[str, Fact]) -> list[Departure]:
    return [
        Departure(name, value, paper[name]) for name, value in own.items() if value != paper[name]
    ]


def _collect_printed(rows: Sequence[CorrectedRow], name: str) -> PrintedAccuracy:
    values: dict[float, list[str]] = {}
    reasons: dict[str, None] = {}
    for paper in rows:
        value = getattr(paper.row, name)
        if value is not None and paper.table not in values.setdefault(value, []):
            values[value].append(paper.table)
        if name in paper.reasons:
            reasons[paper.reasons[name]] = None
    return PrintedAccuracy(
        {value: tuple(tables) for value, tables in values.items()}, tuple(reasons)
    )


def _component_name(text: str) -> str:
    try:
        return Spec.parse(text).name
    except BadInput:
        return text


@cache
def paper_settings(dataset: str, defense: str) -> dict[str, Any]:
    """Return how the paper trained with a defense on a dataset, and how it evaluated."""
    config = resolve({"preset": f"paper/{dataset}", "defense": defense})
    # lists instead of tuples, as records contain them
    settings: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(config))
    return settings


def list_setting_differences(
    record: Record, dataset: str, training_eps: Iterable[float]
) -> Iterator[str]:
    """Yield every known difference as `OWN for PAPER'S`.

    `training_eps` are the radii of training in the paper's rows.
    """
    checkpoint = record.checkpoint
    defense = Spec.parse(checkpoint.defense)
    paper = paper_settings(dataset, defense.name)
    expected_model = Spec.parse(paper["model"])
    if not _is_model(checkpoint.model, expected_model):
        yield f"network {checkpoint.model} for {expected_model.name}"
    yield from _compare_specs(defense, Spec.parse(paper["defense"]))
    weights = WEIGHTS_NAMES.get(Path(checkpoint.path).name)
    if weights is not None:
        yield f"{weights} for the last"
    if checkpoint.config is None:
        yield "training settings not recorded"
    else:
        yield from _compare_training(checkpoint.config, paper, sorted(set(training_eps)))
        epochs = checkpoint.config.get("epochs", paper["epochs"])
        if weights is None and checkpoint.epoch != epochs:
            yield f"weights after {checkpoint.epoch} epochs for {epochs}"
    yield from _compare_attack(record, dataset, paper)
    if record.dataset.n != TEST_IMAGES:
        yield f"{record.dataset.n} test images for {TEST_IMAGES}"


def _is_model(text: str, expected: Spec) -> bool:
    try:
        spec = Spec.parse(text)
    except BadInput:  # an imported model may have any name
        return False
    return spec.name == expected.name and not any(_compare_specs(spec, expected))


def _compare_specs(own: Spec, paper: Spec) -> Iterator[str]:
    """Yield the parameters that are given and differ from the paper's."""
    if own.value is not None:
        yield f"{own.name} {own.value}"
    for key, value in own.params.items():
        expected = paper.params.get(key)
        if expected is None:
            yield f"{key} {value}"
        elif not _are_equal(value, expected):
            yield f"{key} {value} for {expected}"


def _are_equal(value: object, expected: object) -> bool:
    """Compare as numbers where both are: `6.0` equals `6`."""
    try:
        return parse_number(str(value)) == parse_number(str(expected))
    except BadInput:
        return str(value) == str(expected)


def _compare_training(
    own: Mapping[str, Any], paper: Mapping[str, Any], training_eps: list[float]
) -> Iterator[str]:
    # the most important difference comes first
    epochs = own.get("epochs", paper["epochs"])
    if epochs != paper["epochs"]:
        yield f"{epochs} epochs for {paper['epochs']}"
    if "eps" in own and own["eps"] not in training_eps:
        expected = " or ".join(map(format_number, training_eps))
        yield f"training ε {format_number(own['eps'])} for {expected}"
    # a record of an older version may lack a setting
    different = [name for name in TRAINING_SETTINGS if name in own and own[name] != paper[name]]
    for name in different:
        if DEPENDS_ON.get(name) not in different:
            shown = _format_setting(name, own[name])
            expected = _format_setting(name, paper[name])
            yield f"{TRAINING_SETTINGS[name]} {shown} for {expected}"


def _format_setting(name: str, value: object) -> str:
    if value is None:
        return "default" if name == "step_size" else "none"
    if isinstance(value, float):
        return format_number(value)
    if isinstance(value, list | tuple):
        return "/".join(map(str, value)) or "none"
    return str(value)


def _compare_attack(record: Record, dataset: str, paper: Mapping[str, Any]) -> Iterator[str]:
    spec = Spec.parse(record.attack.spec)
    attack = PAPER_ATTACKS[spec.name]
    if record.attack.restarts != attack.restarts:
        yield f"restarts {record.attack.restarts} for {attack.restarts}"
    step_size = paper["evaluate"]["step_size"]
    # `wmr evaluate --eps` scales the step with the radius
    expected = {step_size, scale_exactly(step_size, record.threat.eps, paper["eps"])}
    if attack.is_released and dataset in RELEASED_STEP_SIZES:
        expected.add(RELEASED_STEP_SIZES[dataset])
    own = spec.params.get("step", "default")
    if not any(_are_equal(own, format_number(step)) for step in expected):
        yield f"step size {own} for {format_number(step_size)}"
    for name, value in PAPER_PARAMS.items():
        if name in spec.params and str(spec.params[name]) != value:
            yield f"{name} {spec.params[name]} for {value}"
