"""What an evaluation found, for a notebook: the four accuracies, the rows behind them, and any other alpha or radius."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from .. import measures
from ..config import EvaluateConfig
from ..errors import BadInput
from ..measures import Estimate, Outcome
from ..reporting import notebooks
from ..storage import records
from ..storage.records import DroRow, Record, Rows
from . import scoring

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.table import Table


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """One network under one attack. Accuracies are `Estimate`s: `value`, `low`, `high` and, where images are weighed, `ess`.

    Shown in a terminal or a notebook it is the table of `wmr evaluate`.
    """

    record: Record
    """everything that `wmr evaluate` writes down, as it does"""
    rows: Rows = field(repr=False)
    """NumPy arrays with an entry per image: `label`, `uniform/margin`, `uniform/prediction`, …"""

    @classmethod
    def load(cls, path: str | Path) -> "Result":
        """A record that `save` or `wmr evaluate` wrote, by its JSON file, with its rows."""
        file = Path(path)
        record = records.load(file)
        return cls(record, records.rows_of(file, record))

    @property
    def a_nat(self) -> Estimate:
        """Accuracy on clean images."""
        return self.record.a_nat

    @property
    def a_rob(self) -> Estimate:
        """Accuracy under the attack, where every image counts the same."""
        if self.record.a_rob is None:
            raise BadInput("A_rob was not measured", hint='evaluate with "rob" among the metrics')
        return self.record.a_rob

    @property
    def alphas(self) -> tuple[float, ...]:
        """The alphas that were asked for; A_sa is to be had at any other."""
        return tuple(row.alpha_test for row in self.record.by_alpha if row.alpha_test is not None)

    def a_sa(self, alpha: float | None = None) -> Estimate:
        """Accuracy under the attack when images are drawn by weight. At any alpha; none for a kernel without one."""
        found = measures.sampled_outcome(self.rows, self.record.kernel, alpha)
        hint = "an attack that stops early has no margins to weigh by; a kernel other than exp has the alphas it was run with"
        return self._estimate("A_sa", alpha, found, hint)

    def a_tr(self, alpha: float | None = None) -> Estimate:
        """Accuracy when images are crafted by weight, too. At the alphas that were asked for: each is an attack of its own."""
        found = measures.crafted_outcome(self.rows, self.record.kernel, alpha)
        return self._estimate("A_tr", alpha, found, f"it was asked for at {', '.join(map(str, self.alphas)) or 'no alpha'}")

    def dro(self, rho: float, loss: Literal["ce", "margin", "zero-one"] = "ce") -> DroRow:
        """The worst case over all weights in a chi-squared ball of radius rho: `loss`, `accuracy`, `worst_accuracy`, `ess`, …"""
        config = msgspec.structs.replace(self._asked, rho=(rho,), dro_loss=loss)
        found = scoring.worst_in_ball(self.rows, config)
        if not found:
            raise BadInput(f"the rows hold no {loss} losses", hint='an attack that stops early leaves loss="zero-one" only')
        return found[0]

    def rescore(self, *alphas: float) -> "Result":
        """The same attack seen at other alphas, by arithmetic; A_tr stays where it was measured."""
        return Result(scoring.rescored(self.record, self.rows, self._asked, alphas), self.rows)

    def save(self, folder: str | Path) -> Path:
        """Write record and rows into a folder for `wmr report`; the path of the record."""
        file = Path(folder) / f"{self.record.id}.json"
        records.save(file, self.record, self.rows)
        return file

    @property
    def _asked(self) -> EvaluateConfig:
        return scoring.asked_of(Path(f"{self.record.id}.json"), self.record)

    def _estimate(self, name: str, alpha: float | None, outcome: Outcome | None, hint: str) -> Estimate:
        config = self._asked
        found = scoring.estimated({name: outcome}, config.ci, config.seed)[name]
        if found is None:
            raise BadInput(f"{name} is not to be had{'' if alpha is None else f' at alpha {alpha:g}'}", hint=hint)
        return found

    def __repr__(self) -> str:
        return notebooks.printed(self.record)

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[Table]":
        yield from notebooks.drawn(self.record, options.max_width)

    def _repr_html_(self) -> str:
        return notebooks.html(self.record)

    def _repr_markdown_(self) -> str:
        return notebooks.markdown(self.record)
