"""Check the paper's claims against stored records, with the arithmetic of `wmr report`."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from logit_scale import check_scale, check_worst_cases
from verdicts import (
    FAILS,
    HOLDS,
    INDISTINGUISHABLE,
    SINGLE_SEED,
    Finding,
    RecordFile,
    RecordFiles,
    alpha_train,
    defense_name,
    format_gaps,
    format_points,
    group_by_alpha,
    has_training_eps,
    judge_gain,
    judge_no_loss,
    select_attack,
    select_defense,
    weighted_alphas,
)
from wmr_cli import measures
from wmr_cli.measures import Difference, Resampled
from wmr_cli.reporting.comparison import Comparison, Gap
from wmr_cli.reporting.report import GatheredRecords, build_report
from wmr_cli.reporting.rows import ACCURACIES
from wmr_cli.spec import format_number
from wmr_cli.storage import records
from wmr_cli.storage.records import Record

RecordsByAttack = dict[str, RecordFile]
"""Records of one model by attack."""
ORDERS = {
    "A_sa ≤ A_rob (a theorem)": ("A_sa", "A_rob"),
    "A_tr ≤ A_sa": ("A_tr", "A_sa"),
    "A_tr ≤ A_rob": ("A_tr", "A_rob"),
}
WORST_CASE_CLAIM = "A_rob gains under the worst case over attacks"


def check_claims(found: RecordFiles) -> Iterator[Finding]:
    """Yield a finding for each claim that these records can decide."""
    for defense in weighted_defenses(found):
        of_defense = select_defense(found, defense)
        yield from check_orders(of_defense, defense)
        of_training_eps = [one for one in of_defense if has_training_eps(one[1])]
        groups = group_by_alpha(of_training_eps)
        has_single_seed = any(len(members) < 2 for members in groups.values())
        for finding in check_weighting(of_training_eps, defense):
            if has_single_seed:
                finding = replace(finding, verdict=SINGLE_SEED)
            yield finding


def check_weighting(found: RecordFiles, defense: str) -> Iterator[Finding]:
    """Yield findings on the effect of weighted training, at the eps of training."""
    for name in ("a_sa", "a_tr"):
        claim = f"{ACCURACIES[name]} is higher with weights"
        yield from check_gain(found, "pgd", name, claim, defense)
    for name in ("a_sa", "a_tr"):
        claim = f"{ACCURACIES[name]} rises from one α_train to the next"
        yield from check_rise(found, name, claim, defense)
    yield from check_no_loss(found, "a_rob", "no loss of A_rob under the uniform attack", defense)
    yield from check_no_loss(found, "a_nat", "no loss of A_nat", defense)
    yield from check_gain(found, "pgd-margin", "a_rob", "A_rob gains under PGD-margin", defense)
    yield from check_gain(found, "pgd-margin", "a_sa", "A_sa gains under PGD-margin", defense)
    yield from check_gain(found, "autoattack", "a_rob", "A_rob gains under AutoAttack", defense)
    yield from check_all_attacks(found, defense)
    for loss in ("ce", "margin"):
        yield from check_worst_cases(found, loss, defense)
    for attack in ("pgd", "pgd-margin"):
        yield from check_scale(found, attack, defense)


def weighted_defenses(found: RecordFiles) -> list[str]:
    """Return the defenses that were trained both with and without weights."""
    names = dict.fromkeys(defense_name(record) for _, record in found)
    return [name for name in names if weighted_alphas(group_by_alpha(select_defense(found, name)))]


def check_orders(found: RecordFiles, defense: str) -> Iterator[Finding]:
    """Check A_tr ≤ A_sa ≤ A_rob in each record and at each alpha_test."""
    totals = dict.fromkeys(ORDERS, 0)
    breaches: dict[str, list[tuple[float, Difference]]] = {claim: [] for claim in ORDERS}
    for file, record in found:
        for row in record.by_alpha:
            accuracies = {"A_rob": record.a_rob, "A_sa": row.a_sa, "A_tr": row.a_tr}
            for claim, names in ORDERS.items():
                lower, upper = (accuracies[name] for name in names)
                if lower is None or upper is None:
                    continue
                totals[claim] += 1
                if lower.value > upper.value:
                    difference = measure_breach(file, record, row.alpha_test, names)
                    breaches[claim].append((alpha_train(record), difference))
    for claim, total in totals.items():
        if total:
            yield _order_finding(claim, defense, total, breaches[claim])


def _order_finding(
    claim: str, defense: str, total: int, breaches: list[tuple[float, Difference]]
) -> Finding:
    text = f"in {total - len(breaches)} of {total} lines"
    if not breaches:
        return Finding(claim, defense, text, HOLDS)
    significant = sum(each.is_distinguishable and each.value > 0 for _, each in breaches)
    alphas = sorted({alpha for alpha, _ in breaches})
    trained = ", ".join(f"α {format_number(alpha)}" for alpha in alphas)
    largest = format_points(max(each.value for _, each in breaches))
    text += f"; with {trained} at most {largest} the other way, significant in {significant}"
    return Finding(claim, defense, text, FAILS if significant else INDISTINGUISHABLE)


def measure_breach(
    file: Path, record: Record, alpha: float | None, names: tuple[str, str]
) -> Difference:
    """Return the difference of two accuracies of a record, with its interval over images."""
    rows = records.load_record_rows(file, record)
    outcomes = {
        "A_rob": measures.plain_outcome(rows, "uniform"),
        "A_sa": measures.sampled_outcome(rows, record.kernel, alpha),
        "A_tr": measures.crafted_outcome(rows, record.kernel, alpha),
    }
    present = [outcome for name in names if (outcome := outcomes[name]) is not None]
    lower, upper = measures.Resamples(len(rows["label"])).of(present)
    return lower.minus(upper)


def compare(found: RecordFiles, reference: float = 0.0) -> list[Comparison]:
    """Compare each training with that of one alpha, by pairs of images and over seeds."""
    document, problems = build_report(GatheredRecords(list(found), []), compare=True)
    assert not problems, problems
    return [
        comparison
        for comparison in document.comparisons or ()
        if alpha_train(comparison.reference.record) == reference
        and alpha_train(comparison.row.record) != reference
    ]


def measure_gaps(found: RecordFiles, name: str, reference: float = 0.0) -> dict[str, Gap]:
    """Return the differences in one accuracy, by alpha of training and alpha_test."""
    return {
        format_alphas(comparison, name): comparison.gaps[name]
        for comparison in compare(found, reference)
        if name in comparison.gaps
    }


def check_gain(
    found: RecordFiles, attack: str, name: str, claim: str, defense: str
) -> Iterator[Finding]:
    """Check whether an accuracy is higher with weights."""
    gaps = measure_gaps(select_attack(found, attack), name)
    if gaps:
        yield Finding(claim, defense, format_gaps(gaps), judge_gain(gaps.values()))


def check_rise(found: RecordFiles, name: str, claim: str, defense: str) -> Iterator[Finding]:
    """Check whether an accuracy rises from each positive alpha of training to the next."""
    of_pgd = select_attack(found, "pgd")
    gaps: dict[str, Gap] = {}
    for low, high in pairwise(weighted_alphas(group_by_alpha(of_pgd))):
        both = [one for one in of_pgd if alpha_train(one[1]) in (low, high)]
        for text, gap in measure_gaps(both, name, reference=low).items():
            gaps[f"{text}, after α {format_number(low)}"] = gap
    if gaps:
        yield Finding(claim, defense, format_gaps(gaps), judge_gain(gaps.values()))


def check_no_loss(found: RecordFiles, name: str, claim: str, defense: str) -> Iterator[Finding]:
    """Check that weighted training does not lower an unweighted accuracy."""
    gaps = measure_gaps(select_attack(found, "pgd"), name)
    if gaps:
        yield Finding(claim, defense, format_gaps(gaps), judge_no_loss(gaps.values()))


def format_alphas(comparison: Comparison, name: str) -> str:
    """Return text such as `α 2, α_test 1`. Unweighted accuracies have no alpha_test."""
    trained = f"α {format_number(alpha_train(comparison.row.record))}"
    alpha = comparison.row.alpha_test
    if alpha is None or name in ("a_nat", "a_rob"):
        return trained
    return f"{trained}, α_test {format_number(alpha)}"


def check_all_attacks(found: RecordFiles, defense: str) -> Iterator[Finding]:
    """Check whether more images withstand all attacks that both trainings were tested with.

    Attacks on fewer images than the largest test are left out.
    """
    images = max(record.dataset.n for _, record in found)
    by_alpha: dict[float, dict[int, RecordsByAttack]] = {}
    for file, record in found:
        if record.dataset.n == images:
            by_seed = by_alpha.setdefault(alpha_train(record), {})
            by_seed.setdefault(record.checkpoint.seed, {})[record.attack.spec] = file, record
    gaps: dict[str, Gap] = {}
    for alpha in weighted_alphas(by_alpha):
        weighted = by_alpha[alpha]
        unweighted = by_alpha[0.0]
        attack_sets = [set(of) for side in (weighted, unweighted) for of in side.values()]
        shared = sorted(set.intersection(*attack_sets))
        if len(shared) > 1:
            gaps[f"α {format_number(alpha)}, {', '.join(shared)}"] = _survival_gap(
                _survival(weighted, shared, images), _survival(unweighted, shared, images)
            )
    if gaps:
        yield Finding(WORST_CASE_CLAIM, defense, format_gaps(gaps), judge_gain(gaps.values()))


def _survival(
    by_seed: Mapping[int, RecordsByAttack], attacks: list[str], images: int
) -> dict[int, Resampled]:
    """Return the fraction of images that withstand all of these attacks, by training seed."""
    worst = [
        measures.worst_rows([records.load_record_rows(*of[attack]) for attack in attacks])
        for of in by_seed.values()
    ]
    outcomes = [measures.Outcome(measures.is_correct(rows, "uniform")) for rows in worst]
    return dict(zip(by_seed, measures.Resamples(images).of(outcomes), strict=True))


def _survival_gap(weighted: Mapping[int, Resampled], unweighted: Mapping[int, Resampled]) -> Gap:
    over_images = measures.mean_of(list(weighted.values())).minus(
        measures.mean_of(list(unweighted.values()))
    )
    over_seeds = measures.seeds_interval(
        {seed: resampled.value for seed, resampled in weighted.items()},
        {seed: resampled.value for seed, resampled in unweighted.items()},
    )
    return Gap(over_images, over_seeds)
