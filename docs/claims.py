"""The paper's claims put to stored records: what was found for each, and a plain verdict, by the arithmetic of `wmr report`."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from wmr_cli import measures
from wmr_cli.measures import Difference
from wmr_cli.reporting.comparisons import Comparison
from wmr_cli.reporting.lines import SHARES
from wmr_cli.reporting.ranking import Gap
from wmr_cli.spec import Spec, exact
from wmr_cli.storage import records
from wmr_cli.storage.records import Record, Rows
from wmr_cli.workflows.report import Gathered, assembled

Found = Sequence[tuple[Path, Record]]
Members = Mapping[int, tuple[Path, Record]]
"""Records of one training by its seeds."""
HOLDS, FAILS, OPEN = "holds", "does not hold", "not distinguishable"
ALONE, ALL = "one seed, no verdict", "all records"
LEAST = 0.01
"""A claim that nothing is lost holds where a loss of more than this share is ruled out."""
ORDERS = {
    "A_sa ≤ A_rob (a theorem)": ("A_sa", "A_rob"), "A_tr ≤ A_sa": ("A_tr", "A_sa"), "A_tr ≤ A_rob": ("A_tr", "A_rob"),
}  # fmt: skip
WEIGHED_BY = {"ce": "cross-entropy", "margin": "margin"}
ALPHA = 2.0
"""At which A_sa is put to the test of the scale of logits."""


@dataclass(frozen=True)
class Finding:
    """One claim about one defense: what was found, with intervals in percentage points, and the verdict."""

    claim: str
    about: str
    """A defense, or all records of the study."""
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
    yield from losses(mine, "a_rob", "no loss of A_rob under the uniform attack", defense)
    yield from losses(mine, "a_nat", "no loss of A_nat", defense)
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
    """The records of one attack, of the usual effort on the most images where there are several."""

    def effort(record: Record) -> tuple[int, int, int]:
        return int(Spec.parse(record.attack.spec).params.get("steps", 0)), record.attack.restarts, -record.dataset.n

    mine = [one for one in found if Spec.parse(one[1].attack.spec).name == attack]
    usual = min((effort(record) for _, record in mine), default=None)
    return [one for one in mine if effort(one[1]) == usual]


def ordered(found: Found) -> Iterator[Finding]:
    """A_tr is no more than A_sa, and neither is more than A_rob: in every record, at every alpha_test."""
    total, broken = dict.fromkeys(ORDERS, 0), {claim: list[Difference]() for claim in ORDERS}
    for file, record in found:
        for row in record.by_alpha if record.attack.of is None else ():
            shares = {"A_rob": record.a_rob, "A_sa": row.a_sa, "A_tr": row.a_tr}
            for claim, names in ORDERS.items():
                less, more = (shares[name] for name in names)
                if less is not None and more is not None:
                    total[claim] += 1
                    broken[claim] += [breach(file, record, row.alpha_test, names)] if less.value > more.value else []
    for claim, breaches in broken.items():
        if total[claim]:
            told = sum(each.is_distinguishable and each.value > 0 for each in breaches)
            text = f"in {total[claim] - len(breaches)} of {total[claim]} lines"
            if breaches:
                text += f"; at most {points(max(each.value for each in breaches))} the other way, beyond chance in {told}"
            yield Finding(claim, ALL, text, FAILS if told else OPEN if breaches else HOLDS)


def breach(file: Path, record: Record, alpha: float | None, names: tuple[str, str]) -> Difference:
    """By how much one share of a record is more than another, with its interval over the images of both."""
    rows = records.rows_of(file, record)
    behind = {
        "A_rob": measures.plain_outcome(rows, "uniform"),
        "A_sa": measures.sampled_outcome(rows, record.kernel, alpha),
        "A_tr": measures.crafted_outcome(rows, record.kernel, alpha),
    }
    less, more = measures.Resamples(len(rows["label"])).of([outcome for name in names if (outcome := behind[name]) is not None])
    return less.minus(more)


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
            said = claim if len(names) == 1 else f"{SHARES[name]} rises with α_train, against 0"
            yield Finding(said, defense, listed(gaps), verdict_on(gaps.values()))


def losses(found: Found, name: str, claim: str, defense: str) -> Iterator[Finding]:
    """Whether weights cost anything where nobody chooses."""
    gaps = {label(made, name): made.gaps[name] for made in compared(under(found, "pgd")) if name in made.gaps}
    if gaps:
        yield Finding(claim, defense, listed(gaps), verdict_on_loss(gaps.values()))


def verdict_on_loss(gaps: Collection[Gap]) -> str:
    """That no loss was told from 0 does not say that there is none: intervals must rule out one that matters."""
    if any(gap.is_distinguishable and gap.images.value < 0 for gap in gaps):
        return FAILS
    lowest = min(min(gap.images.low, gap.images.low if gap.seeds is None else gap.seeds[0]) for gap in gaps)
    is_ruled_out = lowest > -LEAST and not any(gap.images.rests_on_few for gap in gaps)
    return HOLDS if is_ruled_out else OPEN


def verdict_on(gaps: Iterable[Gap]) -> str:
    """A gain holds where every difference is told from 0 and positive."""
    return verdict_of([(gap.is_distinguishable, gap.images.value > 0) for gap in gaps])


def verdict_of(signs: Sequence[tuple[bool, bool]]) -> str:
    """Of differences that are told from chance or not, and have the sign of the claim or not."""
    told = [is_more for is_told, is_more in signs if is_told]
    gained, lost = told.count(True), told.count(False)
    if lost:
        return f"{FAILS} in {lost} of {len(signs)}, {HOLDS} in {gained}" if gained else FAILS
    if gained == len(signs):
        return HOLDS
    return f"{HOLDS} in {gained} of {len(signs)}" if gained else OPEN


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
    """By alpha of training and seed; of records that were measured alike there is one for each."""
    made: dict[float, dict[int, tuple[Path, Record]]] = {}
    for file, record in found:
        made.setdefault(record.checkpoint.alpha_train or 0.0, {})[record.checkpoint.seed] = file, record
    return made


def comparable(trained: Mapping[float, Members]) -> list[float]:
    """The alphas of training with weights, where there is one without."""
    return sorted(set(trained) - {0.0}) if 0.0 in trained else []


def worst_cases(found: Found, loss: str, defense: str) -> Iterator[Finding]:
    """Whether the worst case in a ball is better with weights, at every radius."""
    with_it = [one for one in found if one[1].dro and one[1].dro[0].attack_loss == loss]
    trained = by_alpha(under(with_it, "pgd" if loss == "ce" else "pgd-margin"))
    alphas = comparable(trained)
    for what, sign in {"loss": -1, "accuracy": 1}.items() if alphas else ():
        radii = dict.fromkeys(row.rho for _, record in trained[0.0].values() for row in record.dro)
        told = {alpha: [_better(trained[alpha], trained[0.0], what, rho, sign) for rho in radii] for alpha in alphas}
        claim = f"DRO: {what} of the worst case by {WEIGHED_BY[loss]}"
        text = "; ".join(f"α {exact(alpha)}: {_at_radii(signs)}" for alpha, signs in told.items())
        yield Finding(claim, defense, text, verdict_of([sign for signs in told.values() for sign in signs]))


def _at_radii(signs: Sequence[tuple[bool, bool]]) -> str:
    """`better at 7 of 8 radii, at 6 beyond the spread of seeds; worse at 1, at 1 beyond it`."""
    better, worse = ([is_told for is_told, is_better in signs if is_better is side] for side in (True, False))
    text = f"better at {len(better)} of {len(signs)} radii, at {sum(better)} beyond the spread of seeds"
    return text + (f"; worse at {len(worse)}, at {sum(worse)} beyond it" if worse else "")


def _better(these: Members, others: Members, what: str, rho: float, sign: int) -> tuple[bool, bool]:
    """Whether a difference at this radius is more than the spread of seeds, and whether it is for the better."""
    mine, base = (
        {seed: getattr(row, what) for seed, (_, record) in side.items() for row in record.dro if row.rho == rho}
        for side in (these, others)
    )
    ends = measures.seeds_interval(mine, base)
    return _leaves_out_zero(ends), sign * (fmean(mine.values()) - fmean(base.values())) > 0


def _leaves_out_zero(ends: tuple[float, float] | None) -> bool:
    return ends is not None and not ends[0] <= 0 <= ends[1]


def scale(found: Found, defense: str) -> Iterator[Finding]:
    """Whether the gain in A_sa is more than another scale of the logits, which changes no decision."""
    trained = by_alpha(under(found, "pgd"))
    rows = {alpha: {seed: records.rows_of(*one) for seed, one in members.items()} for alpha, members in trained.items()}
    told = {alpha: _beyond_scale(rows[alpha], rows[0.0]) for alpha in comparable(trained)}
    if told:
        text = "; ".join(f"α {exact(alpha)}: {said}" for alpha, (said, _) in told.items())
        verdict = verdict_of([sign for _, sign in told.values()])
        yield Finding("the gain in A_sa is more than a change of scale", defense, text, verdict)


def _beyond_scale(these: Mapping[int, Rows], others: Mapping[int, Rows]) -> tuple[str, tuple[bool, bool]]:
    """What is left of a gain when all are calibrated; whether seeds tell it from 0, and whether it is one."""
    plain, calibrated, scales = (
        [{seed: measured(each) for seed, each in side.items()} for side in (these, others)]
        for measured in (_plain, _calibrated, _scale)
    )
    gained, kept = (fmean(mine.values()) - fmean(base.values()) for mine, base in (plain, calibrated))
    with_weights, without = (fmean(side.values()) for side in scales)
    ends = measures.seeds_interval(*calibrated)
    said = (
        f"A_sa(2) {points(gained)} as it is, {points(kept)} calibrated"
        + ("" if ends is None else f", seeds {interval(ends)}")
        + f"; the logits fit best divided by {with_weights:.2f}, without weights by {without:.2f}"
    )
    return said, (_leaves_out_zero(ends), kept > 0)


def _plain(rows: Rows) -> float:
    return measures.tempered_accuracy(rows, ALPHA, 1.0).value


def _calibrated(rows: Rows) -> float:
    return measures.calibrated_accuracy(rows, ALPHA).value


def _scale(rows: Rows) -> float:
    return measures.calibrating_temperature(rows["uniform/logits"], rows["label"])
