"""wmr attack"""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from ..errors import BadInput
from ..spec import format_number
from .console import as_line, show, write_json
from .options import (
    DataDir,
    Device,
    Model,
    Quiet,
    Seed,
    TrustCode,
    allow_code,
    choice,
    components,
    default_data_dir,
    read,
    size,
)

PICTURES = (".png", ".svg", ".pdf")


def attack(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            metavar="CHECKPOINT",
            help="A checkpoint file or run folder; foreign weights with --model.",
            show_default=False,
        ),
    ],
    dataset: Annotated[
        str | None, typer.Option(metavar="S", help="Another data set than the checkpoint's own.")
    ] = None,
    model: Model = None,
    split: Annotated[str, typer.Option(help="Which part of the data set.")] = "test",
    attack: Annotated[
        str | None, typer.Option(metavar="S", help="The attack: `wmr list attacks`.")
    ] = None,
    eps: Annotated[
        str | None, typer.Option(metavar="E", help="Radius of the ball, such as 0.3 or 8/255.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(metavar="K", min=0, help="Steps of the attack.")
    ] = None,
    step_size: Annotated[
        str | None, typer.Option(metavar="E", help="Length of a step; follows eps unless given.")
    ] = None,
    restarts: Annotated[
        int | None,
        typer.Option(metavar="R", min=1, help="Fresh starts of the attack; the worst counts."),
    ] = None,
    alpha: Annotated[
        str | None,
        typer.Option(metavar="A", help="Climb exp(-alpha * margin) times the loss, as A_tr does."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="A random class-balanced subset of this size."),
    ] = None,
    batch_size: Annotated[int, typer.Option(metavar="N", min=1, help="Images at a time.")] = 256,
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.safetensors", help="Save the images with index, label and predictions."
        ),
    ] = None,
    save_uint8: Annotated[
        bool, typer.Option("--save-uint8", help="Round to 8 bits inside the ball, and score again.")
    ] = False,
    grid: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Draw clean image, change and adversarial image."),
    ] = None,
    seed: Seed = 0,
    device: Device = "auto",
    data_dir: DataDir = None,
    trust_code: TrustCode = None,
    output: Annotated[
        str, typer.Option("--format", metavar="table|json", help="How to print the summary.")
    ] = "table",
    quiet: Quiet = False,
) -> None:
    """Craft adversarial images and sum up how it went."""
    strength = read("--alpha", alpha, size)
    radius = read("--eps", eps, size)
    read("--format", output, choice("table", "json"))
    if save_uint8 and save is None:
        raise BadInput("--save-uint8 has nothing to save", hint="name a file with --save")
    if grid is not None and grid.suffix.lower() not in PICTURES:
        raise BadInput(
            f"--grid: cannot draw {grid}", hint=f"the file's name ends in {', '.join(PICTURES)}"
        )
    from ..config import EvaluateConfig

    config = EvaluateConfig(
        dataset=dataset,
        model=model,
        split=split,
        attacks=() if attack is None else (attack,),
        eps=() if radius is None else (radius,),
        steps=steps,
        step_size=read("--step-size", step_size, size),
        restarts=restarts,
        alpha_test=None if strength is None else (strength,),
        limit=limit,
        batch_size=batch_size,
        seed=seed,
    )
    allow_code([dataset, model, attack], trust_code, quiet=quiet)
    registry = components(quiet)

    from ..evaluation.adversarial_images import ImageOutput
    from ..evaluation.adversarial_images import attack as run
    from ..events import AttackDone
    from .progress import follow

    events = run(
        checkpoint,
        config,
        registry,
        data_dir=data_dir or default_data_dir(),
        device=device,
        weighted=strength is not None,
        output=ImageOutput(save=save, as_uint8=save_uint8, grid=grid),
    )
    for done in follow(events, AttackDone, quiet=quiet):
        if output == "json":
            write_json(done.summary)
        else:
            show(summary_table(done.summary))


def summary_table(summary: dict[str, Any]) -> Table:
    """The summary of an attack, one fact per line."""
    from ..measures import Estimate
    from ..reporting.tables.formatting import format_estimate

    success = summary["success_rate"]
    weighted = (
        ""
        if summary["alpha"] is None
        else f", weighted with alpha {format_number(summary['alpha'])}"
    )
    facts = {
        "checkpoint": summary["checkpoint"],
        "attack": f"{summary['attack']}, {summary['norm']} eps {format_number(summary['eps'])}{weighted}",
        "images": f"{summary['images']}, of which {summary['right_before']} were classified right",
        "success": f"{summary['fooled']} fooled, {format_estimate(success and Estimate(**success))} %",
        "mean size": f"{summary['mean_size']:.4g}",
        "rate": f"{summary['images_per_second']:,.0f} images/s, {summary['seconds']:.1f} s",
    }
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, fact in facts.items():
        table.add_row(f"[bold]{name}[/]", as_line(fact))
    return table
