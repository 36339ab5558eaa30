"""Group records: those that may be compared, and the training seeds of one model."""

import json
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from ..storage.records import Record

K = TypeVar("K", bound=Hashable)

# records of one checkpoint in one measurement setting, for example at different alphas
ModelRecords = tuple[Record, ...]

# the unit of ranking: models that differ at most in their training seed
SeedGroup = tuple[ModelRecords, ...]

# checkpoints whose epoch may differ between seeds; all others are identified by their epoch
WEIGHTS_CHOSEN_BY_NAME = ("best.safetensors", "ema.safetensors")


class MeasurementSetting(NamedTuple):
    """What must be equal before two numbers may be compared."""

    data: Hashable
    eps: float
    norm: str
    attack: Hashable
    kernel: str


@dataclass(frozen=True)
class ComparisonGroup:
    """Models on the same images, with the same threat, attack, attack seed and kernel."""

    setting: MeasurementSetting
    entries: tuple[SeedGroup, ...]

    @property
    def records(self) -> list[Record]:
        return [record for entry in self.entries for model in entry for record in model]


def group_by_setting(
    records: Iterable[Record], known: Iterable[Record] = ()
) -> list[ComparisonGroup]:
    """Group comparable records, in the order of their first record.

    `known` are further records, which identify the attacks behind a worst case.
    """
    all_records = list(records)
    by_id = {record.id: record for record in (*known, *all_records)}
    by_setting: dict[MeasurementSetting, list[Record]] = {}
    for record in all_records:
        by_setting.setdefault(find_setting(record, by_id), []).append(record)
    return [
        ComparisonGroup(setting, tuple(_group_seeds(members)))
        for setting, members in by_setting.items()
    ]


def find_setting(record: Record, known: Mapping[str, Record]) -> MeasurementSetting:
    """Return how a record was measured.

    `known` holds records by id; they identify the attacks behind a worst case.
    """
    # the hash of a dataset does not change with the subset that was evaluated
    indices = None if record.dataset.indices is None else tuple(record.dataset.indices)
    return MeasurementSetting(
        data=(record.dataset.sha256, indices),
        eps=record.threat.eps,
        norm=record.threat.norm,
        attack=_attack_key(record, known),
        kernel=record.kernel,
    )


def list_differing_fields(settings: Sequence[MeasurementSetting]) -> list[str]:
    """Return the names of the fields that are not equal in all settings."""
    return [
        name
        for name in MeasurementSetting._fields
        if len({getattr(setting, name) for setting in settings}) > 1
    ]


def group_by_training(models: Mapping[K, Record]) -> list[list[K]]:
    """Group models that differ at most in their training seed; each has one of its records.

    A second checkpoint with the same settings and seed gets a group of its own: the two differ in
    something that the settings do not record.
    """
    groups: dict[Hashable, list[list[K]]] = {}
    seen_seeds: set[tuple[Hashable, int]] = set()
    for model, record in models.items():
        key = _training_key(record) or model
        seeds = groups.setdefault(key, [[]])
        if (key, record.checkpoint.seed) in seen_seeds:
            seeds.append([model])
        else:
            seeds[0].append(model)
            seen_seeds.add((key, record.checkpoint.seed))
    return [group for seeds in groups.values() for group in seeds]


def _group_seeds(records: Sequence[Record]) -> Iterator[SeedGroup]:
    """Group comparable records by checkpoint, and checkpoints by training settings."""
    by_checkpoint: dict[str, list[Record]] = {}
    for record in records:
        by_checkpoint.setdefault(record.checkpoint.sha256, []).append(record)
    # records of one checkpoint share its training settings, so that any of them will do
    first_records = {sha256: members[0] for sha256, members in by_checkpoint.items()}
    for training in group_by_training(first_records):
        yield tuple(tuple(by_checkpoint[sha256]) for sha256 in training)


def _attack_key(record: Record, known: Mapping[str, Record]) -> Hashable:
    attack = record.attack
    if attack.of is None:
        key = (attack.spec, attack.restarts, attack.seed)
        return key if attack.draws is None else (*key, attack.draws, attack.draw_rule)
    # the ids differ between models, the attacks behind them need not
    if all(name in known for name in attack.of):
        return "worst", tuple(sorted(str(_attack_key(known[name], {})) for name in attack.of))
    return "worst", tuple(attack.of)


def _training_key(record: Record) -> Hashable | None:
    """Return all training settings but the seed; None if they are not recorded."""
    checkpoint = record.checkpoint
    if checkpoint.config is None:
        return None
    # every setting counts, also those that should not matter: better two rows than a wrong mean
    settings = {key: value for key, value in checkpoint.config.items() if key != "seed"}
    name = Path(checkpoint.path).name
    weights = name if name in WEIGHTS_CHOSEN_BY_NAME else checkpoint.epoch
    return json.dumps(settings, sort_keys=True), weights
