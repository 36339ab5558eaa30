"""In what a measurement departs from the paper's, where the two may stand side by side all the same.

The paper's settings are those of the presets `paper/…`: its own numbers and, where it is silent, those of the code it builds on.

The rows of the paper that belong to a user's lines, and the difference to them.
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
from ..reporting.rows import ReportRow, row_name
from ..spec import Spec, format_number, parse_number, scale_exactly
from ..storage.records import Record
from .errata import CorrectedRow, load_corrected_rows
from .results import DATASETS, SHARES

IMAGES = 10_000
RESTARTS = {"authors-eval": 10}
"""Of attacks whose usual number is not 1."""
SCRIPTED = {"cifar10": 0.0031}
"""The step size of the released evaluation, where it is not that of the training log."""
NOT_RECORDED = "settings of training not recorded"
WORDS = {
    "norm": "norm of training", "attack": "attack of training", "steps": "steps of training",
    "step_size": "step size of training", "attack_mode": "mode of the network under attack", "weight_grad": "gradient of weights",
    "normalize": "weights normalised by", "max_weight": "largest weight", "batch_size": "batch size",
    "augment": "augmentation", "optimizer": "optimizer",
    "lr": "learning rate", "momentum": "momentum", "weight_decay": "weight decay", "decay": "decay of",
    "clip_grad": "gradients clipped at", "label_smoothing": "label smoothing", "schedule": "schedule", "milestones": "milestones",
    "gamma": "gamma", "warmup": "warm-up", "eps_ramp": "ramp of ε", "alpha_ramp": "ramp of α", "precision": "precision",
}  # fmt: skip
"""Settings of training that change what comes out, as a reader is told of them."""
ONLY_WITH = {"milestones": "schedule", "gamma": "schedule", "momentum": "optimizer"}
"""Settings that mean nothing where another one differs already."""
CHOSEN = {"best.safetensors": "the best weights", "ema.safetensors": "averaged weights"}


@cache
def paper_settings(dataset: str, defense: str) -> dict[str, Any]:
    """How the paper trained with a defense on a data set, and evaluated."""
    found: dict[str, Any] = msgspec.to_builtins(
        resolve({"preset": f"paper/{dataset}", "defense": defense})
    )
    return found


def list_setting_differences(record: Record, dataset: str, radii: Iterable[float]) -> Iterator[str]:
    """Everything that is known to differ; `radii` are those of training in the paper's rows."""
    facts = record.checkpoint
    defense = Spec.parse(facts.defense)
    usual = paper_settings(dataset, defense.name)
    expected = Spec.parse(usual["model"])
    if not _is_network(facts.model, expected):
        yield f"network {facts.model} for {expected.name}"
    yield from _differ(defense, Spec.parse(usual["defense"]))
    chosen = CHOSEN.get(Path(facts.path).name)
    if chosen is not None:
        yield f"{chosen} for the last"
    if facts.config is None:
        yield NOT_RECORDED
    else:
        stopped = (
            facts.epoch if chosen is None and facts.epoch != facts.config.get("epochs") else None
        )
        yield from _of_training(facts.config, usual, stopped, sorted(set(radii)))
    yield from _of_attack(record, dataset, usual)
    if record.dataset.n != IMAGES:
        yield f"{record.dataset.n} test images for {IMAGES}"


def _is_network(text: str, expected: Spec) -> bool:
    try:
        found = Spec.parse(text)
    except BadInput:  # a name from elsewhere
        return False
    return found.name == expected.name and not any(_differ(found, expected))


def _differ(mine: Spec, theirs: Spec) -> Iterator[str]:
    """Parameters that are given and are not those of the paper."""
    if mine.value is not None:
        yield f"{mine.name} {mine.value}"
    for key, value in mine.params.items():
        usual = theirs.params.get(key)
        if usual is None or not _same(value, usual):
            yield f"{key} {value}" + ("" if usual is None else f" for {usual}")


def _same(value: object, usual: object) -> bool:
    try:
        return parse_number(str(value)) == parse_number(str(usual))
    except BadInput:
        return str(value) == str(usual)


def _of_training(
    own: Mapping[str, Any], usual: Mapping[str, Any], stopped: int | None, radii: list[float]
) -> Iterator[str]:
    epochs = own.get("epochs", usual["epochs"])
    if epochs != usual["epochs"]:
        yield f"{epochs} epochs for {usual['epochs']}"
    if stopped is not None:
        yield f"weights after {stopped} epochs for {epochs}"
    if "eps" in own and own["eps"] not in radii:
        yield f"ε of training {format_number(own['eps'])} for {' or '.join(map(format_number, radii))}"
    different = [name for name in WORDS if name in own and own[name] != usual[name]]
    yield from (
        f"{WORDS[name]} {_text(own[name], name)} for {_text(usual[name], name)}"
        for name in different
        if ONLY_WITH.get(name) not in different
    )


def _text(value: Any, name: str) -> str:
    if value is None:
        return "of the attack's own" if name == "step_size" else "none"
    if isinstance(value, float):
        return format_number(value)
    return "/".join(map(str, value)) or "none" if isinstance(value, list | tuple) else str(value)


def _of_attack(record: Record, dataset: str, usual: Mapping[str, Any]) -> Iterator[str]:
    spec, eps, usual_step = (
        Spec.parse(record.attack.spec),
        record.threat.eps,
        usual["evaluate"]["step_size"],
    )
    restarts = RESTARTS.get(spec.name, 1)
    if record.attack.restarts != restarts:
        yield f"restarts {record.attack.restarts} for {restarts}"
    known = {usual_step, scale_exactly(usual_step, eps, usual["eps"])}
    if spec.name == "authors-eval" and dataset in SCRIPTED:
        known.add(SCRIPTED[dataset])
    given = spec.params.get("step", format_number(_default_step(spec, eps)))
    if not any(_same(given, format_number(step)) for step in known):
        yield f"step size {given} for {format_number(usual_step)}"
    if str(spec.params.get("start", "uniform")) != "uniform":
        yield f"start {spec.params['start']} for uniform"
    if str(spec.params.get("keep", "last")) != "last":
        yield f"the {spec.params['keep']} step for the last"


