"""Differences between models on the same images, for `wmr report --compare`."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ..spec import exact
from .attacks import TOGETHER, Attacks
from .csvs import csv_text
from .lines import SHARES, Line, attack_name, conditions, line_name, lines_of
from .peers import Entry, Peers
from .percents import points
from .ranking import Evidence, Gap, gap
from .sheets import Sheet

UNSURE = "not distinguishable"
SAME, FEW = f"{UNSURE} (no image makes a difference)", f"{UNSURE} (few images)"
CAPTION = (
    "percentage points, with 95 % intervals of the paired difference: the same test images are drawn anew for both."
    f" Where an interval holds 0, or fewer than six images make the difference, the two are {UNSURE}"
)
SEEDS = "seeds: the 95 % interval of the difference over seeds of training, which must leave out 0 as well"
CSV_HEADINGS = (
    "reference", "run", "dataset", "n", "norm", "eps", "attack", "share", "alpha_test", "difference", "low", "high", "images",
    "seeds_low", "seeds_high", "verdict", "worst_of",
)  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """A line against the reference of its peers, given by number; `gaps` by name of the share, where both have it."""

    peers: int
    reference: Line
    line: Line
    gaps: dict[str, Gap]


def comparisons(found: Iterable[Peers], evidence: Evidence) -> list[Comparison]:
    """Every entry against the first of its peers that has rows, alpha by alpha."""
    return [made for number, peers in enumerate(found) for made in _among(number, peers, evidence)]


def contenders(peers: Peers) -> list[Entry]:
    """What is compared: the entries, or the seeds of the only one."""
    return list(peers.entries) if len(peers.entries) > 1 else [(model,) for entry in peers.entries for model in entry]


def _among(number: int, peers: Peers, evidence: Evidence) -> Iterator[Comparison]:
    known = {name for name, _, _ in evidence}
    entries = [entry for entry in contenders(peers) if all(record.id in known for model in entry for record in model)]
    for entry in entries[1:]:
        reference = {line.alpha_test: line for line in reversed(list(lines_of(entries[0])))}
        for line in lines_of(entry):
            if line.alpha_test in reference:
                against = reference[line.alpha_test]
                gaps = {name: found for name in SHARES if (found := gap(line, against, name, evidence)) is not None}
                yield Comparison(number, against, line, gaps)


def sheets(compared: Sequence[Comparison], attacks: Attacks) -> Iterator[Sheet]:
    """One sheet for each reference."""
    for _, members in groupby(compared, key=lambda made: made.peers):
        yield _sheet(list(members), attacks)


def _sheet(compared: Sequence[Comparison], attacks: Attacks) -> Sheet:
    first = compared[0].reference.record
    names, under = tuple(SHARES.values()), conditions(first, attacks.name(first))
    has_seeds = any(found.seeds for made in compared for found in made.gaps.values())
    return Sheet(
        headings=("run", "α_test", *names),
        rows=[
            (
                line_name(made.line),
                "-" if made.line.alpha_test is None else exact(made.line.alpha_test),
                *(_text(made.gaps.get(name)) for name in SHARES),
            )
            for made in compared
        ],
        caption=CAPTION,
        title=f"difference to {line_name(compared[0].reference)} {under}, on {first.dataset.n} images",
        texts=("run",),
        facts=("run",),
        shares=names,
        notes=(*attacks.notes([first]), *((SEEDS,) if has_seeds else ())),
    )


def _text(found: Gap | None) -> str:
    """`+1.2 [+0.3, +2.1]`, or with what keeps the two from being told apart."""
    if found is None:
        return "-"
    said = points(found.images)
    if found.seeds is not None:
        low, high = (f"{100 * end:+.1f}" for end in found.seeds)
        said += f"; seeds {low} to {high}"
    return said if found.is_distinguishable else f"{said}; {verdict(found)}"


def verdict(found: Gap) -> str:
    """What a reader is told of a difference in words."""
    if found.is_distinguishable:
        return "distinguishable"
    if found.images.images == 0:
        return SAME
    return FEW if found.images.rests_on_few and not found.images.low <= 0 <= found.images.high else UNSURE


def comma_separated(compared: Iterable[Comparison], attacks: Attacks) -> str:
    """A line per difference, as fractions."""
    return csv_text(CSV_HEADINGS, (_values(made, name, found, attacks) for made in compared for name, found in made.gaps.items()))


def _values(made: Comparison, name: str, found: Gap, attacks: Attacks) -> list[Any]:
    record, over = made.line.record, found.images
    return [
        line_name(made.reference), line_name(made.line), record.dataset.name, record.dataset.n, record.threat.norm,
        record.threat.eps, attack_name(record), name, made.line.alpha_test, over.value, over.low, over.high, over.images,
        *(found.seeds or (None, None)), verdict(found), TOGETHER.join(attacks.of(record)),
    ]  # fmt: skip


def as_data(compared: Iterable[Comparison]) -> list[dict[str, Any]]:
    """The same for JSON, each line with the ids of its records."""
    return [
        {
            "reference": {"run": line_name(made.reference), "ids": [record.id for record in made.reference.records]},
            "run": line_name(made.line),
            "ids": [record.id for record in made.line.records],
            "alpha_test": made.line.alpha_test,
            **{name: _data(found) for name, found in made.gaps.items()},
        }
        for made in compared
    ]


def _data(found: Gap) -> dict[str, Any]:
    over = {"value": found.images.value, "low": found.images.low, "high": found.images.high, "images": found.images.images}
    seeds = {} if found.seeds is None else {"seeds": {"low": found.seeds[0], "high": found.seeds[1]}}
    return {**over, **seeds, "verdict": verdict(found)}
