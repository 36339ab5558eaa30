"""wmr report"""

from pathlib import Path
from typing import Annotated

import typer

from ..config import RecordFilter, ReportConfig
from ..errors import BadFile, BadInput
from .console import say, say_error, width
from .flags import with_flags

DEFAULT_FOLDER = Path("runs")
UNRANKED_FORMATS = ("csv", "json", "card")
"""Formats without a ranking: those for other programs, and the card of a single model."""


@with_flags
def report(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PATH",
            help="Run folders, folders of runs, or records.",
            show_default=str(DEFAULT_FOLDER),
        ),
    ] = None,
    *,
    filters: RecordFilter,
    config: ReportConfig,
) -> None:
    """Compare stored evaluations at any alpha and rho, without attacking again."""
    from ..paper.tables import has_table
    from ..reporting.figures import PAPER_WIDTHS, FigureLook
    from ..reporting.report import GatheredRecords, build_report, gather_records
    from ..reporting.requirements import judge, parse_requirements
    from .output import (
        draw_all_figures,
        find_format,
        list_remarks,
        put_report,
        report_judgements,
        write_critical_eps,
    )

    # the format is checked before records are read, which may take long
    output = config.format or find_format(config.out)
    requirements = parse_requirements(config.require)
    # `wmr report --format html > report.html` is fine; megabytes on a terminal are a mistake
    if output == "html" and config.out is None and width() is not None:
        raise BadInput(
            "an HTML page cannot be shown in a terminal",
            hint="add `out=report.html`, and open the file in a browser",
        )
    if output == "card" and (config.compare or config.paper):
        raise BadInput(
            "a card describes one model, without comparisons",
            hint="leave out `compare` and `paper`, or choose another `format`",
        )
    if config.figures is None and (config.figure_width or not config.figure_titles):
        raise BadInput(
            "`figure_width` and `figure_titles` need figures", hint="name a folder with `figures`"
        )
    shows_paper = config.paper == "all"
    # the tables of the paper alone need no run
    is_paper_alone = shows_paper or (has_table(config.paper) and not DEFAULT_FOLDER.exists())
    if is_paper_alone and paths is None:
        gathered = GatheredRecords([], [])
    else:
        gathered = gather_records(
            paths or [DEFAULT_FOLDER],
            config.alpha_test,
            config.rho,
            calibrated=config.calibrated,
            filters=filters,
        )
        if not gathered.found and not gathered.problems:
            raise BadFile("no evaluations found", hint="make one with `wmr evaluate runs/NAME`")
    judgements = judge(requirements, gathered.found) if requirements else None
    document, problems = build_report(
        gathered,
        ranks=output not in UNRANKED_FORMATS,
        compare=config.compare,
        paper=config.paper,
        judgements=judgements,
    )
    problems += put_report(document, output, config.out)
    for text in list_remarks(document, alphas=config.alpha_test, radii=config.rho, output=output):
        say(text, quiet=config.quiet, is_warning=True)
    if config.out is not None:
        say(f"wrote {config.out}", quiet=config.quiet)
    is_drawn = config.figures is None or draw_all_figures(
        gathered.found,
        config.figures,
        known=gathered.known,
        look=FigureLook(PAPER_WIDTHS.get(config.figure_width or ""), config.figure_titles),
        with_paper=shows_paper,
        quiet=config.quiet,
    )
    if config.critical_eps is not None:
        problems += write_critical_eps(gathered.found, config.critical_eps, quiet=config.quiet)
    # after the report, so that the reason for exit status 1 is the last line
    for problem in problems:
        say_error(f"skipped: {problem}", problem.hint)
    is_met = report_judgements(judgements or (), quiet=config.quiet)
    if problems or not (is_drawn and is_met):
        raise typer.Exit(1)
