"""The paper's tables as sheets, as CSV and for JSON."""

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import msgspec

from ...spec import exact
from ..csvs import csv_text
from ..sheets import Sheet
from . import SHARES, Results, Table, figure, results
from .corrections import Corrected, Footnotes, corrected_rows

HEADINGS = {
    "defense": "defense", "attack": "attack", "inv_lambda": "1/λ", "eps_train": "ε_train", "eps_test": "ε_test",
    "alpha_train": "α_train", "alpha_test": "α_test", "a_nat": "A_nat", "a_rob": "A_rob", "a_sa": "A_sa", "a_tr": "A_tr",
}  # fmt: skip
CAPTION = "percent, from arXiv:{}; single runs without intervals"


def sheets() -> Iterator[Sheet]:
    """All twelve tables, misprints corrected and marked."""
    rows = groupby(corrected_rows(), key=lambda made: made.table)
    for table, (_, made) in zip(results().tables, rows, strict=True):
        yield _sheet(table, list(made))


def _sheet(table: Table, rows: list[Corrected]) -> Sheet:
    footnotes = Footnotes()
    shown = [name for name in HEADINGS if name in table.columns]
    given = {attack for made in rows if (attack := made.row.attack)} if "attack" not in table.columns else set()
    balls = {exact(made.row.eps_test) for made in rows} if "eps_test" not in table.columns else set()
    facts = (*(f"{attack}" for attack in sorted(given)), *(f"ε {eps}" for eps in sorted(balls)))
    return Sheet(
        headings=tuple(HEADINGS[name] for name in shown),
        rows=[tuple(cell(made, name, footnotes) for name in shown) for made in rows],
        caption=CAPTION.format(results().arxiv),
        title=", ".join([f"{table.name}: {table.about}", *facts]),
        texts=("defense", "attack"),
        notes=footnotes.notes(),
    )


def cell(made: Corrected, name: str, footnotes: Footnotes) -> str:
    """A value of a row, with the mark of its footnote."""
    value = getattr(made.row, name)
    if value is None:
        shown = "-"
    elif name in SHARES:
        shown = f"{value:.2f}"
    else:
        shown = value if isinstance(value, str) else exact(value)
    return shown + footnotes.mark([made.reasons[name]] if name in made.reasons else [])


def comma_separated() -> str:
    """All rows in one table, corrected, as fractions; `notes` says what was printed."""
    names = ("table", "dataset", "line", *HEADINGS, "notes")
    return csv_text(names, ([made.table, made.dataset, *fractions(made).values(), _notes(made)] for made in corrected_rows()))


def _notes(made: Corrected) -> str:
    return "; ".join(f"{name} {reason}" for name, reason in made.reasons.items())


def fractions(made: Corrected) -> dict[str, Any]:
    """The row as plain data, shares between 0 and 1."""
    row = {name: getattr(made.row, name) for name in ("line", *HEADINGS)}
    return {name: round(value / 100, 6) if name in SHARES and value is not None else value for name, value in row.items()}


def as_data() -> dict[str, Any]:
    """Tables, figures and what is wrong with them, for JSON; shares are fractions."""
    found: Results = results()
    rows = {name: list(made) for name, made in groupby(corrected_rows(), key=lambda made: made.table)}
    return {
        "title": found.title,
        "arxiv": found.arxiv,
        "tables": [
            {
                "name": table.name,
                "dataset": table.dataset,
                "about": table.about,
                "rows": [{**fractions(made), "notes": made.reasons} for made in rows[table.name]],
            }
            for table in found.tables
        ],
        "figures": [msgspec.to_builtins(figure(one.name)) for one in found.figures],
        **{name: msgspec.to_builtins(getattr(found, name)) for name in ("errata", "disputed", "suspect_points")},
    }
