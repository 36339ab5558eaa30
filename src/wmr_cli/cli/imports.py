"""wmr import"""

from pathlib import Path
from typing import Annotated

import typer

from ..spec import Spec, format_number
from .console import say, write
from .options import DataDir, Quiet, allow_code, choice, components, default_data_dir, read, size


def import_weights(
    weights: Annotated[
        Path,
        typer.Argument(
            metavar="WEIGHTS",
            help="A safetensors file, or a state dict that torch saved.",
            show_default=False,
        ),
    ],
    model: Annotated[
        str,
        typer.Option(
            metavar="S",
            help="The network: `wmr list models`, or file.py:Class.",
            show_default=False,
        ),
    ],
    dataset: Annotated[
        str | None, typer.Option(metavar="S", help="What it classifies: `wmr list datasets`.")
    ] = None,
    match: Annotated[
        str,
        typer.Option(
            metavar="name|shape",
            help="How tensors find their place: by name, or by the order of shapes.",
        ),
    ] = "name",
    eps: Annotated[
        str | None,
        typer.Option(
            metavar="E", help="Radius to evaluate at.", show_default="that of the data set's preset"
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.safetensors",
            help="The checkpoint.",
            show_default="WEIGHTS' name, in this folder",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a file that is there already.")
    ] = False,
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Make a checkpoint of weights from elsewhere. No code in them is run."""
    radius = read("--eps", eps, size)
    read("--match", match, choice("name", "shape"))
    allow_code([model, dataset], None, quiet=quiet)
    registry = components(quiet)

    from ..evaluation.importing import ImportRequest
    from ..evaluation.importing import import_weights as run
    from ..events import ImportDone
    from .progress import follow

    request = ImportRequest(
        weights=weights,
        model=model,
        dataset=dataset,
        match=match,
        eps=radius,
        out=out,
        overwrite=overwrite,
    )
    events = run(request, registry, data_dir or default_data_dir())
    for done in follow(events, ImportDone, quiet=quiet):
        write(str(done.checkpoint))
        ball = f"{Spec.parse(done.dataset).short}, {done.norm} eps {format_number(done.eps)}"
        say(f"a checkpoint for {ball}; next: wmr evaluate {done.checkpoint}", quiet=quiet)
