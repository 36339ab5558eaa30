"""What there is to draw: records with their rows in groups that may be compared, and the logs of the runs they lie in."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ... import measures
from ...config import TrainConfig
from ...errors import BadFile
from ...measures import Estimate, Outcome
from ...reading import read_bytes
from ...spec import Spec, exact
from ...storage import records
from ...storage.records import Record, Rows
from ...storage.runs import RunFolder
from ..attacks import TOGETHER, attacks_behind
from ..lines import attack_name, conditions, run_name
from ..peers import Setting, by_training, setting_of
from .style import Look
from .words import Model, ball, labels, literal, model_of

NEEDED = ("label", "prediction", "margin", "logit_margin", "loss")
"""Logits are left on the disk: of many records with many classes they would fill the memory."""


@dataclass(frozen=True)
class Undrawn:
    """What is missing from the figures, and why; `skipped` where a file of the user's could not be read."""

    text: str
    hint: str = ""
    skipped: bool = False


@dataclass(frozen=True)
class Measured:
    """The weights of one seed under one attack: their record and its rows."""

    record: Record
    rows: Rows = field(repr=False)

    @property
    def alphas(self) -> list[float]:
        return [row.alpha_test for row in self.record.by_alpha if row.alpha_test is not None]

    def sampled(self, alpha: float | None) -> Outcome | None:
        """What is behind A_sa at one alpha."""
        return measures.sampled_outcome(self.rows, self.record.kernel, alpha)

    @cached_property
    def obstacle(self) -> str:
        """Why there is no A_sa to draw against alpha; empty where there is one."""
        if "uniform/prediction" not in self.rows:
            return "nothing was attacked"
        if "uniform/margin" not in self.rows:
            return "the attack leaves no margins to weigh by"
        if self.sampled(0.0) is None and not any(self.sampled(alpha) for alpha in self.alphas):
            return f"the kernel {self.record.kernel} has no alpha"
        return ""

    @property
    def name(self) -> str:
        """For messages: the run and how it was attacked."""
        return f"{run_name(self.record)} {conditions(self.record)}"


@dataclass(frozen=True)
class Member:
    """A model in a group, trained with one seed or several, and how it is named and drawn in every figure."""

    seeds: tuple[Measured, ...]
    label: str
    look: Look

    @property
    def record(self) -> Record:
        """The first, which speaks for all where they agree."""
        return self.seeds[0].record

    @property
    def alphas(self) -> list[float]:
        """Those of any seed."""
        return sorted({alpha for seed in self.seeds for alpha in seed.alphas})

    def share(self, of: Callable[[Measured], Outcome | None]) -> Estimate | None:
        """A share, of several seeds the mean of those that have it; none where none has."""
        found = [outcome.estimate() for seed in self.seeds if (outcome := of(seed)) is not None]
        return measures.mean_estimate(found) if found else None


@dataclass(frozen=True)
class Group:
    """Models on the same images under the same attack, weighed by the same rule: what may share a panel."""

    facts: dict[str, str]
    members: tuple[Member, ...]

    @property
    def measured(self) -> list[Measured]:
        """Every seed of every model."""
        return [seed for member in self.members for seed in member.seeds]

    @property
    def has_seeds(self) -> bool:
        """Whether some model was trained with several seeds."""
        return any(len(member.seeds) > 1 for member in self.members)

    def keeping(self, wanted: Callable[[Measured], bool]) -> "Group":
        """The group with some of what was measured, and without models of which nothing is left."""
        kept = (replace(member, seeds=tuple(filter(wanted, member.seeds))) for member in self.members)
        return Group(self.facts, tuple(member for member in kept if member.seeds))

    @property
    def dataset(self) -> str:
        """For the names of files: the data set."""
        return Spec.parse(self.members[0].record.dataset.name).short

    @property
    def name(self) -> str:
        """For the names of files: data set, attack and radius."""
        first = self.members[0].record
        return f"{self.dataset}-{Spec.parse(first.attack.spec).short}-{exact(first.threat.eps)}"


@dataclass(frozen=True)
class Training:
    """A run's log with the name and look of its model."""

    folder: Path
    label: str
    look: Look
    config: TrainConfig
    entries: list[dict[str, Any]] = field(repr=False)


@dataclass(frozen=True)
class Material:
    """Everything that the figures are drawn from, and what had to be left out."""

    groups: list[Group]
    trainings: list[Training]
    left_out: list[Undrawn]

    def by_dataset(self) -> Iterator[list[Group]]:
        """The groups on the same images, together."""
        together: dict[Any, list[Group]] = {}
        for group in self.groups:
            together.setdefault(_images(group.members[0].record), []).append(group)
        return iter(together.values())


