"""Which numbers may be set in bold, and what lies between two lines.

Bold is the best of its column and everything that cannot be told from it, among lines at one alpha_test that were measured
alike. Where that is every line, or where there is only one model, nothing is bold: it would say nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..measures import Difference, Resampled, mean_of, seeds_interval
from .lines import SHARES, Line, lines_of
from .peers import Peers

Evidence = Mapping[tuple[str, str, float | None], Resampled]
"""By id of a record, share and alpha: what its rows say in every resample of the images. A_nat and A_rob have no alpha."""


@dataclass(frozen=True)
class Gap:
    """One line's share minus another's: over images, resampled together, and over seeds where one of them has several."""

    images: Difference
    seeds: tuple[float, float] | None

    @property
    def is_distinguishable(self) -> bool:
        """Whether neither the draw of images nor that of training seeds explains the difference."""
        return self.images.is_distinguishable and not (self.seeds and self.seeds[0] <= 0 <= self.seeds[1])


def gap(line: Line, other: Line, name: str, evidence: Evidence) -> Gap | None:
    """What lies between two lines; none where the rows of one are not there."""
    sides = [_resampled(side, name, evidence) for side in (line, other)]
    if sides[0] is None or sides[1] is None:
        return None
    return Gap(sides[0].minus(sides[1]), seeds_interval(line.by_training_seed(name), other.by_training_seed(name)))


def can_be_told(line: Line, best: Line, name: str, evidence: Evidence) -> bool:
    """Whether a line is worse than the best: by pairs of images where rows are there, else where intervals do not overlap."""
    found, below, above = gap(line, best, name, evidence), line.share(name), best.share(name)
    if found is not None:
        return found.is_distinguishable
    if below is None or above is None or below.degenerate or above.degenerate:
        return False
    return below.high < above.low


def strong(peers: Peers, evidence: Evidence) -> set[tuple[int, str]]:
    """Which shares are bold: by number of the line among all lines of these peers, and name of the share."""
    if len(peers.entries) < 2:
        return set()
    places: dict[float | None, list[tuple[int, Line]]] = {}
    for number, line in enumerate(line for entry in peers.entries for line in lines_of(entry)):
        places.setdefault(line.alpha_test, []).append((number, line))
    return {(number, name) for at_alpha in places.values() for name in SHARES for number in _bold(at_alpha, name, evidence)}


def _bold(lines: Sequence[tuple[int, Line]], name: str, evidence: Evidence) -> list[int]:
    shares = {number: share.value for number, line in lines if (share := line.share(name)) is not None}
    if not shares:
        return []
    there = {number: line for number, line in lines if number in shares}
    best = there[max(shares, key=lambda number: shares[number])]
    held = [number for number, line in there.items() if line is best or not can_be_told(line, best, name, evidence)]
    return held if len(held) < len(there) else []


def _resampled(line: Line, name: str, evidence: Evidence) -> Resampled | None:
    alpha = line.alpha_test if name in ("a_sa", "a_tr") else None
    members = [evidence.get((record.id, name, alpha)) for record in line.records]
    there = [member for member in members if member is not None]
    return mean_of(there) if len(there) == len(members) else None
