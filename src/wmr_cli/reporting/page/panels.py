"""Records that may be compared: the same images, attacked alike. All others are kept apart and never ranked together."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...spec import exact
from ...storage.records import Record
from ..attacks import TOGETHER, attacks_behind
from ..lines import attack_name, run_name
from ..peers import Setting, setting_of

Found = Sequence[tuple[Path, Record]]


@dataclass(frozen=True)
class Panel:
    """Records with their files and the name of each, all on the same images under the same attack."""

    title: str
    found: list[tuple[Path, Record]]
    names: list[str]

    @property
    def records(self) -> list[Record]:
        return [record for _, record in self.found]


def grouped(found: Found) -> list[Panel]:
    """In the order in which their first records were found."""
    by_id = {record.id: record for _, record in found}
    groups: dict[Setting, list[tuple[Path, Record]]] = {}
    for file, record in found:
        groups.setdefault(setting_of(record, by_id), []).append((file, record))
    titles = _distinct([_title(members[0][1], by_id) for members in groups.values()])
    return [
        Panel(title, members, _names([record for _, record in members]))
        for title, members in zip(titles, groups.values(), strict=True)
    ]


def _title(record: Record, by_id: Mapping[str, Record]) -> str:
    """`digits test, 550 images · linf ε 0.15 · pgd:steps=20`."""
    data, threat = record.dataset, record.threat
    behind = attacks_behind(record, by_id)
    attack = f"worst of {TOGETHER.join(behind)}" if behind else attack_name(record)
    seed = [f"attack seed {record.attack.seed}"] if record.attack.seed else []
    kernel = [] if record.kernel == "exp" else [f"kernel {record.kernel}"]
    images, ball = f"{data.name} {data.split}, {data.n} images", f"{threat.norm} ε {exact(threat.eps)}"
    return " · ".join([images, ball, attack, *seed, *kernel])


def _names(records: Sequence[Record]) -> list[str]:
    """The runs; where two have one name, with the record."""
    names = [run_name(record) for record in records]
    counts = Counter(names)
    return _distinct(
        [name if counts[name] == 1 else f"{name}, {record.id[:8]}" for name, record in zip(names, records, strict=True)]
    )


def _distinct(texts: Sequence[str]) -> list[str]:
    """The same texts, numbered where one comes again."""
    seen: Counter[str] = Counter()
    made = []
    for text in texts:
        seen[text] += 1
        made.append(text if seen[text] == 1 else f"{text} ({seen[text]})")
    return made
