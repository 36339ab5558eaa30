"""Separate what weighted training with TRADES changes: β, the logit scale, the choice of images.

TRADES multiplies the weights by β, so weights of mean w train with β · w. Two controls keep one of
the two fixed: training without weights at that β, and training with weights of mean 1.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from verdicts import (
    RecordFiles,
    alpha_train,
    defense_name,
    format_gap,
    has_training_eps,
    select_attack,
)
from wmr_cli.reporting.comparison import Comparison
from wmr_cli.reporting.report import GatheredRecords, build_report
from wmr_cli.reporting.rescoring import rescore_file
from wmr_cli.spec import Spec, format_number
from wmr_cli.storage.records import Record

ALPHA = 2.0
"""The alpha of training and of the test."""
ATTACKS = {"pgd": "PGD", "pgd-margin": "PGD-margin"}
ACCURACY_NAMES = {
    "a_nat": "A_nat",
    "a_rob": "A_rob",
    "a_sa": "A_sa(2)",
    "a_cal": "A_cal(2)",
}


@dataclass(frozen=True)
class Training:
    """What distinguishes the trainings of a study and its controls."""

    alpha: float
    beta: float
    is_normalized: bool

    @classmethod
    def of(cls, record: Record) -> "Training":
        """Return the training behind a record of TRADES."""
        beta = Spec.parse(record.checkpoint.defense).params["beta"]
        config = record.checkpoint.config or {}
        return cls(alpha_train(record), float(str(beta)), config.get("normalize") == "batch")

    def __str__(self) -> str:
        text = f"β {format_number(self.beta)}, "
        if self.is_normalized:
            return f"{text}α {format_number(self.alpha)} with mean weight 1"
        return text + (f"α {format_number(self.alpha)}" if self.alpha else "no weights")


def tabulate_controls(found: RecordFiles) -> Iterator[tuple[str, ...]]:
    """Yield a row for each attack and difference, with the accuracies of `ACCURACY_NAMES`."""
    trades = [
        one
        for one in found
        if has_training_eps(one[1])
        and one[1].attack.of is None
        and defense_name(one[1]) == "trades"
    ]
    for attack, label in ATTACKS.items():
        of_attack = select_attack(trades, attack)
        for effect, training, reference in list_contrasts(of_attack):
            comparison = compare_trainings(of_attack, training, reference)
            cells = [describe_gap(comparison, name) for name in ACCURACY_NAMES]
            yield label, effect, f"{training} against {reference}", *cells


def list_contrasts(found: RecordFiles) -> list[tuple[str, Training, Training]]:
    """Return which trainings to compare, and what differs between them."""
    trainings = {Training.of(record) for _, record in found}
    weighted = next(one for one in trainings if one.alpha == ALPHA and not one.is_normalized)
    normalized = next(one for one in trainings if one.alpha == ALPHA and one.is_normalized)
    unweighted = Training(0.0, weighted.beta, is_normalized=False)
    same_beta = next(one for one in trainings if one.alpha == 0 and one.beta < weighted.beta)
    return [
        ("both", weighted, unweighted),
        ("β", same_beta, unweighted),
        ("choice of images", weighted, same_beta),
        ("choice of images", normalized, unweighted),
    ]


def compare_trainings(found: RecordFiles, training: Training, reference: Training) -> Comparison:
    """Compare two trainings over all their seeds at one alpha of the test."""
    # `wmr report` takes the first one as the reference
    sides = [
        (file, rescore_file(file, record, None, None, calibrated=True))
        for side in (reference, training)
        for file, record in found
        if Training.of(record) == side
    ]
    document, problems = build_report(GatheredRecords(sides, []), compare=True)
    assert not problems, problems
    (comparison,) = (one for one in document.comparisons or () if one.row.alpha_test == ALPHA)
    return comparison


def describe_gap(comparison: Comparison, name: str) -> str:
    """Return a difference with its intervals, in bold if it is significant."""
    gap = comparison.gaps.get(name)
    if gap is None:
        return "-"
    return f"**{format_gap(gap)}**" if gap.is_distinguishable else format_gap(gap)
