"""wmr import"""

from pathlib import Path
from typing import Annotated

import typer

from ..config import ImportConfig, ImportFlags
from ..spec import Spec, format_number
from .console import say, write
from .flags import with_flags
from .setup import find_data_dir, load_components, trust_code


@with_flags
def import_weights(
    weights: Annotated[
        Path,
        typer.Argument(
            metavar="WEIGHTS",
            help="A safetensors file, or a state dict saved by torch.",
            show_default=False,
        ),
    ],
    config: ImportConfig,
    flags: ImportFlags,
) -> None:
    """Convert foreign weights to a checkpoint. No code in the file is run."""
    trust_code([config.model, config.dataset], quiet=flags.quiet)
    registry = load_components(flags.quiet)

    from ..evaluation.importing import ImportRequest
    from ..evaluation.importing import import_weights as run_import
    from ..events import ImportDone
    from .progress import follow

    request = ImportRequest(
        weights=weights,
        model=config.model,
        dataset=config.dataset,
        match=config.match,
        eps=config.eps,
        out=flags.out,
        overwrite=flags.overwrite,
    )
    events = run_import(request, registry, find_data_dir(flags.data_dir))
    for done in follow(events, ImportDone, quiet=flags.quiet):
        # the path alone on stdout, for scripts
        write(str(done.checkpoint))
        threat = f"{Spec.parse(done.dataset).short}, {done.norm} eps {format_number(done.eps)}"
        next_command = f"wmr evaluate {done.checkpoint}"
        say(f"a checkpoint for {threat}; next: {next_command}", quiet=flags.quiet)
