"""Select the records that decide a claim, format differences, and give verdicts."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from wmr_cli.reporting.comparison import Gap
from wmr_cli.spec import Spec
from wmr_cli.storage.records import Record

RecordFile = tuple[Path, Record]
RecordFiles = Sequence[RecordFile]
RunsBySeed = Mapping[int, RecordFile]
"""Records of one training configuration by training seed."""
HOLDS = "holds"
FAILS = "does not hold"
INDISTINGUISHABLE = "not distinguishable"
SINGLE_SEED = "one seed, no verdict"
LARGEST_IRRELEVANT_LOSS = 0.01
"""A claim that nothing is lost holds if the intervals exclude a larger loss of accuracy."""


@dataclass(frozen=True)
class Sign:
    """Whether a difference is statistically significant, and whether it supports the claim."""

    is_significant: bool
    supports_claim: bool


@dataclass(frozen=True)
class Finding:
    """The result for one claim and one defense. `found` has the differences with intervals."""

    claim: str
    defense: str
    found: str
    verdict: str


def defense_name(record: Record) -> str:
    """Return the defense without its parameters."""
    return Spec.parse(record.checkpoint.defense).name


def select_defense(found: RecordFiles, defense: str) -> list[RecordFile]:
    """Select records of one defense and a single attack, ordered by alpha of training.

    The unweighted training comes first, as `wmr report` takes the first one as the reference.
    """
    selected = [
        (file, record)
        for file, record in found
        if defense_name(record) == defense and record.attack.of is None
    ]
    return sorted(selected, key=lambda one: alpha_train(one[1]))


def alpha_train(record: Record) -> float:
    """Return alpha of training, 0 for unweighted training."""
    return record.checkpoint.alpha_train or 0.0


def has_training_eps(record: Record) -> bool:
    """Return whether the test used the eps of training."""
    return record.threat.eps == (record.checkpoint.config or {}).get("eps")


def select_attack(found: RecordFiles, attack: str) -> list[RecordFile]:
    """Select the records of one attack.

    If it was run with several efforts, select the fewest steps and restarts on the most images.
    """

    def effort(record: Record) -> tuple[int, int, int]:
        steps = Spec.parse(record.attack.spec).params.get("steps", "0")
        return int(str(steps)), record.attack.restarts, -record.dataset.n

    selected = [one for one in found if Spec.parse(one[1].attack.spec).name == attack]
    least = min((effort(record) for _, record in selected), default=None)
    return [one for one in selected if effort(one[1]) == least]


def group_by_alpha(found: RecordFiles) -> Mapping[float, RunsBySeed]:
    """Group records by alpha of training and seed. The last of equivalent records is kept."""
    groups: dict[float, dict[int, RecordFile]] = {}
    for file, record in found:
        groups.setdefault(alpha_train(record), {})[record.checkpoint.seed] = file, record
    return groups


def weighted_alphas(groups: Mapping[float, object]) -> list[float]:
    """Return the alphas of weighted training, or nothing without an unweighted reference."""
    if 0.0 not in groups:
        return []
    return sorted(set(groups) - {0.0})


def combine_signs(signs: Sequence[Sign]) -> str:
    """Return one verdict on several differences: all must be significant and support the claim.

    If they disagree, both numbers are given.
    """
    supports = [sign.supports_claim for sign in signs if sign.is_significant]
    counts = {FAILS: supports.count(False), HOLDS: supports.count(True)}
    parts = []
    for word, count in counts.items():
        if count == len(signs):
            parts.append(word)
        elif count:
            parts.append(f"{word} in {count} of {len(signs)}")
    return ", ".join(parts) or INDISTINGUISHABLE


def judge_gain(gaps: Collection[Gap]) -> str:
    """Return the verdict on a claimed gain. A single seed gives no verdict."""
    if any(gap.over_seeds is None for gap in gaps):
        return SINGLE_SEED
    return combine_signs([Sign(gap.is_distinguishable, gap.over_images.value > 0) for gap in gaps])


def judge_no_loss(gaps: Collection[Gap]) -> str:
    """Return the verdict on the claim that nothing is lost.

    A loss that is not significant may still exist, so the intervals must exclude a relevant one.
    """
    intervals = [gap.over_seeds for gap in gaps if gap.over_seeds is not None]
    if len(intervals) < len(gaps):
        return SINGLE_SEED
    if any(gap.is_distinguishable and gap.over_images.value < 0 for gap in gaps):
        return FAILS
    lowest = min(*(gap.over_images.low for gap in gaps), *(low for low, _ in intervals))
    if lowest > -LARGEST_IRRELEVANT_LOSS and not any(gap.over_images.rests_on_few for gap in gaps):
        return HOLDS
    return INDISTINGUISHABLE


def excludes_zero(interval: tuple[float, float] | None) -> bool:
    """Return whether an interval shows a difference from 0."""
    return interval is not None and not interval[0] <= 0 <= interval[1]


def format_gaps(gaps: Mapping[str, Gap]) -> str:
    """List differences with their intervals over images, and over seeds if there are several."""
    return "; ".join(f"{name}: {format_gap(gap)}" for name, gap in gaps.items())


def format_gap(gap: Gap) -> str:
    """Return text such as `+1.2 [+0.3, +2.1], seeds [-0.2, +2.6]`."""
    difference = gap.over_images
    interval = format_interval((difference.low, difference.high))
    return f"{format_points(difference.value)} {interval}{format_seeds(gap.over_seeds)}"


def format_seeds(interval: tuple[float, float] | None) -> str:
    """Return text such as `, seeds [-0.2, +2.6]`, empty for a single seed."""
    return "" if interval is None else f", seeds {format_interval(interval)}"


def format_points(value: float) -> str:
    """Return a fraction in signed percentage points, with two digits if one would round to 0."""
    short = f"{100 * value:+.1f}"
    rounds_to_zero = value != 0 and float(short) == 0
    return f"{100 * value:+.2f}" if rounds_to_zero else short


def format_interval(interval: tuple[float, float]) -> str:
    """Return text such as `[+0.3, +2.1]`."""
    return f"[{format_points(interval[0])}, {format_points(interval[1])}]"
