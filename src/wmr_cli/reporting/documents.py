"""Everything that a report shows, in any format."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ..errors import BadInput
from ..storage.records import Record, rows_path
from . import comparisons as compared
from . import tables
from .attacks import attacks_among
from .comparisons import Comparison
from .extras import extras
from .lines import SHARES
from .paper import matched, printed
from .paper.beside import Match
from .peers import Peers
from .ranking import Evidence
from .sheets import Sheet


@dataclass(frozen=True)
class Document:
    """Records with their files, taken together and ranked, and what was asked for beside them; None was not asked for."""

    found: Sequence[tuple[Path, Record]] = ()
    peers: Sequence[Peers] = ()
    evidence: Evidence | None = None
    comparisons: Sequence[Comparison] | None = None
    matches: Sequence[Match] | None = None
    shows_paper: bool = False

    @property
    def records(self) -> list[Record]:
        return [record for _, record in self.found]

    def sheets(self) -> list[Sheet]:
        """Every table, the main one first."""
        made = [tables.ranked_sheet(self.peers, self.evidence or {}), *extras(self.records)] if self.found else []
        return made + self.beside()

    def beside(self) -> list[Sheet]:
        """What was asked for beside the records: differences between models, the paper's rows, the paper's tables."""
        made = list(compared.sheets(self.comparisons or (), attacks_among(self.records)))
        made += [matched.sheet(self.matches)] if self.matches else []
        return made + (list(printed.sheets()) if self.shows_paper else [])

    def comma_separated(self) -> str:
        """One table: the records, or what was asked for beside them."""
        asked = self.comparisons is not None, self.matches is not None or self.shows_paper
        if all(asked):
            raise BadInput("one CSV holds one table", hint="leave out --compare or --paper, or take another --format")
        if self.comparisons is not None:
            return compared.comma_separated(self.comparisons, attacks_among(self.records))
        if self.shows_paper:
            return printed.comma_separated()
        return tables.comma_separated(self.records) if self.matches is None else matched.comma_separated(self.matches)

    def as_data(self) -> Any:
        """For JSON: a list of records, or an object that holds it and what was asked for beside them."""
        placed = tables.places(self.peers)
        records = [{**one, **_over_seeds(placed.get(one["id"]))} for one in listed(self.found)]
        parts = {
            "comparisons": None if self.comparisons is None else compared.as_data(self.comparisons),
            "beside_paper": None if self.matches is None else matched.as_data(self.matches),
            "paper": printed.as_data() if self.shows_paper else None,
        }
        asked = {name: part for name, part in parts.items() if part is not None}
        return {"records": records, **asked} if asked else records


def listed(found: Sequence[tuple[Path, Record]]) -> list[dict[str, Any]]:
    """Records as plain data, each with the absolute path of its rows, a worst case also with the attacks behind it."""
    attacks = attacks_among(record for _, record in found)
    return [
        {
            **msgspec.to_builtins(record),
            "rows": str(rows_path(file).absolute()),
            **({"worst_of": list(attacks.of(record))} if attacks.of(record) else {}),
        }
        for file, record in found
    ]


def _over_seeds(place: tables.Place | None) -> dict[str, Any]:
    """For a record with seeds beside it: what they give together, alpha by alpha."""
    if place is None or place.seeds < 2:
        return {}
    by_alpha = [
        {
            "alpha_test": line.alpha_test,
            "ids": [record.id for record in line.records],
            **{name: msgspec.to_builtins(line.over_training(name)) for name in SHARES},
        }
        for line in place.lines.values()
    ]
    return {"over_seeds": {"model": place.model, "seeds": place.seeds, "by_alpha": by_alpha}}
