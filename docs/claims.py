"""The paper's claims put to stored records: what was found for each, and a plain verdict, by the arithmetic of `wmr report`."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from judging import (
    ALONE,
    FAILS,
    HOLDS,
    OPEN,
    Finding,
    Found,
    alpha_of,
    by_alpha,
    is_own_ball,
    listed,
    name_of,
    points,
    trained_with,
    under,
    verdict_on,
    verdict_on_loss,
    weighted,
)
from scale import scale, worst_cases

from wmr_cli import measures
from wmr_cli.measures import Difference, Resampled
from wmr_cli.reporting.ranking import Comparison, Gap
from wmr_cli.reporting.report import GatheredRecords, build_report
from wmr_cli.reporting.rows import ACCURACIES
from wmr_cli.spec import format_number
from wmr_cli.storage import records
from wmr_cli.storage.records import Record

Attacks = dict[str, tuple[Path, Record]]
"""Records of one network, by attack."""
ORDERS = {
    "A_sa ≤ A_rob (a theorem)": ("A_sa", "A_rob"), "A_tr ≤ A_sa": ("A_tr", "A_sa"), "A_tr ≤ A_rob": ("A_tr", "A_rob"),
}  # fmt: skip


def findings(found: Found) -> Iterator[Finding]:
    """Every claim that these records have something to say about."""
    for defense in defenses(found):
        mine = trained_with(found, defense)
        yield from ordered(mine, defense)
        own = [one for one in mine if is_own_ball(one[1])]
        is_alone = any(len(members) < 2 for members in by_alpha(own).values())
        yield from (
            replace(finding, verdict=ALONE) if is_alone else finding
            for finding in about(own, defense)
        )


def about(mine: Found, defense: str) -> Iterator[Finding]:
    """The claims about what weights do, in the ball of the training."""
    for name in ("a_sa", "a_tr"):
        yield from gains(mine, "pgd", name, f"{ACCURACIES[name]} is higher with weights", defense)
    for name in ("a_sa", "a_tr"):
        yield from rises(
            mine, name, f"{ACCURACIES[name]} rises from one α_train to the next", defense
        )
    yield from losses(mine, "a_rob", "no loss of A_rob under the uniform attack", defense)
    yield from losses(mine, "a_nat", "no loss of A_nat", defense)
    yield from gains(mine, "pgd-margin", "a_rob", "A_rob gains under PGD-margin", defense)
    yield from gains(mine, "pgd-margin", "a_sa", "A_sa gains under PGD-margin", defense)
    yield from gains(mine, "autoattack", "a_rob", "A_rob gains under AutoAttack", defense)
    yield from against_all(mine, defense)
    for loss in ("ce", "margin"):
        yield from worst_cases(mine, loss, defense)
    for attack in ("pgd", "pgd-margin"):
        yield from scale(mine, attack, defense)


def defenses(found: Found) -> list[str]:
    """Those that were trained with and without weights."""
    names = dict.fromkeys(name_of(record) for _, record in found)
    return [name for name in names if weighted(by_alpha(trained_with(found, name)))]


def ordered(found: Found, defense: str) -> Iterator[Finding]:
    """A_tr is no more than A_sa, and neither is more than A_rob: in every record, at every alpha_test."""
    total, broken = (
        dict.fromkeys(ORDERS, 0),
        {claim: list[tuple[float, Difference]]() for claim in ORDERS},
    )
    for file, record in found:
        for row in record.by_alpha:
            shares = {"A_rob": record.a_rob, "A_sa": row.a_sa, "A_tr": row.a_tr}
            for claim, names in ORDERS.items():
                less, more = (shares[name] for name in names)
                if less is not None and more is not None:
                    total[claim] += 1
                    if less.value > more.value:
                        broken[claim].append(
                            (alpha_of(record), breach(file, record, row.alpha_test, names))
                        )
    for claim, breaches in broken.items():
        if total[claim]:
            told = sum(each.is_distinguishable and each.value > 0 for _, each in breaches)
            text = f"in {total[claim] - len(breaches)} of {total[claim]} lines"
            if breaches:
                trained = ", ".join(
                    f"α {format_number(alpha)}"
                    for alpha in sorted({alpha for alpha, _ in breaches})
                )
                most = points(max(each.value for _, each in breaches))
                text += f"; with {trained} at most {most} the other way, beyond chance in {told}"
            yield Finding(claim, defense, text, FAILS if told else OPEN if breaches else HOLDS)


def breach(file: Path, record: Record, alpha: float | None, names: tuple[str, str]) -> Difference:
    """By how much one share of a record is more than another, with its interval over the images of both."""
    rows = records.load_record_rows(file, record)
    behind = {
        "A_rob": measures.plain_outcome(rows, "uniform"),
        "A_sa": measures.sampled_outcome(rows, record.kernel, alpha),
        "A_tr": measures.crafted_outcome(rows, record.kernel, alpha),
    }
    less, more = measures.Resamples(len(rows["label"])).of(
        [outcome for name in names if (outcome := behind[name]) is not None]
    )
    return less.minus(more)


def compared(found: Found, reference: float = 0.0) -> list[Comparison]:
    """Every other training against that of one alpha, by pairs of images and over seeds."""
    document, problems = build_report(GatheredRecords(list(found), []), compare=True)
    assert not problems, problems
    return [
        made for made in document.comparisons or ()
        if alpha_of(made.reference.record) == reference != alpha_of(made.row.record)
    ]  # fmt: skip


def gaps_of(found: Found, name: str, reference: float = 0.0) -> dict[str, Gap]:
    """The differences in one share, by what was trained and at which alpha_test."""
    return {
        label(made, name): made.gaps[name]
        for made in compared(found, reference)
        if name in made.gaps
    }


def gains(found: Found, attack: str, name: str, claim: str, defense: str) -> Iterator[Finding]:
    """Whether a share is higher with weights than without."""
    gaps = gaps_of(under(found, attack), name)
    if gaps:
        yield Finding(claim, defense, listed(gaps), verdict_on(gaps.values()))


def rises(found: Found, name: str, claim: str, defense: str) -> Iterator[Finding]:
    """Whether a share rises from each alpha of training to the next, where there are several above 0."""
    usual, gaps = under(found, "pgd"), dict[str, Gap]()
    for low, high in pairwise(weighted(by_alpha(usual))):
        both = [one for one in usual if alpha_of(one[1]) in (low, high)]
        gaps |= {
            f"{text}, after α {format_number(low)}": gap
            for text, gap in gaps_of(both, name, reference=low).items()
        }
    if gaps:
        yield Finding(claim, defense, listed(gaps), verdict_on(gaps.values()))


def losses(found: Found, name: str, claim: str, defense: str) -> Iterator[Finding]:
    """Whether weights cost anything where nobody chooses."""
    gaps = gaps_of(under(found, "pgd"), name)
    if gaps:
        yield Finding(claim, defense, listed(gaps), verdict_on_loss(gaps.values()))


def label(made: Comparison, name: str) -> str:
    """`α 2, α_test 1`, without the second where it does not matter."""
    trained = f"α {format_number(alpha_of(made.row.record))}"
    alpha = None if name in ("a_nat", "a_rob") else made.row.alpha_test
    return trained if alpha is None else f"{trained}, α_test {format_number(alpha)}"


def against_all(found: Found, defense: str) -> Iterator[Finding]:
    """Whether more images survive every attack that a training with weights and one without have met, of those on most images."""
    most = max(record.dataset.n for _, record in found)
    met: dict[float, dict[int, Attacks]] = {}
    for file, record in found:
        if record.dataset.n == most:
            trained = met.setdefault(alpha_of(record), {})
            trained.setdefault(record.checkpoint.seed, {})[record.attack.spec] = file, record
    gaps: dict[str, Gap] = {}
    for alpha in weighted(met):
        sides = met[alpha], met[0.0]
        shared = sorted(
            set.intersection(*(set(attacks) for side in sides for attacks in side.values()))
        )
        if len(shared) > 1:
            gaps[f"α {format_number(alpha)}, {', '.join(shared)}"] = _gap(
                *(_survivors(side, shared, most) for side in sides)
            )
    if gaps:
        yield Finding(
            "A_rob gains under the worst of all attacks",
            defense,
            listed(gaps),
            verdict_on(gaps.values()),
        )


def _survivors(
    trained: Mapping[int, Attacks], attacks: list[str], images: int
) -> dict[int, Resampled]:
    """The share of images that withstand all of these attacks, by seed of training."""
    worst = [
        measures.worst_rows([records.load_record_rows(*met[attack]) for attack in attacks])
        for met in trained.values()
    ]
    outcomes = [measures.Outcome(measures.correct(rows, "uniform")) for rows in worst]
    return dict(zip(trained, measures.Resamples(images).of(outcomes), strict=True))


def _gap(these: Mapping[int, Resampled], others: Mapping[int, Resampled]) -> Gap:
    mine, base = ({seed: share.value for seed, share in side.items()} for side in (these, others))
    over_images = measures.mean_of(list(these.values())).minus(
        measures.mean_of(list(others.values()))
    )
    return Gap(over_images, measures.seeds_interval(mine, base))
