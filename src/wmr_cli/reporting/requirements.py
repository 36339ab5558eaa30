"""Requirements on accuracies, such as `a_rob>=0.45`: read them, and judge records by intervals."""

import math
import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import BadInput, UnknownName, did_you_mean
from ..measures import Estimate, wilson
from ..spec import format_number, parse_number
from ..storage.records import Record
from .rescoring import rescore_file
from .rows import ALL_ACCURACIES, describe_conditions, find_estimate, run_name

UNWEIGHTED = ("a_nat", "a_rob")
EXAMPLE = "a_rob>=0.45,a_sa@2>=30%"
AT_LEAST = ">="
_SYNTAX = re.compile(
    r"(?P<metric>[^\s@<>=]+)\s*(?:@\s*(?P<alpha>[^\s@<>=]+)\s*)?(?P<sign>[<>]=)"
    r"\s*(?P<threshold>[^\s@<>=%]+)\s*(?P<percent>%?)"
)


@dataclass(frozen=True, kw_only=True)
class Requirement:
    """A bound of an accuracy; without alpha, a weighted accuracy has to meet it at every alpha."""

    metric: str
    sign: str
    threshold: float
    alpha: float | None = None

    def __str__(self) -> str:
        alpha = "" if self.alpha is None else f"@{format_number(self.alpha)}"
        return f"{self.metric}{alpha}{self.sign}{100 * self.threshold:.6g}%"

    @property
    def is_weighted(self) -> bool:
        """Whether the accuracy depends on alpha."""
        return self.metric not in UNWEIGHTED

    def is_met(self, estimate: Estimate) -> bool:
        """Return whether the whole interval meets the bound."""
        if self.sign == AT_LEAST:
            return estimate.low >= self.threshold
        return estimate.high <= self.threshold


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A requirement, at the alpha of the estimate, and the record that it was judged on."""

    requirement: Requirement
    record: Record
    estimate: Estimate

    @property
    def is_met(self) -> bool:
        return self.requirement.is_met(self.estimate)


def parse_requirements(texts: Sequence[str]) -> list[Requirement]:
    """Read requirements; each text has one or several, joined by commas."""
    parts = (part.strip() for text in texts for part in text.split(","))
    # a repeated requirement would only repeat its line
    return list(dict.fromkeys(_parse_requirement(part) for part in parts))


def _parse_requirement(text: str) -> Requirement:
    match = _SYNTAX.fullmatch(text)
    if match is None:
        raise BadInput(f"`require`: {text!r} is not a requirement", hint=f"write {EXAMPLE}")
    metric = match["metric"]
    if metric not in ALL_ACCURACIES:
        raise UnknownName(
            f"`require`: {metric!r} is not an accuracy", hint=did_you_mean(metric, ALL_ACCURACIES)
        )
    if match["alpha"] is not None and metric in UNWEIGHTED:
        raise BadInput(
            f"`require`: {ALL_ACCURACIES[metric]} does not depend on alpha",
            hint=f"write {metric}{match['sign']}{match['threshold']}{match['percent']}",
        )
    try:
        alpha = None if match["alpha"] is None else parse_number(match["alpha"])
        # parse_number divides exactly, so that 45% is 0.45
        threshold = parse_number(match["threshold"] + ("/100" if match["percent"] else ""))
    except BadInput as problem:
        raise BadInput(f"`require`: {text!r}: {problem}", hint=f"write {EXAMPLE}") from None
    if alpha is not None and alpha < 0:
        raise BadInput(f"`require`: {text!r}: alpha is negative", hint="alpha is at least 0")
    if not 0 <= threshold <= 1:
        raise BadInput(
            f"`require`: {text!r}: the bound is not between 0 and 1", hint="write 0.45 or 45%"
        )
    return Requirement(metric=metric, sign=match["sign"], threshold=threshold, alpha=alpha)


def judge(
    requirements: Sequence[Requirement], found: Sequence[tuple[Path, Record]]
) -> list[Judgement]:
    """Judge requirements on records with their files; all judgements have to be met.

    The worst case over attacks replaces the records behind it where it has the metric. All other
    records that have the metric count. BadInput is raised if no record of a model, at some norm
    and eps, has it.
    """
    return [
        judgement
        for requirement in requirements
        for judgement in _judge_requirement(requirement, found)
    ]


def _judge_requirement(
    requirement: Requirement, found: Sequence[tuple[Path, Record]]
) -> list[Judgement]:
    judgements = [
        Judgement(
            requirement=replace(requirement, alpha=alpha),
            record=record,
            estimate=_widen(estimate, record.dataset.n),
        )
        for file, record in found
        for alpha, estimate in _find_estimates(requirement, file, record)
    ]
    by_target: dict[Hashable, list[Judgement]] = {}
    for judgement in judgements:
        by_target.setdefault(_find_target(requirement, judgement.record), []).append(judgement)
    for _, record in found:
        if _find_target(requirement, record) not in by_target:
            raise BadInput(
                f"`require`: {requirement} is not measured for {run_name(record)} "
                f"{describe_conditions(record)}",
                hint="evaluate it with that metric and alpha, or judge other records",
            )
    # clean accuracy is the same under every attack
    if requirement.metric == "a_nat":
        return [parts[0] for parts in by_target.values()]
    replaced = {name for judgement in judgements for name in judgement.record.attack.of or ()}
    return [judgement for judgement in judgements if judgement.record.id not in replaced]


def _find_target(requirement: Requirement, record: Record) -> Hashable:
    """Return what a requirement needs a measurement of: a model on images, at a norm and eps."""
    indices = record.dataset.indices
    images = (record.dataset.sha256, None if indices is None else tuple(indices))
    threat = (record.threat.norm, record.threat.eps) if requirement.metric != "a_nat" else None
    return record.checkpoint.sha256, images, threat


def _find_estimates(
    requirement: Requirement, file: Path, record: Record
) -> Iterator[tuple[float | None, Estimate]]:
    """Yield the estimates of a record with their alphas; one of a new alpha comes from the rows."""
    metric = requirement.metric
    alphas: list[float | None] = [requirement.alpha]
    if requirement.is_weighted:
        stored = [row.alpha_test for row in record.by_alpha]
        is_new = requirement.alpha is not None and requirement.alpha not in stored
        if is_new or (metric == "a_cal" and not record.calibration):
            new = None if requirement.alpha is None else [requirement.alpha]
            record = rescore_file(file, record, new, None, calibrated=metric == "a_cal")
        if requirement.alpha is None:
            alphas = [row.alpha_test for row in record.by_alpha]
    for alpha in alphas:
        estimate = find_estimate(record, metric, alpha)
        if estimate is not None:
            yield alpha, estimate


def _widen(estimate: Estimate, images: int) -> Estimate:
    """Return the estimate with Wilson's interval if its own has no width, so means nothing."""
    if not estimate.degenerate:
        return estimate
    # as many equally weighted images have the same variance
    size = images if estimate.ess is None else max(1, math.floor(estimate.ess))
    interval = wilson(round(estimate.value * size), size)
    return Estimate(estimate.value, interval.low, interval.high, estimate.ess)