def _default_step(spec: Spec, eps: float) -> float:
    return (
        eps / 10
        if spec.name == "authors-eval"
        else 2.5 * eps / max(int(str(spec.params["steps"])), 1)
    )


FAMILIES = {"pgd": "PGD", "trades": "TRADES", "free": "AT4Free", "yopo": "YOPO-5-3", "iaat": "IAAT"}
OTHERS = ("digits", "fashion-mnist", "cifar100", "svhn")
"""Data sets that are known not to be the paper's."""
PARAMETERS = {
    "pgd": {"steps", "step", "start", "keep", "loss"},
    "authors-eval": {"steps", "step", "loss"},
}
PARAMETERS["pgd-margin"] = PARAMETERS["pgd"]
"""What the paper's attack has to set; one with anything else is another attack."""


@dataclass(frozen=True)
class PrintedAccuracy:
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

    line: ReportRow
    rows: tuple[CorrectedRow, ...]
    shares: dict[str, PrintedAccuracy]
    setting_differences: tuple[str, ...]

    @property
    def tables(self) -> list[str]:
        """Where the values stand."""
        used = {
            table
            for share in self.shares.values()
            for where in share.values.values()
            for table in where
        }
        return list(dict.fromkeys(made.table for made in self.rows if made.table in used))

    def difference(self, name: str) -> tuple[float, float, float] | None:
        """The line's share minus the paper's, with the interval of the line; the paper gives none."""
        share, printed = self.line.accuracy(name), self.shares[name].value
        return (
            None
            if share is None or printed is None
            else (share.value - printed, share.low - printed, share.high - printed)
        )


def match_rows(lines: Iterable[ReportRow], asked: str) -> list[Match]:
    """Every line that the paper has a row for. `asked` is a data set of the paper, or `auto`: that of each record."""
    made = ((line, dataset) for line in lines if (dataset := _dataset(line, asked)) is not None)
    return [match for line, dataset in made if (match := _match(line, dataset)) is not None]


def _dataset(line: ReportRow, asked: str) -> str | None:
    """Which of the paper's data sets a line is on. Data of your own are what you say they are, others are what they are."""
    own = _name(line.record.dataset.name)
    if own in DATASETS:
        return own if asked in ("auto", "all", own) else None
    return asked if asked in DATASETS and own not in OTHERS else None


def _match(line: ReportRow, dataset: str) -> Match | None:
    method, attack, record = _method(line), _attack(line), line.record
    if (
        method is None
        or attack is None
        or record.kernel != MARGIN_KERNEL
        or record.dataset.split != "test"
    ):
        return None
    alike = [
        made
        for made in load_corrected_rows()
        if made.dataset == dataset
        and (made.family, made.row.alpha_train) == method
        and (made.row.attack, made.row.eps_test) == (attack, record.threat.eps)
    ]
    if not alike:
        return None
    # A_nat and A_rob do not depend on alpha_test, so any row has them
    at_alpha = [
        made
        for made in alike
        if made.row.alpha_test == line.alpha_test and made.row.alpha_test is not None
    ]
    shares = {
        name: _printed(alike if name in ("a_nat", "a_rob") else at_alpha, name) for name in SHARES
    }
    return Match(
        line,
        tuple(alike),
        shares,
        tuple(list_setting_differences(record, dataset, (made.row.eps_train for made in alike))),
    )


def _method(line: ReportRow) -> tuple[str, float | None] | None:
    """Family and alpha of training, none for the baseline; nothing for a method that the paper does not have."""
    facts = line.record.checkpoint
    family = FAMILIES.get(_name(facts.defense))
    if family is None or facts.kernel not in (MARGIN_KERNEL, "none"):
        return None
    return family, (facts.alpha_train or None) if facts.kernel == MARGIN_KERNEL else None


def _attack(line: ReportRow) -> str | None:
    """`20-PGD` or `20-PGD-margin` for an attack of that kind in an Linf ball."""
    record = line.record
    spec = Spec.parse(record.attack.spec)
    loss = spec.params.get("loss", "margin" if spec.name == "pgd-margin" else "ce")
    steps = str(spec.params.get("steps", ""))
    is_other = (
        record.attack.of is not None
        or spec.value is not None
        or not spec.params.keys() <= PARAMETERS.get(spec.name, set())
    )
    if is_other or record.threat.norm != "linf" or not steps.isdecimal():
        return None
    return {"ce": f"{steps}-PGD", "margin": f"{steps}-PGD-margin"}.get(str(loss))


def _printed(rows: Sequence[CorrectedRow], name: str) -> PrintedAccuracy:
    values: dict[float, list[str]] = {}
    reasons: dict[str, None] = {}
    for made in rows:
        value = getattr(made.row, name)
        if value is not None and made.table not in values.setdefault(value, []):
            values[value].append(made.table)
        if name in made.reasons:
            reasons[made.reasons[name]] = None
    return PrintedAccuracy(
        {value: tuple(tables) for value, tables in values.items()}, tuple(reasons)
    )


def _name(text: str) -> str:
    try:
        return Spec.parse(text).name
    except BadInput:
        return text


def describe_setting_differences(match: Match) -> str:
    """The line and in what it departs from the paper, for a note."""
    return f"beside the paper, {row_name(match.line)}: {', '.join(match.setting_differences)}"
