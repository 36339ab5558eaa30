"""wmr report"""

from pathlib import Path
from typing import Annotated

import typer

from ..errors import BadFile
from .console import say, say_error
from .options import FORMATS, Quiet, choice, read, sizes


def report(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="PATH", help="Run folders, folders of runs, or records.", show_default="runs"),
    ] = None,
    output: Annotated[str, typer.Option("--format", metavar="|".join(FORMATS), help="How to print the records.")] = "table",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write to a file instead of the terminal.")] = None,
    alpha_test: Annotated[
        str | None, typer.Option(metavar="LIST", help="Score the stored rows at these values of alpha instead.")
    ] = None,
    rho: Annotated[
        str | None, typer.Option(metavar="LIST", help="The worst case of the stored rows in balls of these radii.")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Draw the records into this folder, as PNG, SVG and PDF.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Show evaluations side by side, at any alpha and rho, without attacking again."""
    from ..reporting.doubts import doubts
    from ..reporting.tables import run_name
    from ..workflows.report import gather
    from .drawing import draw
    from .output import put

    read("--format", output, choice(*FORMATS))
    gathered = gather(paths or [Path("runs")], read("--alpha-test", alpha_test, sizes), read("--rho", rho, sizes))
    if not gathered.found and not gathered.problems:
        raise BadFile("there are no evaluations here", hint="make one with `wmr evaluate runs/NAME`")
    put(gathered.found, output, out)
    for record in gathered.records:
        for text in doubts(record):
            say(f"{run_name(record)}: {text}", quiet=quiet, warns=True)
    if out is not None:
        say(f"wrote {out}", quiet=quiet)
    is_drawn = figures is None or draw(gathered.found, figures, quiet=quiet)
    for problem in gathered.problems:
        say_error(f"skipped: {problem}", problem.hint)
    if gathered.problems or not is_drawn:
        raise typer.Exit(1)
