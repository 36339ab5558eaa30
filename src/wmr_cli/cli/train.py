"""wmr train"""

from pathlib import Path
from typing import Annotated

import typer

from .console import say, write
from .options import DataDir, Device, Quiet, components, default_data_dir


def train(
    preset: Annotated[str | None, typer.Option(metavar="P", help="Settings to start from: `wmr list presets`.")] = None,
    config: Annotated[Path | None, typer.Option(metavar="F", help="A TOML or JSON file of settings.")] = None,
    dataset: Annotated[str | None, typer.Option(metavar="S", help="What to train on: `wmr list datasets`.")] = None,
    model: Annotated[str | None, typer.Option(metavar="S", help="The network: `wmr list models`.")] = None,
    defense: Annotated[str | None, typer.Option(metavar="S", help="What a step pays: `wmr list defenses`.")] = None,
    alpha: Annotated[
        str | None, typer.Option(metavar="A", help="How strongly small margins count; 0 is the unweighted baseline.")
    ] = None,
    kernel: Annotated[str | None, typer.Option(metavar="S", help="How images are weighed: `wmr list kernels`.")] = None,
    attack: Annotated[str | None, typer.Option(metavar="S", help="The training attack: `wmr list attacks`.")] = None,
    eps: Annotated[str | None, typer.Option(metavar="E", help="Radius of the ball, such as 0.3 or 8/255.")] = None,
    steps: Annotated[int | None, typer.Option(metavar="K", help="Steps of the training attack.")] = None,
    step_size: Annotated[str | None, typer.Option(metavar="E", help="Length of a step; follows eps unless given.")] = None,
    epochs: Annotated[int | None, typer.Option(metavar="N", help="Passes over the training images.")] = None,
    batch_size: Annotated[int | None, typer.Option(metavar="N", help="Images per step.")] = None,
    augment: Annotated[
        str | None, typer.Option(metavar="LIST", help="Random changes of training images, such as crop:4,flip; none for none.")
    ] = None,
    lr: Annotated[str | None, typer.Option(metavar="X", help="Learning rate, at its peak.")] = None,
    weight_grad: Annotated[
        str | None, typer.Option(metavar="both|outer|attack|none", help="Where gradient flows through the weights.")
    ] = None,
    normalize: Annotated[
        str | None, typer.Option(metavar="none|batch", help="Divide weights by their mean over the batch.")
    ] = None,
    attack_mode: Annotated[str | None, typer.Option(metavar="eval|train", help="Mode of the network during the attack.")] = None,
    validate_every: Annotated[
        int | None, typer.Option(metavar="N", help="Epochs between looks at held-out images; 0 for none.")
    ] = None,
    select: Annotated[str | None, typer.Option(metavar="rob|sa|tr|nat|none", help="What best.safetensors is chosen by.")] = None,
    split_seed: Annotated[
        int | None, typer.Option(metavar="N", help="Chooses the held-out images, where the data set leaves that open.")
    ] = None,
    precision: Annotated[str | None, typer.Option(metavar="32|bf16|16", help="Precision of training.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Fixes everything random.", show_default="0")] = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="The run folder.", show_default="runs/NAME")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in that folder.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start anew in a folder that holds a run.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Build everything, print the resolved configuration and stop.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Train a robust classifier.

    Without any flag: TRADES with alpha 2 on the embedded digits, in under a minute.
    """
    from .. import config as configs

    asked = {name: value for name, value in locals().items() if name in configs.TrainConfig.__struct_fields__}
    import msgspec

    from ..spec import Spec
    from ..storage.runs import default_name, refuse_taken

    resolved = configs.resolve(asked, config)
    registry = components(quiet)
    for kind in configs.SPECS:
        registry.check(kind, getattr(resolved, kind))
    settled = {kind: registry.settled(kind, getattr(resolved, kind)) for kind in configs.SPECS}
    resolved = msgspec.structs.replace(resolved, **settled)
    if resolved.alpha is None:
        alpha = registry.default("kernel", Spec.parse(resolved.kernel).name, "alpha")
        resolved = msgspec.structs.replace(resolved, alpha=alpha)
    if dry_run:
        from ..workflows.train import assemble
        from .progress import waiting

        with waiting(quiet):
            assemble(resolved, registry, data_dir or default_data_dir(), device)
        write(resolved.to_json())
        return
    path = out or Path("runs") / default_name(resolved)
    refuse_taken(path, resume=resume, overwrite=overwrite)
    say(configs.summary(resolved), quiet=quiet)

    from ..workflows.events import TrainingDone
    from ..workflows.train import train as run
    from .progress import follow, resumable

    folder = data_dir or default_data_dir()
    events = run(resolved, path, registry, data_dir=folder, device=device, resume=resume, overwrite=overwrite)
    with resumable(quiet):
        for done in follow(events, TrainingDone, quiet=quiet):
            write(str(done.checkpoint))
            say(f"trained in {done.seconds:.0f} s; next: wmr evaluate {done.folder}", quiet=quiet)
