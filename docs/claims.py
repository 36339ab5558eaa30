"""The paper's claims put to stored records: what was found for each, and a plain verdict, by the arithmetic of `wmr report`."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from wmr_cli import measures
from wmr_cli.reporting.comparisons import Comparison
from wmr_cli.reporting.lines import SHARES
from wmr_cli.reporting.ranking import Gap
from wmr_cli.spec import Spec, exact
from wmr_cli.storage import records
from wmr_cli.storage.records import Record
from wmr_cli.workflows.report import Gathered, assembled

Found = Sequence[tuple[Path, Record]]
Members = Mapping[int, tuple[Path, Record]]
"""Records of one training by its seeds."""
HOLDS, FAILS, OPEN, UNSEEN = "holds", "does not hold", "not distinguishable", "no loss seen"
ALONE = "one seed, no verdict"
LEAST = 0.01
"""A claim that nothing is lost holds where a loss of more than this share is ruled out."""
ALPHA = 2.0
"""At which A_sa is put to the test of the scale of logits."""


@dataclass(frozen=True)
class Finding:
    """One claim about one defense: what was found, with intervals in percentage points, and the verdict."""

    claim: str
    about: str
    found: str
    verdict: str


def findings(found: Found) -> Iterator[Finding]:
    """Every claim that these records have something to say about."""
    yield from ordered(found)
    for defense in defenses(found):
        mine = of_defense(found, defense)
        is_alone = min(map(len, by_alpha(mine).values())) < 2
        yield from (replace(finding, verdict=ALONE) if is_alone else finding for finding in about(mine, defense))


def about(mine: Found, defense: str) -> Iterator[Finding]:
    """The claims about one defense."""
    yield from gains(mine, "pgd", ("a_sa", "a_tr"), "A_sa and A_tr rise with α_train", defense)
    yield from losses(mine, defense)
    yield from gains(mine, "pgd-margin", ("a_rob",), "A_rob gains under PGD-margin", defense)
    yield from gains(mine, "pgd-margin", ("a_sa",), "A_sa gains under PGD-margin", defense)
    yield from gains(mine, "autoattack", ("a_rob",), "A_rob gains under AutoAttack", defense)
    for loss in ("ce", "margin"):
        yield from worst_cases(mine, loss, defense)
    yield from scale(mine, defense)


def defenses(found: Found) -> list[str]:
    """Those that were trained with and without weights."""
    alphas: dict[str, set[float | None]] = {}
    for _, record in found:
        alphas.setdefault(name_of(record), set()).add(record.checkpoint.alpha_train)
    return [name for name, values in alphas.items() if 0.0 in values and len(values) > 1]


def name_of(record: Record) -> str:
    """The defense without its parameters."""
    return Spec.parse(record.checkpoint.defense).name


def of_defense(found: Found, defense: str) -> list[tuple[Path, Record]]:
    """The records of one defense in the ball that it was trained for, unweighted training first: it is the reference."""
    mine = [one for one in found if name_of(one[1]) == defense and is_own_ball(one[1]) and one[1].attack.of is None]
    return sorted(mine, key=lambda one: one[1].checkpoint.alpha_train or 0.0)


def is_own_ball(record: Record) -> bool:
    """Whether eps of the test is eps of the training."""
    return record.threat.eps == (record.checkpoint.config or {}).get("eps")


def under(found: Found, attack: str) -> list[tuple[Path, Record]]:
    """The records of one attack, with the usual number of steps where there are several."""
    mine = [one for one in found if Spec.parse(one[1].attack.spec).name == attack]
    fewest = min((int(Spec.parse(record.attack.spec).params.get("steps", 0)) for _, record in mine), default=0)
    return [one for one in mine if int(Spec.parse(one[1].attack.spec).params.get("steps", 0)) == fewest]


def ordered(found: Found) -> Iterator[Finding]:
    """A_tr is no more than A_sa, which is no more than A_rob: in every record, at every alpha_test."""
    claims = {"A_sa ≤ A_rob": 0.0, "A_tr ≤ A_sa": 0.0}
    broken, total = dict.fromkeys(claims, 0), dict.fromkeys(claims, 0)
    for _, record in found:
        for row in record.by_alpha if record.a_rob is not None and record.attack.of is None else ():
            pairs = {"A_sa ≤ A_rob": (row.a_sa, record.a_rob), "A_tr ≤ A_sa": (row.a_tr, row.a_sa)}
            for claim, (less, more) in pairs.items():
                if less is not None and more is not None:
                    total[claim] += 1
                    broken[claim] += less.value > more.value
                    claims[claim] = max(claims[claim], less.value - more.value)
    for claim, most in claims.items():
        if total[claim]:
            kept = total[claim] - broken[claim]
            text = f"in {kept} of {total[claim]} lines" + (f"; at most {points(most)} the other way" if broken[claim] else "")
            yield Finding(claim, "all records", text, HOLDS if kept == total[claim] else FAILS)


def compared(found: Found) -> list[Comparison]:
    """Every weighted training against the unweighted one, by pairs of images and over seeds."""
    document, problems = assembled(Gathered(list(found), []), compare=True)
    assert not problems, problems
    return list(document.comparisons or ())


def gains(found: Found, attack: str, names: Sequence[str], claim: str, defense: str) -> Iterator[Finding]:
    """Whether shares are higher with weights than without."""
    for name in names:
        gaps = {label(made, name): made.gaps[name] for made in compared(under(found, attack)) if name in made.gaps}
        if gaps:
            said = claim if len(names) == 1 else f"{SHARES[name]} rises with α_train"
            yield Finding(said, defense, listed(gaps), verdict_on(gaps.values()))


def losses(found: Found, defense: str) -> Iterator[Finding]:
    """Whether weights cost anything against an attacker who does not choose."""
    gaps = {label(made, "a_rob"): made.gaps["a_rob"] for made in compared(under(found, "pgd")) if "a_rob" in made.gaps}
    if gaps:
        yield Finding("no loss of A_rob under the uniform attack", defense, listed(gaps), verdict_on_loss(gaps.values()))


def verdict_on_loss(gaps: Collection[Gap]) -> str:
    """That no loss was told from 0 does not say that there is none: intervals must rule out one that matters."""
    if any(gap.is_distinguishable and gap.images.value < 0 for gap in gaps):
        return FAILS
    lowest = min(min(gap.images.low, gap.images.low if gap.seeds is None else gap.seeds[0]) for gap in gaps)
    is_ruled_out = lowest > -LEAST and not any(gap.images.rests_on_few for gap in gaps)
    return HOLDS if is_ruled_out else UNSEEN


def verdict_on(gaps: Iterable[Gap]) -> str:
    """A gain holds where every difference is told from 0 and positive."""
    return verdict_of([(gap.is_distinguishable, gap.images.value > 0) for gap in gaps])


def verdict_of(signs: Sequence[tuple[bool, bool]]) -> str:
    """Of differences that are told from chance or not, and have the sign of the claim or not."""
    told = [is_more for is_told, is_more in signs if is_told]
    if not all(told):
        return FAILS
    if len(told) == len(signs):
        return HOLDS
    return f"holds in {len(told)} of {len(signs)}, otherwise {OPEN}" if told else OPEN


def label(made: Comparison, name: str) -> str:
    """`α 2, α_test 1`, without the second where it does not matter."""
    trained = f"α {exact(made.line.record.checkpoint.alpha_train or 0.0)}"
    alpha = None if name in ("a_nat", "a_rob") else made.line.alpha_test
    return trained if alpha is None else f"{trained}, α_test {exact(alpha)}"


def listed(gaps: Mapping[str, Gap]) -> str:
    """Every difference with its interval over images, and over seeds where there are several."""
    return "; ".join(f"{name}: {difference(gap)}" for name, gap in gaps.items())


def difference(gap: Gap) -> str:
    """`+1.2 [+0.3, +2.1], seeds [-0.2, +2.6]`."""
    images = gap.images
    seeds = "" if gap.seeds is None else f", seeds {interval(gap.seeds)}"
    return f"{points(images.value)} {interval((images.low, images.high))}{seeds}"


def points(value: float) -> str:
    """A share in percentage points, with its sign."""
    return f"{100 * value:+.1f}"


def interval(ends: tuple[float, float]) -> str:
    """`[+0.3, +2.1]`."""
    return f"[{points(ends[0])}, {points(ends[1])}]"


def by_alpha(found: Found) -> Mapping[float, Members]:
    """By alpha of training and seed."""
    made: dict[float, dict[int, tuple[Path, Record]]] = {}
    for file, record in found:
        made.setdefault(record.checkpoint.alpha_train or 0.0, {})[record.checkpoint.seed] = file, record
    return made


def worst_cases(found: Found, loss: str, defense: str) -> Iterator[Finding]:
    """Whether the worst case in a ball is better with weights, at every radius."""
    with_it = [one for one in found if one[1].dro and one[1].dro[0].attack_loss == loss]
    trained = by_alpha(under(with_it, "pgd" if loss == "ce" else "pgd-margin"))
    for alpha in sorted(set(trained) - {0.0}) if 0.0 in trained else ():
        for what, sign in {"loss": -1, "accuracy": 1}.items():
            radii = list(dict.fromkeys(row.rho for _, record in trained[0.0].values() for row in record.dro))
            told = {rho: _better(trained[alpha], trained[0.0], what, rho, sign) for rho in radii}
            better, worse = ([is_told for is_better, is_told in told.values() if is_better is side] for side in (True, False))
            text = f"α {exact(alpha)}: better at {len(better)} of {len(radii)} radii, at {sum(better)} beyond the spread of seeds"
            text += f"; worse at {len(worse)}, at {sum(worse)} beyond it" if worse else ""
            name = {"ce": "cross-entropy", "margin": "margin"}[loss]
            signs = [(is_told, is_better) for is_better, is_told in told.values()]
            yield Finding(f"DRO: {what} of the worst case by {name}", defense, text, verdict_of(signs))


def _better(these: Members, others: Members, what: str, rho: float, sign: int) -> tuple[bool, bool]:
    """Whether the mean over seeds is better at this radius, and whether that is more than the spread of seeds."""
    mine, base = (
        {seed: getattr(row, what) for seed, (_, record) in side.items() for row in record.dro if row.rho == rho}
        for side in (these, others)
    )
    ends = measures.seeds_interval(mine, base)
    return sign * (fmean(mine.values()) - fmean(base.values())) > 0, ends is not None and not ends[0] <= 0 <= ends[1]


def scale(found: Found, defense: str) -> Iterator[Finding]:
    """Whether the gain in A_sa is more than another scale of the logits, which changes no decision."""
    trained = by_alpha(under(found, "pgd"))
    rows = {alpha: {seed: records.rows_of(*one) for seed, one in members.items()} for alpha, members in trained.items()}
    for alpha in sorted(set(rows) - {0.0}) if 0.0 in rows else ():
        pair = {of: rows[of] for of in (0.0, alpha)}
        ranked = {of: {seed: measures.ranked_accuracy(each, ALPHA).value for seed, each in pair[of].items()} for of in pair}
        plain = {of: {seed: measures.tempered_accuracy(each, ALPHA, 1.0).value for seed, each in pair[of].items()} for of in pair}
        moved = {
            temperature: fmean(measures.tempered_accuracy(each, ALPHA, temperature).value for each in rows[0.0].values())
            - fmean(plain[0.0].values())
            for temperature in (0.5, 2.0)
        }
        gained, by_rank = (fmean(side[alpha].values()) - fmean(side[0.0].values()) for side in (plain, ranked))
        ends = measures.seeds_interval(ranked[alpha], ranked[0.0])
        text = (
            f"α {exact(alpha)}: A_sa(2) {points(gained)} by margins, {points(by_rank)} by their ranks"
            + ("" if ends is None else f", seeds {interval(ends)}")
            + f"; dividing the logits of unweighted networks by 0.5 or 2 moves it by {points(moved[0.5])} or {points(moved[2.0])}"
        )
        is_told = ends is not None and not ends[0] <= 0 <= ends[1]
        verdict = OPEN if not is_told else HOLDS if by_rank > 0 else FAILS
        yield Finding("the gain in A_sa is more than a change of scale", defense, text, verdict)
