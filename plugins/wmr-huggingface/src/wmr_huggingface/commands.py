"""wmr push and wmr pull"""

from pathlib import Path
from typing import Annotated

import typer

RepositoryName = Annotated[
    str, typer.Argument(metavar="OWNER/NAME", help="Repository on the hub.", show_default=False)
]


def push(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="Run folder or checkpoint file.", show_default=False),
    ],
    repository: RepositoryName,
    private: Annotated[
        bool, typer.Option("--private", help="Create the repository as a private one.")
    ] = False,
    message: Annotated[
        str, typer.Option("--message", metavar="TEXT", help="Message of the commit.")
    ] = "Upload a run of wmr",
) -> None:
    """Upload a run with its records and robustness card to the Hugging Face hub."""
    from .runs import upload_run

    typer.echo(upload_run(run, repository, private=private, message=message))


def pull(
    repository: RepositoryName,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="New run folder.", show_default="runs/NAME"),
    ] = None,
    revision: Annotated[
        str | None,
        typer.Option(
            "--revision", metavar="REF", help="Branch, tag or commit.", show_default="main"
        ),
    ] = None,
) -> None:
    """Download a run that `wmr push` has uploaded."""
    from .runs import download_run

    folder = out or Path("runs") / repository.rpartition("/")[2]
    commit = download_run(repository, revision, folder)
    typer.echo(folder)
    typer.echo(f"{repository} at commit {commit}", err=True)
