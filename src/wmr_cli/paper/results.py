"""The paper's printed results, with what is known to be wrong in them. Shares are in percent as printed, figures in fractions."""

from functools import cache
from importlib import resources
from typing import Literal

import msgspec

from ..errors import BadFile

DATASETS = ("mnist", "cifar10", "tiny-imagenet")
SHARES = ("a_nat", "a_rob", "a_sa", "a_tr")


class PaperStruct(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of the results; unknown keys are refused."""


class PaperRow(PaperStruct, frozen=True, kw_only=True):
    """One printed row and its `line` in the paper's source; null is what it does not print or does not have."""

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
    """A table: T1 to T5 stand in the text, T6 to T12 in the appendix."""

    name: str
    dataset: str
    about: str
    columns: tuple[str, ...]
    rows: tuple[PaperRow, ...]


class PaperSeries(PaperStruct, frozen=True, kw_only=True):
    """One curve. `is_suspect`, once asked for by `figure`, has an entry per point."""

    line: int
    defense: str
    alpha_train: float | None = None
    defense_is_inferred: bool = False
    x: tuple[float, ...]
    y: tuple[float, ...]
    is_suspect: tuple[bool, ...] = ()


class PaperPanel(PaperStruct, frozen=True, kw_only=True):
    """One pair of axes: `metric` is a_sa over alpha_test, or accuracy or loss over rho, where `attack_loss` is worst."""

    name: str
    metric: Literal["a_sa", "accuracy", "loss"]
    x_is: Literal["alpha_test", "rho"]
    eps_test: float | None = None
    attack_loss: Literal["ce", "margin"] | None = None
    series: tuple[PaperSeries, ...]


class PaperFigure(PaperStruct, frozen=True, kw_only=True):
    """F3, A_sa over alpha_test, or F4, the worst case in a ball over rho."""

    name: str
    dataset: str
    panels: tuple[PaperPanel, ...]


class Erratum(PaperStruct, frozen=True, kw_only=True):
    """A misprint. Where `corrected` is null the printed value is wrong and the right one is not known, or there is none."""

    table: str
    line: int
    field: str
    printed: float | str
    corrected: float | str | None
    confidence: Literal["high", "medium"]
    why: str


class Dispute(PaperStruct, frozen=True, kw_only=True):
    """One number that two tables give differently."""

    dataset: str
    defense: str
    alpha_train: float
    field: str
    values: dict[str, float]


class Suspects(PaperStruct, frozen=True, kw_only=True):
    """Points of a figure that cannot be right."""

    figure: str
    panels: tuple[str, ...]
    x: tuple[float, ...]
    why: str


class Results(PaperStruct, frozen=True, kw_only=True):
    """Everything the paper prints as a number, as printed."""

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
    """The results that come with the program, checked to be complete."""
    content = resources.files(__package__).joinpath("results.json").read_bytes()
    try:
        found = msgspec.json.decode(content, type=Results)
    except msgspec.MsgspecError as error:
        raise BadFile(
            f"the paper's results in this installation are damaged: {error}",
            hint="install wmr again",
        ) from None
    if counts(found) != found.counts:
        raise BadFile(
            "the paper's results in this installation are not complete", hint="install wmr again"
        )
    return found


def counts(found: Results) -> dict[str, int]:
    """How much of everything there is."""
    rows = [row for table in found.tables for row in table.rows]
    panels = [panel for figure in found.figures for panel in figure.panels]
    series = [curve for panel in panels for curve in panel.series]
    return {
        "tables": len(found.tables),
        "rows": len(rows),
        "values": sum(getattr(row, share) is not None for row in rows for share in SHARES),
        "figures": len(found.figures),
        "panels": len(panels),
        "series": len(series),
        "points": sum(len(curve.y) for curve in series),
        "errata": len(found.errata),
        "disputed": len(found.disputed),
        "suspect_points": sum(
            flag
            for one in found.figures
            for panel in _marked(one, found).panels
            for flag in _flags(panel)
        ),
    }


def figure(name: str) -> PaperFigure:
    """F3 or F4 with every point marked that cannot be right."""
    found = load_results()
    return next(_marked(one, found) for one in found.figures if one.name == name)


def _marked(one: PaperFigure, found: Results) -> PaperFigure:
    def marked(panel: PaperPanel) -> PaperPanel:
        wrong = {
            x
            for part in found.suspect_points
            if part.figure == one.name and panel.name in part.panels
            for x in part.x
        }
        curves = (
            msgspec.structs.replace(curve, is_suspect=tuple(x in wrong for x in curve.x))
            for curve in panel.series
        )
        return msgspec.structs.replace(panel, series=tuple(curves))

    return msgspec.structs.replace(one, panels=tuple(marked(panel) for panel in one.panels))


def _flags(panel: PaperPanel) -> list[bool]:
    return [flag for curve in panel.series for flag in curve.is_suspect]
