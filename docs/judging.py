"""How claims are judged: which records are asked, how differences are written, and what verdict they give."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from wmr_cli.reporting.ranking import Gap
from wmr_cli.spec import Spec
from wmr_cli.storage.records import Record

Found = Sequence[tuple[Path, Record]]
Members = Mapping[int, tuple[Path, Record]]
"""Records of one training by its seeds."""
Sign = tuple[bool, bool]
"""Whether a difference is told from chance, and whether it has the sign of the claim."""
HOLDS, FAILS, OPEN = "holds", "does not hold", "not distinguishable"
ALONE = "one seed, no verdict"
LEAST = 0.01
"""A claim that nothing is lost holds where a loss of more than this share is ruled out."""


@dataclass(frozen=True)
class Finding:
    """One claim about one defense: what was found, with intervals in percentage points, and the verdict."""

    claim: str
    about: str
    """A defense."""
    found: str
    verdict: str


def name_of(record: Record) -> str:
    """The defense without its parameters."""
    return Spec.parse(record.checkpoint.defense).name


def trained_with(found: Found, defense: str) -> list[tuple[Path, Record]]:
    """The records of one defense and one attack each, unweighted training first: it is the reference."""
    mine = [one for one in found if name_of(one[1]) == defense and one[1].attack.of is None]
    return sorted(mine, key=lambda one: alpha_of(one[1]))


def alpha_of(record: Record) -> float:
    """Alpha of training."""
    return record.checkpoint.alpha_train or 0.0


def is_own_ball(record: Record) -> bool:
    """Whether eps of the test is eps of the training."""
    return record.threat.eps == (record.checkpoint.config or {}).get("eps")


def under(found: Found, attack: str) -> list[tuple[Path, Record]]:
    """The records of one attack; of the fewest steps and restarts on the most images where there are several."""

    def effort(record: Record) -> tuple[int, int, int]:
        return (
            int(Spec.parse(record.attack.spec).params.get("steps", 0)),
            record.attack.restarts,
            -record.dataset.n,
        )

    mine = [one for one in found if Spec.parse(one[1].attack.spec).name == attack]
    usual = min((effort(record) for _, record in mine), default=None)
    return [one for one in mine if effort(one[1]) == usual]


def by_alpha(found: Found) -> Mapping[float, Members]:
    """By alpha of training and seed; of records that were measured alike there is one for each."""
    made: dict[float, dict[int, tuple[Path, Record]]] = {}
    for file, record in found:
        made.setdefault(alpha_of(record), {})[record.checkpoint.seed] = file, record
    return made


def weighted(trained: Mapping[float, object]) -> list[float]:
    """The alphas of training with weights, where there is one without."""
    return sorted(set(trained) - {0.0}) if 0.0 in trained else []


def verdict_of(signs: Sequence[Sign]) -> str:
    """A claim holds where every difference is told from chance and has its sign; where not all say the same, they are counted."""
    told = [is_more for is_told, is_more in signs if is_told]
    counts = {FAILS: told.count(False), HOLDS: told.count(True)}
    said = [
        word if count == len(signs) else f"{word} in {count} of {len(signs)}"
        for word, count in counts.items()
        if count
    ]
    return ", ".join(said) or OPEN


def verdict_on(gaps: Collection[Gap]) -> str:
    """A gain holds where every difference is told from 0 and positive. Where there is one seed, there is no verdict."""
    if any(gap.seeds is None for gap in gaps):
        return ALONE
    return verdict_of([(gap.is_distinguishable, gap.images.value > 0) for gap in gaps])


def verdict_on_loss(gaps: Collection[Gap]) -> str:
    """That no loss was told from 0 does not say that there is none: intervals must rule out one that matters."""
    ends = [gap.seeds for gap in gaps if gap.seeds is not None]
    if len(ends) < len(gaps):
        return ALONE
    if any(gap.is_distinguishable and gap.images.value < 0 for gap in gaps):
        return FAILS
    lowest = min(*(gap.images.low for gap in gaps), *(low for low, _ in ends))
    is_ruled_out = lowest > -LEAST and not any(gap.images.rests_on_few for gap in gaps)
    return HOLDS if is_ruled_out else OPEN


def leaves_out_zero(ends: tuple[float, float] | None) -> bool:
    """Whether an interval tells a difference from 0."""
    return ends is not None and not ends[0] <= 0 <= ends[1]


def listed(gaps: Mapping[str, Gap]) -> str:
    """Every difference with its interval over images, and over seeds where there are several."""
    return "; ".join(f"{name}: {difference(gap)}" for name, gap in gaps.items())


def difference(gap: Gap) -> str:
    """`+1.2 [+0.3, +2.1], seeds [-0.2, +2.6]`."""
    images = gap.images
    return f"{points(images.value)} {interval((images.low, images.high))}{over_seeds(gap.seeds)}"


def over_seeds(ends: tuple[float, float] | None) -> str:
    """`, seeds [-0.2, +2.6]`, where there are several."""
    return "" if ends is None else f", seeds {interval(ends)}"


def points(value: float) -> str:
    """A share in percentage points, with its sign; with a second digit where one would not tell it from 0."""
    short = f"{100 * value:+.1f}"
    return short if value == 0 or float(short) else f"{100 * value:+.2f}"


def interval(ends: tuple[float, float]) -> str:
    """`[+0.3, +2.1]`."""
    return f"[{points(ends[0])}, {points(ends[1])}]"
