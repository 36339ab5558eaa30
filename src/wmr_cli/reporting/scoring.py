"""Rows to the numbers of a record: accuracies, the worst case in a ball, classes, repetitions. No torch: `report` asks too.

What stored rows say of several models on the same images. Arithmetic only: no torch, no attack.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from .. import measures
from ..config import EvaluateConfig
from ..errors import BadFile
from ..measures import Estimate, Outcome, Resampled, Resamples
from ..storage import records
from ..storage.records import (
    AlphaRow,
    ClassAlphaRow,
    ClassRow,
    DroRow,
    Record,
    RepeatAlphaRow,
    RepeatRow,
    Rows,
)
from .grouping import ComparisonGroup
from .ranking import list_compared_groups

OutcomeKey = TypeVar("OutcomeKey", bound=Hashable)
Alphas = Sequence[float | None]
Mask = NDArray[np.bool_]
Outcomes = dict[tuple[str, float | None], Outcome | None]
"""By metric and alpha: `("sa", 2.0)`, `("rob", None)`."""


class Scores(NamedTuple):
    """Everything in a record that follows from its rows."""

    a_nat: Estimate | None
    a_rob: Estimate | None
    by_alpha: list[AlphaRow]
    dro: list[DroRow]
    per_class: list[ClassRow]


def scores(
    rows: Rows, config: EvaluateConfig, alphas: Alphas, class_names: Mapping[int, str | None]
) -> Scores:
    """What `config` asks of the rows, and nothing else; an alpha of None belongs to a kernel without one."""
    outcomes = compute_outcomes(rows, config, alphas)
    found = estimate_outcomes(outcomes, config.ci, config.seed)
    return Scores(
        a_nat=found["nat", None],
        a_rob=found["rob", None],
        by_alpha=[
            AlphaRow(alpha_test=alpha, a_sa=found["sa", alpha], a_tr=found["tr", alpha])
            for alpha in _alphas_of(outcomes)
        ],
        dro=score_dro(rows, config) if "dro" in config.metrics else [],
        per_class=score_classes(rows, config, _alphas_of(outcomes), class_names)
        if config.per_class
        else [],
    )


def compute_outcomes(rows: Rows, config: EvaluateConfig, alphas: Alphas) -> Outcomes:
    """What is behind A_nat, A_rob, and A_sa and A_tr at each alpha; None for what was not asked for or is not to be had."""
    asked, kernel = set(config.metrics), config.kernel
    outcomes: Outcomes = {
        ("nat", None): measures.plain_outcome(rows, "clean"),
        ("rob", None): measures.plain_outcome(rows, "uniform") if "rob" in asked else None,
    }
    for alpha in alphas if asked & {"sa", "tr"} else ():
        outcomes["sa", alpha] = (
            measures.sampled_outcome(rows, kernel, alpha) if "sa" in asked else None
        )
        outcomes["tr", alpha] = (
            measures.crafted_outcome(rows, kernel, alpha) if "tr" in asked else None
        )
    return outcomes


def _alphas_of(outcomes: Outcomes) -> list[float | None]:
    return [alpha for name, alpha in outcomes if name == "sa"]


def estimate_outcomes(
    outcomes: Mapping[OutcomeKey, Outcome | None], ci: str, seed: int
) -> dict[OutcomeKey, Estimate | None]:
    """Each outcome with its interval, by formula or by resampling; None stays None."""
    there = {name: outcome for name, outcome in outcomes.items() if outcome is not None}
    if ci == "bootstrap" and there:
        made = dict(zip(there, measures.bootstrap(list(there.values()), seed), strict=True))
    else:
        made = {name: outcome.estimate() for name, outcome in there.items()}
    return {name: made.get(name) for name in outcomes}


def score_dro(rows: Rows, config: EvaluateConfig) -> list[DroRow]:
    """The worst case at every radius; nothing where the rows hold no such loss, or one without bounds."""
    losses = measures.attacked_losses(rows, config.dro_loss)
    if losses is None or not np.isfinite(losses).all():
        return []
    right = measures.correct(rows, "uniform")
    return [
        DroRow(
            rho=worst.rho,
            attack_loss=config.dro_loss,
            loss=worst.value,
            accuracy=worst.accuracy(right),
            worst_accuracy=measures.worst_accuracy(right, worst.rho),
            ess=worst.ess,
            zero_weights=worst.zero_weights,
            unique=worst.is_unique,
        )
        for worst in measures.worst_cases(
            losses, measures.RHOS if config.rho is None else config.rho
        )
    ]


def score_classes(
    rows: Rows, config: EvaluateConfig, alphas: Alphas, names: Mapping[int, str | None]
) -> list[ClassRow]:
    """Every class that has images, by itself. Intervals come from formulas: resampling cannot reach so far into the tails."""
    clean = measures.plain_outcome(rows, "clean")
    if clean is None:
        return []
    attacked = measures.plain_outcome(rows, "uniform") if "rob" in config.metrics else None
    sampled = {alpha: measures.sampled_outcome(rows, config.kernel, alpha) for alpha in alphas}
    labels = np.unique(rows["label"])
    made = []
    for label in labels.tolist():
        members = rows["label"] == label
        judged = (attacked or clean).among(members).correct
        made.append(
            ClassRow(
                label=label,
                name=names.get(label),
                n=int(members.sum()),
                a_nat=clean.among(members).estimate(),
                a_rob=None if attacked is None else attacked.among(members).estimate(),
                joint=measures.wilson(int(judged.sum()), len(judged), looks=len(labels)),
                by_alpha=[_of_class(alpha, outcome, members) for alpha, outcome in sampled.items()],
            )
        )
    return made


def _of_class(alpha: float | None, outcome: Outcome | None, members: Mask) -> ClassAlphaRow:
    if outcome is None or outcome.log_weights is None:
        return ClassAlphaRow(alpha_test=alpha, a_sa=None, share=None)
    share = float(measures.normalized_weights(outcome.log_weights)[members].sum())
    has_weight = bool((outcome.log_weights[members] > -np.inf).any())
    return ClassAlphaRow(
        alpha_test=alpha,
        a_sa=outcome.among(members).estimate() if has_weight else None,
        share=share,
    )


def score_repeat(rows: Rows, config: EvaluateConfig, alphas: Alphas, seed: int) -> RepeatRow:
    """The values that one seed of the attack gave."""
    outcomes = compute_outcomes(rows, config, alphas)
    value = {
        name: None if outcome is None else outcome.estimate().value
        for name, outcome in outcomes.items()
    }
    return RepeatRow(
        seed=seed,
        a_rob=value["rob", None],
        by_alpha=[
            RepeatAlphaRow(alpha_test=alpha, a_sa=value["sa", alpha], a_tr=value["tr", alpha])
            for alpha in _alphas_of(outcomes)
        ],
    )


def rescore(
    record: Record,
    rows: Rows,
    config: EvaluateConfig,
    alphas: Alphas | None,
    rhos: Sequence[float] | None = None,
) -> Record:
    """The record at other alphas and radii, by arithmetic; `config` is what `stored_config` says of it."""
    if rhos is not None and (record.attack.of is None or record.dro):
        # of the worst of several attacks the image of lowest margin is kept, which need not be that of largest loss
        config = msgspec.structs.replace(config, rho=tuple(rhos))
        record = msgspec.structs.replace(record, dro=score_dro(rows, config))
    if alphas is not None:
        found = scores(rows, config, alphas, {row.label: row.name for row in record.per_class})
        record = msgspec.structs.replace(record, by_alpha=found.by_alpha, per_class=found.per_class)
    return record


def keep_scoring_rows(rows: Rows, *, comparing: bool = False) -> Rows:
    """What a repetition's values follow from: right or wrong, margins, log-weights and what they may come from."""
    kept = ("index", "label", "prediction", "margin", *(("logits", "loss") if comparing else ()))
    return {
        name: values
        for name, values in rows.items()
        if not name.startswith("clean/")
        and (name.rpartition("/")[2] in kept or "/log_weight" in name)
    }


