"""The paper's printed results and what is known to be wrong in them.

Accuracies are in percent as printed; the figures are in fractions.
"""

from functools import cache
from importlib import resources
from typing import Literal

import msgspec

from ..errors import BadFile

DATASETS = ("mnist", "cifar10", "tiny-imagenet")
# fields of a row that are printed in percent
ACCURACY_FIELDS = ("a_nat", "a_rob", "a_sa", "a_tr")


class PaperStruct(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of the results; unknown keys are refused."""


class PaperRow(PaperStruct, frozen=True, kw_only=True):
    """A printed row with its `line` in the paper's source; None is not printed."""

    line: int
    defense: str
    inv_lambda: float | None = None
    alpha_train: float | None = None
    eps_train: float
    eps_test: float
    attack: str
    alpha_test: float | None = None
    a_nat: float | None = None
    a_rob: float | None = None
    a_sa: float | None = None
    a_tr: float | None = None


class PaperTable(PaperStruct, frozen=True, kw_only=True):
    """A table: T1 to T5 are in the text, T6 to T12 in the appendix."""

    name: str
    dataset: str
    about: str
    columns: tuple[str, ...]
    rows: tuple[PaperRow, ...]


class PaperSeries(PaperStruct, frozen=True, kw_only=True):
    """A curve. `find_figure` fills `is_suspect` with an entry per point."""

    line: int
    defense: str
    alpha_train: float | None = None
    defense_is_inferred: bool = False
    x: tuple[float, ...]
    y: tuple[float, ...]
    is_suspect: tuple[bool, ...] = ()


class PaperPanel(PaperStruct, frozen=True, kw_only=True):
    """A panel: A_sa against alpha_test, or accuracy or loss against rho.

    In the latter, the weights maximise `attack_loss`.
    """

    name: str
    metric: Literal["a_sa", "accuracy", "loss"]
    x_is: Literal["alpha_test", "rho"]
    eps_test: float | None = None
    attack_loss: Literal["ce", "margin"] | None = None
    series: tuple[PaperSeries, ...]


class PaperFigure(PaperStruct, frozen=True, kw_only=True):
    """F3, A_sa against alpha_test, or F4, the worst case in the χ² ball against rho."""

    name: str
    dataset: str
    panels: tuple[PaperPanel, ...]


class Erratum(PaperStruct, frozen=True, kw_only=True):
    """A misprint. `corrected` is None if the correct value is unknown or does not exist."""

    table: str
    line: int
    field: str
    printed: float | str
    corrected: float | str | None
    confidence: Literal["high", "medium"]
    why: str


class Dispute(PaperStruct, frozen=True, kw_only=True):
    """A number that differs between two tables."""

    dataset: str
    defense: str
    alpha_train: float
    field: str
    values: dict[str, float]


class Suspects(PaperStruct, frozen=True, kw_only=True):
    """Points of a figure that cannot be correct."""

    figure: str
    panels: tuple[str, ...]
    x: tuple[float, ...]
    why: str


class Results(PaperStruct, frozen=True, kw_only=True):
    """Every number in the paper, as printed."""

    title: str
    arxiv: str
    counts: dict[str, int]
    tables: tuple[PaperTable, ...]
    figures: tuple[PaperFigure, ...]
    errata: tuple[Erratum, ...]
    disputed: tuple[Dispute, ...]
    suspect_points: tuple[Suspects, ...]


@cache
def load_results() -> Results:
    """Load the results of this installation, and check that they are complete."""
    content = resources.files(__package__).joinpath("results.json").read_bytes()
    try:
        results = msgspec.json.decode(content, type=Results)
    except msgspec.MsgspecError as error:
        raise BadFile(
            f"the paper's results in this installation are damaged: {error}",
            hint="install wmr again",
        ) from None
    # a truncated list is valid JSON, so that the file states its own totals
    if count_parts(results) != results.counts:
        raise BadFile(
            "the paper's results in this installation are not complete", hint="install wmr again"
        )
    return results


def count_parts(results: Results) -> dict[str, int]:
    """Count the tables, rows, values, points and errata."""
    rows = [row for table in results.tables for row in table.rows]
    panels = [panel for figure in results.figures for panel in figure.panels]
    series = [curve for panel in panels for curve in panel.series]
    marked_series = [
        curve
        for figure in results.figures
        for panel in figure.panels
        for curve in _mark_suspects(figure.name, panel, results).series
    ]
    return {
        "tables": len(results.tables),
        "rows": len(rows),
        "values": sum(getattr(row, name) is not None for row in rows for name in ACCURACY_FIELDS),
        "figures": len(results.figures),
        "panels": len(panels),
        "series": len(series),
        "points": sum(len(curve.y) for curve in series),
        "errata": len(results.errata),
        "disputed": len(results.disputed),
        "suspect_points": sum(sum(curve.is_suspect) for curve in marked_series),
    }


def find_figure(name: str) -> PaperFigure:
    """Return F3 or F4 with every suspect point marked."""
    results = load_results()
    figure = next(figure for figure in results.figures if figure.name == name)
    panels = tuple(_mark_suspects(name, panel, results) for panel in figure.panels)
    return msgspec.structs.replace(figure, panels=panels)


def _mark_suspects(figure: str, panel: PaperPanel, results: Results) -> PaperPanel:
    # all curves of a panel share their suspect positions
    suspect_x = {
        x
        for suspects in results.suspect_points
        if suspects.figure == figure and panel.name in suspects.panels
        for x in suspects.x
    }
    series = tuple(
        msgspec.structs.replace(curve, is_suspect=tuple(x in suspect_x for x in curve.x))
        for curve in panel.series
    )
    return msgspec.structs.replace(panel, series=series)
