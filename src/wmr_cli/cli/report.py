"""wmr report"""

from pathlib import Path
from typing import Annotated

import typer

from ..errors import BadFile, BadInput
from .console import say, say_error, width
from .options import FORMATS, Quiet, choice, read, sizes

REPORT_FORMATS = (*FORMATS, "html")


def report(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="PATH", help="Run folders, folders of runs, or records.", show_default="runs"),
    ] = None,
    output: Annotated[str, typer.Option("--format", metavar="|".join(REPORT_FORMATS), help="How to show the records.")] = "table",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write to a file instead of the terminal.")] = None,
    alpha_test: Annotated[
        str | None, typer.Option(metavar="LIST", help="Score the stored rows at these values of alpha instead.")
    ] = None,
    rho: Annotated[
        str | None, typer.Option(metavar="LIST", help="The worst case of the stored rows in balls of these radii.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Show evaluations side by side, at any alpha and rho, without attacking again."""
    from ..reporting.doubts import doubts
    from ..reporting.tables import run_name
    from ..workflows.report import gather
    from .output import put

    read("--format", output, choice(*REPORT_FORMATS))
    if output == "html" and out is None and width() is not None:
        raise BadInput("a page is not for the terminal", hint="name a file with --out report.html, and open it in a browser")
    gathered = gather(paths or [Path("runs")], read("--alpha-test", alpha_test, sizes), read("--rho", rho, sizes))
    if not gathered.found and not gathered.problems:
        raise BadFile("there are no evaluations here", hint="make one with `wmr evaluate runs/NAME`")
    problems = [*gathered.problems, *put(gathered.found, output, out)]
    for record in gathered.records:
        for text in doubts(record):
            say(f"{run_name(record)}: {text}", quiet=quiet, warns=True)
    if out is not None:
        say(f"wrote {out}", quiet=quiet)
    for problem in problems:
        say_error(f"skipped: {problem}", problem.hint)
    if problems:
        raise typer.Exit(1)
