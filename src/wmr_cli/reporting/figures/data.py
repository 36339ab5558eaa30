"""Load what figures are drawn from: comparable groups of records with rows, and training logs."""

from collections.abc import Callable, Hashable, Mapping, Sequence
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
from ...spec import Spec, format_number
from ...storage import records
from ...storage.records import Record, Rows
from ...storage.runs import RunFolder
from ..grouping import MeasurementSetting, find_setting
from ..rows import (
    ATTACK_SEPARATOR,
    ModelKey,
    attack_name,
    describe_conditions,
    list_combined_attacks,
    list_trainings,
    model_key,
    run_name,
    training_order,
)
from .look import USUAL_LOOK, FigureLook
from .style import LineStyle, escape_text, label_models, threat_label

RecordFiles = Sequence[tuple[Path, Record]]

# logits stay on disk: those of many records with many classes would fill the memory
NEEDED_ROWS = ("label", "prediction", "margin", "logit_margin", "loss")


@dataclass(frozen=True)
class SkippedFigure:
    """Something that is missing from the figures, with the reason."""

    text: str
    hint: str = ""
    # whether a file of the user could not be read
    is_bad_file: bool = False


@dataclass(frozen=True)
class SeedResult:
    """The evaluation of one training seed under one attack: its record and rows."""

    record: Record
    rows: Rows = field(repr=False)

    @property
    def alphas(self) -> list[float]:
        return [row.alpha_test for row in self.record.by_alpha if row.alpha_test is not None]

    def weighted_outcome(self, alpha: float | None) -> Outcome | None:
        """Return the weights and correctness behind A_sa at one alpha."""
        return measures.sampled_outcome(self.rows, self.record.kernel, alpha)

    @cached_property
    def why_no_a_sa(self) -> str:
        """The reason why A_sa cannot be drawn against alpha; empty where it can."""
        if "uniform/prediction" not in self.rows:
            return "the record has no attack"
        if "uniform/margin" not in self.rows:
            return "the attack does not store margins"
        if not any(self.weighted_outcome(alpha) for alpha in (0.0, *self.alphas)):
            return f"the kernel {self.record.kernel} has no alpha"
        return ""

    @property
    def description(self) -> str:
        """The run and its attack, for messages."""
        return f"{run_name(self.record)} {describe_conditions(self.record)}"


@dataclass(frozen=True)
class FigureModel:
    """A model of a group with its training seeds, its label and its line style."""

    seeds: tuple[SeedResult, ...]
    label: str
    style: LineStyle

    @property
    def record(self) -> Record:
        """The record of the first seed, for facts that all seeds share."""
        return self.seeds[0].record

    @property
    def alphas(self) -> list[float]:
        """The alphas of all seeds."""
        return sorted({alpha for seed in self.seeds for alpha in seed.alphas})

    def estimate(self, outcome_of: Callable[[SeedResult], Outcome | None]) -> Estimate | None:
        """Return the mean accuracy over those seeds that have the outcome; None without any."""
        outcomes = [outcome_of(seed) for seed in self.seeds]
        estimates = [outcome.estimate() for outcome in outcomes if outcome is not None]
        return measures.mean_estimate(estimates) if estimates else None


@dataclass(frozen=True)
class ComparableGroup:
    """Models on the same images, under the same attack and kernel: they may share a panel."""

    facts: dict[str, str]
    models: tuple[FigureModel, ...]

    @property
    def results(self) -> list[SeedResult]:
        """Every seed of every model."""
        return [seed for model in self.models for seed in model.seeds]

    @property
    def has_several_seeds(self) -> bool:
        """Whether some model was trained with several seeds."""
        return any(len(model.seeds) > 1 for model in self.models)

    def keep(self, is_wanted: Callable[[SeedResult], bool]) -> "ComparableGroup":
        """Return the group with the wanted seeds only, without models that lose all of them."""
        models = [
            replace(model, seeds=tuple(seed for seed in model.seeds if is_wanted(seed)))
            for model in self.models
        ]
        return ComparableGroup(self.facts, tuple(model for model in models if model.seeds))

    @property
    def dataset(self) -> str:
        """The dataset's short name, for file names."""
        return Spec.parse(self.models[0].record.dataset.name).short

    @property
    def name(self) -> str:
        """Dataset, attack and radius, for file names."""
        record = self.models[0].record
        attack = Spec.parse(record.attack.spec).short
        return f"{self.dataset}-{attack}-{format_number(record.threat.eps)}"


@dataclass(frozen=True)
class TrainingLog:
    """A run's log with the label and line style of its model."""

    folder: Path
    label: str
    style: LineStyle
    config: TrainConfig
    entries: list[dict[str, Any]] = field(repr=False)


@dataclass(frozen=True)
class FigureData:
    """Everything that the figures are drawn from, and what had to be skipped."""

    groups: list[ComparableGroup]
    training_logs: list[TrainingLog]
    skipped: list[SkippedFigure]
    look: FigureLook = USUAL_LOOK

    def groups_by_dataset(self) -> list[list[ComparableGroup]]:
        """Return the groups in lists that share their images."""
        by_images: dict[Hashable, list[ComparableGroup]] = {}
        for group in self.groups:
            by_images.setdefault(_image_key(group.models[0].record), []).append(group)
        return list(by_images.values())


@dataclass(frozen=True)
class _ModelStyle:
    """Label and line style of a model; training seeds of one model share them."""

    label: str
    style: LineStyle


