"""wmr attack"""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from ..config import AttackConfig, AttackFlags
from ..errors import BadInput
from ..spec import format_number
from .console import make_fact_table, show, write_json
from .flags import with_flags
from .setup import find_checkpoint, find_data_dir, load_components, trust_code

IMAGE_ENDINGS = (".png", ".svg", ".pdf")


@with_flags
def attack(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            metavar="CHECKPOINT",
            help="A checkpoint file or run folder; foreign weights with --model.",
            show_default=False,
        ),
    ],
    config: AttackConfig,
    flags: AttackFlags,
) -> None:
    """Make adversarial images and summarise the result."""
    # checked before the attack, which may take hours
    if flags.save_uint8 and flags.save is None:
        raise BadInput("`save_uint8` has no file", hint="name a file with `save`")
    if flags.grid is not None and flags.grid.suffix.lower() not in IMAGE_ENDINGS:
        raise BadInput(
            f"`grid`: cannot draw {flags.grid}",
            hint=f"use one of the endings {', '.join(IMAGE_ENDINGS)}",
        )
    named = [config.dataset, config.model, config.attack]
    trust_code(named, flags.trust_code, quiet=flags.quiet)
    registry = load_components(flags.quiet)

    from ..evaluation.adversarial_images import ImageOutput
    from ..evaluation.adversarial_images import attack as run_attack
    from ..events import AttackDone
    from ..runtime.fabric import Hardware, use_idle_cores
    from .progress import follow

    use_idle_cores(Hardware(flags.device))
    data_dir = find_data_dir(flags.data_dir)
    path, settings = find_checkpoint(checkpoint, config.to_evaluate_config(), registry, data_dir)
    events = run_attack(
        path,
        settings,
        registry,
        data_dir=data_dir,
        device=flags.device,
        # alpha 0 is weighted, too: with weights of 1
        weighted=config.alpha is not None,
        output=ImageOutput(save=flags.save, as_uint8=flags.save_uint8, grid=flags.grid),
    )
    for done in follow(events, AttackDone, quiet=flags.quiet):
        if flags.format == "json":
            write_json(done.summary)
        else:
            show(make_summary_table(done.summary))


def make_summary_table(summary: dict[str, Any]) -> Table:
    """Return the summary of an attack, one fact per line."""
    from ..measures import Estimate
    from ..reporting.tables.formatting import format_estimate

    # None if no image was classified correctly before the attack
    success = summary["success_rate"]
    rate = format_estimate(success and Estimate(**success))
    threat = f"{summary['attack']}, {summary['norm']} eps {format_number(summary['eps'])}"
    if summary["alpha"] is not None:
        threat += f", weighted with alpha {format_number(summary['alpha'])}"
    facts = {
        "checkpoint": summary["checkpoint"],
        "attack": threat,
        "images": f"{summary['images']}, {summary['right_before']} of them classified correctly",
        "success": f"{summary['fooled']} misclassified under attack, {rate} %",
        "mean size": f"{summary['mean_size']:.4g}",
        "rate": f"{summary['images_per_second']:,.0f} images/s, {summary['seconds']:.1f} s",
    }
    return make_fact_table(facts)
