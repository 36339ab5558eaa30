"""Judged requirements as a table, as lines and for JSON."""

from collections.abc import Sequence
from typing import Any

from ..requirements import Judgement
from ..rows import AttackNames, attack_name, describe_conditions, eps_name, run_name
from .formatting import format_estimate
from .text_table import TextTable

HEADINGS = ("requirement", "verdict", "measured", "run", "attack", "ε", "record")
CAPTION = (
    "percent, with 95 % intervals over test images; a requirement is met if the whole interval "
    "meets it"
)


def make_requirement_table(judgements: Sequence[Judgement], attacks: AttackNames) -> TextTable:
    """Make a table with a row per judgement."""
    records = [judgement.record for judgement in judgements]
    return TextTable(
        headings=HEADINGS,
        rows=[
            (
                str(judgement.requirement),
                _verdict(judgement),
                format_estimate(judgement.estimate),
                run_name(judgement.record),
                attacks.name(judgement.record),
                eps_name(judgement.record),
                judgement.record.id,
            )
            for judgement in judgements
        ],
        caption=CAPTION,
        title="requirements",
        text_columns=("requirement", "verdict", "run", "attack", "record"),
        shared_columns=("run", "attack", "ε", "record"),
        interval_columns=("measured",),
        notes=attacks.notes(records),
    )


def describe_judgement(judgement: Judgement) -> str:
    """Return a line such as `not met: a_rob>=0.5: 42.1 [39, 45] of NAME under pgd, ε 0.15`."""
    record = judgement.record
    return (
        f"{_verdict(judgement)}: {judgement.requirement}: {format_estimate(judgement.estimate)} "
        f"of {run_name(record)} {describe_conditions(record)} (record {record.id})"
    )


def judgements_to_json(judgements: Sequence[Judgement]) -> list[dict[str, Any]]:
    """Return the judgements for JSON, each with the id of its record."""
    return [
        {
            "requirement": str(judgement.requirement),
            "met": judgement.is_met,
            "metric": judgement.requirement.metric,
            "alpha_test": judgement.requirement.alpha,
            "sign": judgement.requirement.sign,
            "threshold": judgement.requirement.threshold,
            "value": judgement.estimate.value,
            "low": judgement.estimate.low,
            "high": judgement.estimate.high,
            "run": run_name(judgement.record),
            "attack": attack_name(judgement.record),
            "eps": judgement.record.threat.eps,
            "norm": judgement.record.threat.norm,
            "record": judgement.record.id,
        }
        for judgement in judgements
    ]


def _verdict(judgement: Judgement) -> str:
    return "met" if judgement.is_met else "not met"