def load_figure_data(
    found: RecordFiles,
    known: Sequence[Record] = (),
    look: FigureLook = USUAL_LOOK,
) -> FigureData:
    """Read the rows of records and group them; unreadable files are skipped with the reason.

    `known` are further records, which identify the attacks behind a worst case.
    """
    # the order of the files must not change colours: equal records give equal figures
    found = sorted(found, key=lambda pair: training_order(pair[1]))
    styles = _assign_styles(found)
    skipped: list[SkippedFigure] = []
    by_id = {record.id: record for record in (*known, *(record for _, record in found))}
    groups = _group_results(found, by_id, styles, skipped)
    logs = _load_training_logs(found, styles, skipped)
    return FigureData(groups, logs, skipped, look)


def _assign_styles(found: RecordFiles) -> dict[ModelKey, _ModelStyle]:
    first_records = {model_key(record): record for _, record in found}
    trainings = list_trainings(record for _, record in found)
    labels = label_models([[first_records[key] for key in training] for training in trainings])
    return {
        key: _ModelStyle(label, LineStyle(number))
        for number, (training, label) in enumerate(zip(trainings, labels, strict=True))
        for key in training
    }


def _group_results(
    found: RecordFiles,
    known: Mapping[str, Record],
    styles: Mapping[ModelKey, _ModelStyle],
    skipped: list[SkippedFigure],
) -> list[ComparableGroup]:
    """Group records by how they were measured, with one record per checkpoint in a group."""
    by_setting: dict[MeasurementSetting, dict[ModelKey, SeedResult]] = {}
    for file, record in found:
        try:
            result = SeedResult(record, _load_needed_rows(file, record))
        except BadFile as problem:
            skipped.append(SkippedFigure(str(problem), problem.hint, is_bad_file=True))
            continue
        key = model_key(record)
        results = by_setting.setdefault(find_setting(record, known), {})
        if key in results:
            reason = "was evaluated more than once; the most complete record is drawn"
            skipped.append(SkippedFigure(f"{result.description} {reason}"))
            result = max(results[key], result, key=_completeness)
        results[key] = result
    groups = [
        ComparableGroup(_group_facts(results, known), _merge_seeds(results, styles))
        for results in by_setting.values()
    ]
    return sorted(groups, key=lambda group: _panel_order(group.models[0].record))


def _load_needed_rows(file: Path, record: Record) -> Rows:
    rows = records.load_record_rows(file, record)
    # copies, because the rows of a file are views into it
    return {
        name: np.array(rows[name])
        for name in rows
        if name.rpartition("/")[2] in NEEDED_ROWS or "/log_weight" in name
    }


def _completeness(result: SeedResult) -> tuple[int, int, str]:
    """Compare records by their number of alphas, then of rows, then by date."""
    return len(result.alphas), len(result.rows), result.record.created


def _merge_seeds(
    results: Mapping[ModelKey, SeedResult], styles: Mapping[ModelKey, _ModelStyle]
) -> tuple[FigureModel, ...]:
    seeds: dict[_ModelStyle, list[SeedResult]] = {}
    for key, result in results.items():
        seeds.setdefault(styles[key], []).append(result)
    return tuple(
        FigureModel(tuple(members), look.label, look.style) for look, members in seeds.items()
    )


def _panel_order(record: Record) -> tuple[Hashable, ...]:
    """Sort panels by dataset, attack and radius."""
    data = record.dataset
    threat = record.threat
    return data.name, data.split, -data.n, attack_name(record), threat.norm, threat.eps


def _image_key(record: Record) -> Hashable:
    data = record.dataset
    indices = None if data.indices is None else tuple(data.indices)
    return data.name, data.split, data.sha256, data.n, indices


def _group_facts(
    results: Mapping[ModelKey, SeedResult], known: Mapping[str, Record]
) -> dict[str, str]:
    """Describe how a group was measured; "" for what is usual."""
    record = next(iter(results.values())).record
    data = record.dataset
    attacks = list_combined_attacks(record, known)
    attack = f"worst of {ATTACK_SEPARATOR.join(attacks)}" if attacks else attack_name(record)
    return {
        "data": f"{escape_text(data.name)} {escape_text(data.split)}, {data.n} images",
        "attack": escape_text(attack),
        "eps": threat_label(record.threat.norm, record.threat.eps),
        "seed": f"seed {record.attack.seed}" if record.attack.seed else "",
        "kernel": ""
        if record.kernel == measures.MARGIN_KERNEL
        else f"kernel {escape_text(record.kernel)}",
    }


def _load_training_logs(
    found: RecordFiles, styles: Mapping[ModelKey, _ModelStyle], skipped: list[SkippedFigure]
) -> list[TrainingLog]:
    """Read the log of every run folder that holds a record."""
    runs: dict[Path, Record] = {}
    for file, record in found:
        # a record is in `RUN/evaluations/`
        folder = file.absolute().parent.parent
        # label a run by its last checkpoint where that was evaluated
        is_last = record.checkpoint.path.endswith("last.safetensors")
        if (folder / "log.jsonl").is_file() and (folder not in runs or is_last):
            runs[folder] = record
    logs = []
    for folder, record in runs.items():
        run = RunFolder(folder)
        try:
            config = TrainConfig.from_json(read_bytes(run.config))
            entries = run.read_log()
        except (OSError, ValueError, BadFile) as error:
            text = f"the log of {folder} cannot be read: {error}"
            skipped.append(SkippedFigure(text, "train again", is_bad_file=True))
            continue
        look = styles[model_key(record)]
        logs.append(TrainingLog(folder, look.label, look.style, config, entries))
    return logs
