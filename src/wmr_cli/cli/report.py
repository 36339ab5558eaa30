"""wmr report"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import BadFile, BadInput
from .console import say, say_error, width
from .options import PAPER, REPORTS, Quiet, choice, read, sizes

if TYPE_CHECKING:
    from ..reporting.report import Report


def report(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PATH", help="Run folders, folders of runs, or records.", show_default="runs"
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="|".join(REPORTS),
            help="How to print.",
            show_default="by the ending of --out, or table",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write to a file instead of the terminal.")
    ] = None,
    alpha_test: Annotated[
        str | None,
        typer.Option(
            metavar="LIST", help="Score the stored rows at these values of alpha instead."
        ),
    ] = None,
    rho: Annotated[
        str | None,
        typer.Option(
            metavar="LIST", help="The worst case of the stored rows in balls of these radii."
        ),
    ] = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Differences between models on the same images, with paired intervals.",
        ),
    ] = False,
    paper: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(PAPER),
            help="The paper's numbers beside yours; all: every table of the paper.",
        ),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Draw the records into this folder, as PNG, SVG and PDF."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Show evaluations side by side, at any alpha and rho, without attacking again."""
    from ..reporting.report import GatheredRecords, build_report, gather_records
    from .drawing import draw
    from .output import format_of, put_document

    asked = read("--format", output, choice(*REPORTS)) or format_of(out)
    if asked == "html" and out is None and width() is not None:
        raise BadInput(
            "a page is not for the terminal",
            hint="name a file with --out report.html, and open it in a browser",
        )
    alphas, radii = read("--alpha-test", alpha_test, sizes), read("--rho", rho, sizes)
    beside = read("--paper", paper, choice(*PAPER))
    is_paper_alone = beside == "all" and paths is None
    gathered = (
        GatheredRecords([], [])
        if is_paper_alone
        else gather_records(paths or [Path("runs")], alphas, radii)
    )
    if not gathered.found and not gathered.problems and not is_paper_alone:
        raise BadFile(
            "there are no evaluations here", hint="make one with `wmr evaluate runs/NAME`"
        )
    document, problems = build_report(
        gathered, ranks=asked not in ("csv", "json"), compare=compare, paper=beside
    )
    problems += put_document(document, asked, out)
    for text in remarks(document, alphas=alphas, radii=radii, output=asked):
        say(text, quiet=quiet, warns=True)
    if out is not None:
        say(f"wrote {out}", quiet=quiet)
    is_drawn = figures is None or draw(
        gathered.found, figures, with_paper=beside == "all", quiet=quiet
    )
    for problem in problems:
        say_error(f"skipped: {problem}", problem.hint)
    if problems or not is_drawn:
        raise typer.Exit(1)


def remarks(
    document: "Report",
    *,
    alphas: Sequence[float] | None,
    radii: Sequence[float] | None,
    output: str,
) -> Iterator[str]:
    """What a reader should know before trusting the numbers, and what was asked for and is not there."""
    from ..reporting.rows import describe_conditions, run_name
    from ..reporting.scoring import list_caveats

    evaluations = Counter(run_name(record) for record in document.records)
    for record in document.records:
        name = run_name(record)
        which = name if evaluations[name] == 1 else f"{name} {describe_conditions(record)}"
        yield from (f"{which}: {text}" for text in list_caveats(record))
        if alphas and not any(row.a_sa for row in record.by_alpha):
            yield f"{which}: its rows hold no weights at these alphas"
        if radii and not record.dro and "dro" not in record.config.get("metrics", ()):
            yield f"{which}: its rows hold no losses for a worst case in a ball, or one without bounds"
    if document.comparisons is not None and not document.comparisons:
        yield "nothing can be compared: it takes two models on the same images, in the same ball, under the same attack"
    if radii and output == "csv":
        yield "CSV has no place for the worst case in a ball: take --format json"
    if document.matches is not None and not document.matches and not document.shows_paper:
        yield (
            "no row of the paper fits: it takes the same data set (its test images), defense, alpha, eps and number of PGD steps,"
            " and the kernel exp"
        )
