"""Match rows of a report with the paper's rows, and list how their settings differ.

The paper's settings are those of the presets `paper/…`: its own numbers or, where it gives none,
those of the code that it builds on.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from ..config import resolve
from ..errors import BadInput
from ..measures import MARGIN_KERNEL
from ..reporting.rows import UNWEIGHTED_KERNEL, ReportRow, row_name
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


def match_rows(rows: Iterable[ReportRow], dataset: str) -> list[Match]:
    """Return a match for every row that the paper has numbers for.

    `dataset` is one of the paper's, or `auto` or `all` for that of each record.
    """
    matches = []
    for row in rows:
        paper_dataset = _find_dataset(row, dataset)
        match = None if paper_dataset is None else _match_row(row, paper_dataset)
        if match is not None:
            matches.append(match)
    return matches


def _find_dataset(row: ReportRow, requested: str) -> str | None:
    """Return the paper's dataset that a row was measured on.

    Data of the user's own count as the requested dataset; built-in datasets are what they are.
    """
    own = _component_name(row.record.dataset.name)
    if own in DATASETS:
        return own if requested in ("auto", "all", own) else None
    if requested in DATASETS and own not in OTHER_DATASETS:
        return requested
    return None


def _match_row(row: ReportRow, dataset: str) -> Match | None:
    record = row.record
    method = _find_method(record)
    attack = _find_attack(record)
    if method is None or attack is None:
        return None
    if record.kernel != MARGIN_KERNEL or record.dataset.split != "test":
        return None
    paper_rows = [
        paper
        for paper in load_corrected_rows()
        if paper.dataset == dataset
        and (paper.family, paper.row.alpha_train) == method
        # exactly: 8/255 is not the 0.031 of the paper
        and (paper.row.attack, paper.row.eps_test) == (attack, record.threat.eps)
    ]
    if not paper_rows:
        return None
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
    differences = tuple(list_setting_differences(record, dataset, training_eps))
    return Match(row, tuple(paper_rows), accuracies, differences)


def _find_method(record: Record) -> tuple[str, float | None] | None:
    """Return the paper's defense and alpha_train; None for a method that it does not have."""
    checkpoint = record.checkpoint
    family = PAPER_DEFENSES.get(_component_name(checkpoint.defense))
    if family is None or checkpoint.kernel not in (MARGIN_KERNEL, UNWEIGHTED_KERNEL):
        return None
    if checkpoint.kernel == UNWEIGHTED_KERNEL:
        return family, None
    # alpha 0 is the unweighted baseline, which the paper prints without an alpha
    return family, checkpoint.alpha_train or None


def _find_attack(record: Record) -> str | None:
    """Return the paper's name of an Linf attack: `20-PGD` or `20-PGD-margin`."""
    spec = Spec.parse(record.attack.spec)
    attack = PAPER_ATTACKS.get(spec.name)
    if attack is None or record.attack.of is not None or record.threat.norm != "linf":
        return None
    # a parameter that the paper does not mention makes it another attack
    if spec.value is not None or not spec.params.keys() <= attack.params:
        return None
    steps = str(spec.params.get("steps", ""))
    if not steps.isdecimal():
        return None
    loss = str(spec.params.get("loss", attack.loss))
    return {"ce": f"{steps}-PGD", "margin": f"{steps}-PGD-margin"}.get(loss)


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
    settings: dict[str, Any] = msgspec.to_builtins(config)
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