def stored_config(file: Path, record: Record) -> EvaluateConfig:
    """What the record answers, as far as it concerns arithmetic; every accuracy that its rows allow."""
    stored: dict[str, Any] = {
        name: record.config[name] for name in ("ci", "dro_loss") if name in record.config
    }
    try:
        return msgspec.convert(
            {
                **stored,
                "kernel": record.kernel,
                "seed": record.attack.seed,
                "per_class": bool(record.per_class),
                "metrics": ("nat", "rob", "sa", "tr"),
            },
            EvaluateConfig,
        )
    except msgspec.ValidationError as error:
        raise BadFile(
            f"{file} has a config that this version does not know: {error}", hint="update wmr"
        ) from None


AccuracyKey = tuple[str, str, float | None]
"""Id of a record, name of a share, alpha."""


@dataclass(frozen=True)
class ResampledRecords:
    """Every share of every record in every resample of its images, and the records whose rows cannot be used."""

    accuracies: dict[AccuracyKey, Resampled] = field(default_factory=dict)
    problems: list[BadFile] = field(default_factory=list)


def resample_groups(
    found: Iterable[ComparisonGroup], files: Mapping[str, Path], *, compare: bool
) -> ResampledRecords:
    """The evidence of all group among which there is anything to tell apart.

    To `compare`, the seeds of one model are such, too, and a record needs its rows; otherwise it may make do without.
    """
    made = ResampledRecords()
    drawn: dict[int, Resamples] = {}
    for group in found:
        if len(list_compared_groups(group) if compare else group.entries) < 2:
            continue
        outcomes = _outcomes(group.records, files, made.problems, needs_rows=compare)
        if outcomes:
            images = len(next(iter(outcomes.values())).correct)
            resamples = drawn.setdefault(images, Resamples(images))
            made.accuracies.update(
                zip(outcomes, resamples.of(list(outcomes.values())), strict=True)
            )
    return made


def _outcomes(
    members: Sequence[Record],
    files: Mapping[str, Path],
    problems: list[BadFile],
    *,
    needs_rows: bool,
) -> dict[AccuracyKey, Outcome]:
    """What is behind every share of records measured alike, image by image in one order."""
    index = None
    made: dict[AccuracyKey, Outcome] = {}
    for record in {record.id: record for record in members}.values():
        file = files[record.id]
        try:
            rows = _in_order(records.load_record_rows(file, record))
            index = rows["index"] if index is None else index
            if not np.array_equal(rows["index"], index):
                raise BadFile(
                    f"the rows of {file} are of other images than it says", hint="evaluate again"
                )
            made |= _of_record(record, rows, file)
        except BadFile as problem:
            # a record may travel without its rows; what is there and cannot be read is said
            if needs_rows or records.rows_path(file).exists():
                problems.append(problem)
    return made


def _in_order(rows: Rows) -> Rows:
    """Rows by the index of their images: they are joined by it, never by position."""
    if (np.diff(rows["index"]) > 0).all():
        return rows
    order = np.argsort(rows["index"], kind="stable")
    return {name: values[order] for name, values in rows.items()}


def _of_record(record: Record, rows: Rows, file: Path) -> dict[AccuracyKey, Outcome]:
    alphas = [row.alpha_test for row in record.by_alpha]
    outcomes = compute_outcomes(rows, stored_config(file, record), alphas)
    return {
        (record.id, f"a_{name}", alpha): outcome
        for (name, alpha), outcome in outcomes.items()
        if outcome is not None
    }
