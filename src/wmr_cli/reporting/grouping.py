"""Which records may be compared, and which are one model trained with several seeds."""

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from ..storage.records import Record

K = TypeVar("K", bound=Hashable)
ModelRecords = tuple[Record, ...]
"""Records of the same weights, measured alike; at different alphas, for example."""
SeedGroup = tuple[ModelRecords, ...]
"""What is ranked: one model, or several that differ in nothing but the seed of their training."""
CHOSEN = ("best.safetensors", "ema.safetensors")
"""Weights of a run that are told by their name; all others by their epoch."""


class MeasurementSetting(NamedTuple):
    """What must be equal before two numbers may be compared. Fields are named as a reader is told of them."""

    data: Hashable
    eps: float
    norm: str
    attack: Hashable
    kernel: str


@dataclass(frozen=True)
class ComparisonGroup:
    """Entries that were measured alike: the same images, the same ball, the same attack down to its seed, the same kernel."""

    setting: MeasurementSetting
    entries: tuple[SeedGroup, ...]

    @property
    def records(self) -> list[Record]:
        return [record for entry in self.entries for model in entry for record in model]


def group_by_setting(records: Iterable[Record]) -> list[ComparisonGroup]:
    """All records among their peers, in the order of their first."""
    listed = list(records)
    known = {record.id: record for record in listed}
    found: dict[MeasurementSetting, list[Record]] = {}
    for record in listed:
        found.setdefault(find_setting(record, known), []).append(record)
    return [
        ComparisonGroup(setting, tuple(_entries(members))) for setting, members in found.items()
    ]


def find_setting(record: Record, known: Mapping[str, Record]) -> MeasurementSetting:
    """How a record was measured. A worst case is told by the attacks behind it, where those are `known`, too."""
    indices = None if record.dataset.indices is None else tuple(record.dataset.indices)
    return MeasurementSetting(
        data=(record.dataset.sha256, indices),
        eps=record.threat.eps,
        norm=record.threat.norm,
        attack=_attack(record, known),
        kernel=record.kernel,
    )


def differing(settings: Sequence[MeasurementSetting]) -> list[str]:
    """In what the settings differ, in words: `["eps", "attack"]`."""
    return [
        name
        for name in MeasurementSetting._fields
        if len({getattr(setting, name) for setting in settings}) > 1
    ]


def single(records: Iterable[Record]) -> list[SeedGroup]:
    """Every record by itself."""
    return [((record,),) for record in records]


def _attack(record: Record, known: Mapping[str, Record]) -> Hashable:
    facts = record.attack
    if facts.of is None:
        return facts.spec, facts.restarts, facts.seed
    if all(name in known for name in facts.of):
        return "worst", tuple(sorted(str(_attack(known[name], {})) for name in facts.of))
    return "worst", tuple(facts.of)


def _entries(records: Sequence[Record]) -> Iterable[SeedGroup]:
    """Records measured alike, taken together by their weights and then by all of their training but its seed."""
    models: dict[str, list[Record]] = {}
    for record in records:
        models.setdefault(record.checkpoint.sha256, []).append(record)
    for training in group_by_training({sha256: members[0] for sha256, members in models.items()}):
        yield tuple(tuple(models[sha256]) for sha256 in training)


def group_by_training(models: Mapping[K, Record]) -> list[list[K]]:
    """Models, each told by one of its records, that differ in nothing but the seed of their training, together.

    Other weights of a seed that is there stand alone: they differ in something that the settings do not tell.
    """
    found: dict[Hashable, list[list[K]]] = {}
    taken: set[tuple[Hashable, int]] = set()
    for model, record in models.items():
        how = _recipe(record) or model
        together, *_ = alike = found.setdefault(how, [[]])
        if (how, record.checkpoint.seed) in taken:
            alike.append([model])
        else:
            together.append(model)
            taken.add((how, record.checkpoint.seed))
    return [models for alike in found.values() for models in alike]


def _recipe(record: Record) -> Hashable | None:
    """How the weights came about apart from the seed; none where the record does not tell."""
    facts = record.checkpoint
    if facts.config is None:
        return None
    name = Path(facts.path).name
    settings = {key: value for key, value in facts.config.items() if key != "seed"}
    return json.dumps(settings, sort_keys=True), name if name in CHOSEN else facts.epoch