def gathered(found: Sequence[tuple[Path, Record]]) -> Material:
    """Records to groups, models in the order of their training. One that cannot be read is left out with the reason."""
    found = sorted(found, key=lambda one: _order(one[1]))
    models = {model_of(record): record for _, record in found}
    trained = by_training(models)
    named = labels([[models[model] for model in training] for training in trained])
    drawn = [(label, Look(number)) for number, label in enumerate(named)]
    numbers = {model: number for number, training in enumerate(trained) for model in training}
    left_out: list[Undrawn] = []
    known = {record.id: record for _, record in found}
    sorted_in: dict[Setting, dict[Model, Measured]] = {}
    for file, record in found:
        try:
            rows = _rows(file, record)
        except BadFile as problem:
            left_out.append(Undrawn(str(problem), problem.hint, skipped=True))
            continue
        model, one = model_of(record), Measured(record, rows)
        alike = sorted_in.setdefault(setting_of(record, known), {})
        if model in alike:
            left_out.append(Undrawn(f"{one.name} was evaluated more than once: the record that says most is drawn"))
        alike[model] = max(alike.get(model, one), one, key=_says)
    groups = [Group(_facts(alike, known), tuple(_members(alike, numbers, drawn))) for alike in sorted_in.values()]
    groups.sort(key=lambda group: _place(group.members[0].record))
    return Material(groups, list(_trainings(found, numbers, drawn, left_out)), left_out)


def _members(
    alike: Mapping[Model, Measured], numbers: Mapping[Model, int], drawn: Sequence[tuple[str, Look]]
) -> Iterator[Member]:
    """What was measured alike, the seeds of one training together."""
    seeds: dict[int, list[Measured]] = {}
    for model, one in alike.items():
        seeds.setdefault(numbers[model], []).append(one)
    for number, found in seeds.items():
        yield Member(tuple(found), *drawn[number])


def _order(record: Record) -> tuple[Any, ...]:
    """By defense and how strongly it weighs, the unweighted first; then as the table names them."""
    weights = record.checkpoint
    return weights.defense, weights.kernel, -1.0 if weights.alpha_train is None else weights.alpha_train, run_name(record)


def _place(record: Record) -> tuple[Any, ...]:
    """Panels by data set, attack and radius."""
    return (
        record.dataset.name,
        record.dataset.split,
        -record.dataset.n,
        attack_name(record),
        record.threat.norm,
        record.threat.eps,
    )


def _rows(file: Path, record: Record) -> Rows:
    """A copy of those rows of a record that figures use."""
    rows = records.rows_of(file, record)
    return {name: np.array(rows[name]) for name in rows if name.rpartition("/")[2] in NEEDED or "/log_weight" in name}


def _says(one: Measured) -> tuple[int, int, str]:
    """How much a record knows: at how many alphas, how many rows, how late."""
    return len(one.alphas), len(one.rows), one.record.created


def _images(record: Record) -> tuple[Any, ...]:
    data = record.dataset
    return data.name, data.split, data.sha256, data.n, None if data.indices is None else tuple(data.indices)


def _facts(alike: Mapping[Model, Measured], known: Mapping[str, Record]) -> dict[str, str]:
    """What a reader should know of a group; what all panels share is said once."""
    record = next(iter(alike.values())).record
    behind = attacks_behind(record, known)
    return {
        "data": f"{literal(record.dataset.name)} {literal(record.dataset.split)}, {record.dataset.n} images",
        "attack": literal(f"worst of {TOGETHER.join(behind)}" if behind else attack_name(record)),
        "eps": ball(record.threat.norm, record.threat.eps),
        "seed": f"seed {record.attack.seed}" if record.attack.seed else "",
        "kernel": "" if record.kernel == "exp" else f"kernel {literal(record.kernel)}",
    }


def _trainings(
    found: Sequence[tuple[Path, Record]],
    numbers: Mapping[Model, int],
    drawn: Sequence[tuple[str, Look]],
    left_out: list[Undrawn],
) -> Iterator[Training]:
    """The log of every run that a record lies in, once; named after its last weights where those were evaluated."""
    runs: dict[Path, Record] = {}
    for file, record in found:
        folder = file.absolute().parent.parent
        if (folder / "log.jsonl").is_file() and (folder not in runs or record.checkpoint.path.endswith("last.safetensors")):
            runs[folder] = record
    for folder, record in runs.items():
        try:
            config, entries = TrainConfig.from_json(read_bytes(RunFolder(folder).config)), RunFolder(folder).read_log()
        except (OSError, ValueError, BadFile) as error:
            left_out.append(Undrawn(f"the log of {folder} cannot be read: {error}", "train again", skipped=True))
            continue
        yield Training(folder, *drawn[numbers[model_of(record)]], config, entries)
