"""Which attacks are behind a worst case: the rows "worst of all"."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..storage.records import Record
from .lines import attack_name

TOGETHER = " + "
"""Between attacks; a spec has commas of its own."""


def attacks_behind(record: Record, known: Mapping[str, Record]) -> tuple[str, ...]:
    """The attacks whose worst case a record is, in a fixed order; none where it is of a single attack.

    They are named by their own records where those are `known`, else as they were asked for, else by the ids of the records.
    """
    parts = record.attack.of
    if parts is None:
        return ()
    asked = record.config.get("attacks")
    texts = asked if isinstance(asked, list) and len(asked) == len(parts) else [f"record {part}" for part in parts]
    return tuple(
        sorted(attack_name(known[part]) if part in known else str(text) for part, text in zip(parts, texts, strict=True))
    )


@dataclass(frozen=True)
class Attacks:
    """The worst cases among some records: the attacks behind each, by id. Where those differ, worst cases are numbered."""

    behind: Mapping[str, tuple[str, ...]]

    def of(self, record: Record) -> tuple[str, ...]:
        """The attacks behind a record; none where it is of a single attack."""
        return self.behind.get(record.id, ())

    def name(self, record: Record) -> str:
        """`pgd:steps=20`, `worst of all`, or `worst of all (2)`."""
        distinct = list(dict.fromkeys(self.behind.values()))
        number = f" ({distinct.index(self.of(record)) + 1})" if len(distinct) > 1 and self.of(record) else ""
        return attack_name(record) + number

    def notes(self, records: Iterable[Record]) -> tuple[str, ...]:
        """What stands below a table of these records: the attacks behind every worst case, once each."""
        named = {self.of(record): self.name(record) for record in records if self.of(record)}
        return tuple(
            f"{name}: every image as the most harmful of these attacks left it: {TOGETHER.join(attacks)}"
            for attacks, name in named.items()
        )


def attacks_among(records: Iterable[Record]) -> Attacks:
    """The attacks of records that are shown together."""
    known = {record.id: record for record in records}
    return Attacks({name: attacks for name, record in known.items() if (attacks := attacks_behind(record, known))})
