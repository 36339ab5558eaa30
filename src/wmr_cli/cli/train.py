"""wmr train"""

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import Terminated, is_first, messages, say, write
from .options import DataDir, Quiet, choice, components, default_data_dir, read, whole_numbers

if TYPE_CHECKING:
    from ..config import TrainConfig
    from ..registry import Registry
    from ..workflows.events import TrainingDone

WHAT, ATTACK, WEIGHTS, OPTIMISATION = "What to train", "The training attack", "The weights of images", "Optimisation"
SELECTION, MACHINE, FILES = "Held-out images", "Where it runs", "Files"


def train(
    preset: Annotated[
        str | None, typer.Option(metavar="P", help="Settings to start from: `wmr list presets`.", rich_help_panel=WHAT)
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="F", help="A TOML or JSON file of settings.", rich_help_panel=WHAT)
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(metavar="S", help="What to train on: `wmr list datasets`.", rich_help_panel=WHAT)
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="S", help="The network: `wmr list models`.", rich_help_panel=WHAT)] = None,
    defense: Annotated[
        str | None, typer.Option(metavar="S", help="What a step pays: `wmr list defenses`.", rich_help_panel=WHAT)
    ] = None,
    augment: Annotated[
        str | None,
        typer.Option(
            metavar="LIST", help="Random changes of training images, such as crop:4,flip; none for none.", rich_help_panel=WHAT
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Fixes everything random.", rich_help_panel=WHAT, show_default="0")
    ] = None,
    attack: Annotated[
        str | None, typer.Option(metavar="S", help="The training attack: `wmr list attacks`.", rich_help_panel=ATTACK)
    ] = None,
    eps: Annotated[
        str | None, typer.Option(metavar="E", help="Radius of the ball, such as 0.3 or 8/255.", rich_help_panel=ATTACK)
    ] = None,
    steps: Annotated[int | None, typer.Option(metavar="K", help="Steps of the training attack.", rich_help_panel=ATTACK)] = None,
    step_size: Annotated[
        str | None, typer.Option(metavar="E", help="Length of a step; follows eps unless given.", rich_help_panel=ATTACK)
    ] = None,
    eps_ramp: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help="Share of the run over which eps and the step grow to their full size, such as 0.4.",
            rich_help_panel=ATTACK,
        ),
    ] = None,
    attack_mode: Annotated[
        str | None, typer.Option(metavar="eval|train", help="Mode of the network during the attack.", rich_help_panel=ATTACK)
    ] = None,
    alpha: Annotated[
        str | None,
        typer.Option(
            metavar="A", help="How strongly small margins count; 0 is the unweighted baseline.", rich_help_panel=WEIGHTS
        ),
    ] = None,
    kernel: Annotated[
        str | None, typer.Option(metavar="S", help="How images are weighed: `wmr list kernels`.", rich_help_panel=WEIGHTS)
    ] = None,
    alpha_ramp: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="Share of the run over which alpha grows to its full size.", rich_help_panel=WEIGHTS),
    ] = None,
    weight_grad: Annotated[
        str | None,
        typer.Option(metavar="both|outer|attack|none", help="Where gradient flows through the weights.", rich_help_panel=WEIGHTS),
    ] = None,
    normalize: Annotated[
        str | None,
        typer.Option(
            metavar="none|batch", help="Divide weights by their mean over the batch of all devices.", rich_help_panel=WEIGHTS
        ),
    ] = None,
    max_weight: Annotated[
        str | None, typer.Option(metavar="W", help="No image counts more than this in the loss.", rich_help_panel=WEIGHTS)
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(metavar="N", help="Passes over the training images.", rich_help_panel=OPTIMISATION)
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(metavar="N", help="Images per step, over all devices.", rich_help_panel=OPTIMISATION)
    ] = None,
    optimizer: Annotated[
        str | None, typer.Option(metavar="sgd|adam|adamw", help="What follows the gradient.", rich_help_panel=OPTIMISATION)
    ] = None,
    lr: Annotated[str | None, typer.Option(metavar="X", help="Learning rate, at its peak.", rich_help_panel=OPTIMISATION)] = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            metavar="constant|multistep|cosine|one-cycle", help="How the learning rate changes.", rich_help_panel=OPTIMISATION
        ),
    ] = None,
    milestones: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Epochs at which multistep lowers it, such as 55,75,90.", rich_help_panel=OPTIMISATION),
    ] = None,
    warmup: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help="Share of the run over which the learning rate grows from 0, such as 0.05.",
            rich_help_panel=OPTIMISATION,
        ),
    ] = None,
    weight_decay: Annotated[
        str | None, typer.Option(metavar="X", help="How strongly weights are pulled to 0.", rich_help_panel=OPTIMISATION)
    ] = None,
    decay: Annotated[
        str | None,
        typer.Option(
            metavar="all|weights", help="What decays: all parameters, or all but biases and norms.", rich_help_panel=OPTIMISATION
        ),
    ] = None,
    clip_grad: Annotated[
        str | None, typer.Option(metavar="X", help="Longest gradient, in L2.", rich_help_panel=OPTIMISATION)
    ] = None,
    label_smoothing: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="Share of every label that is spread over all classes.", rich_help_panel=OPTIMISATION),
    ] = None,
    ema: Annotated[
        str | None,
        typer.Option(
            metavar="DECAY",
            help="Also keep a moving average of the weights, such as 0.999, in ema.safetensors.",
            rich_help_panel=OPTIMISATION,
        ),
    ] = None,
    validate_every: Annotated[
        int | None,
        typer.Option(metavar="N", help="Epochs between looks at held-out images; 0 for none.", rich_help_panel=SELECTION),
    ] = None,
    select: Annotated[
        str | None,
        typer.Option(metavar="rob|sa|tr|nat|none", help="What best.safetensors is chosen by.", rich_help_panel=SELECTION),
    ] = None,
    split_seed: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Chooses the held-out images, where the data set leaves that open.", rich_help_panel=SELECTION
        ),
    ] = None,
    device: Annotated[str, typer.Option(metavar="D", help="auto, cpu, cuda, cuda:N or mps.", rich_help_panel=MACHINE)] = "auto",
    devices: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="How many of them share each batch; torchrun and Slurm say it by themselves.",
            rich_help_panel=MACHINE,
            min=1,
            show_default="1",
        ),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(metavar="N", help="On how many machines.", rich_help_panel=MACHINE, min=1, show_default="1")
    ] = None,
    precision: Annotated[
        str | None, typer.Option(metavar="32|bf16|16", help="Precision of training.", rich_help_panel=MACHINE)
    ] = None,
    compile_: Annotated[
        bool, typer.Option("--compile", help="Compile the network first: slow to start, then faster.", rich_help_panel=MACHINE)
    ] = False,
    save_minutes: Annotated[
        float,
        typer.Option(
            metavar="M", help="Save the state so often within an epoch; 0 for after epochs only.", rich_help_panel=FILES, min=0
        ),
    ] = 10.0,
    logger: Annotated[
        list[str] | None,
        typer.Option(metavar="tensorboard|csv", help="Also log there; may be given twice.", rich_help_panel=FILES),
    ] = None,
    data_dir: DataDir = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The run folder.", rich_help_panel=FILES, show_default="runs/NAME")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in that folder.", rich_help_panel=FILES)] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start anew in a folder that holds a run.", rich_help_panel=FILES)
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Take a few steps, print the resolved configuration and how long the run would take, and stop.",
        ),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Train a robust classifier.

    Without any flag: TRADES with alpha 2 on the embedded digits, in under a minute.
    """
    from .. import config as configs

    asked = {name: value for name, value in locals().items() if name in configs.TrainConfig.__struct_fields__}
    asked["milestones"] = read("--milestones", milestones, whole_numbers)
    loggers = tuple(dict.fromkeys(read("--logger", name, choice("tensorboard", "csv")) or "" for name in logger or ()))
    registry = components(quiet)
    resolved = settled(configs.resolve(asked, config), registry)
    folder = data_dir or default_data_dir()
    machine: dict[str, Any] = {"device": device, "devices": devices, "nodes": nodes, "compiles": compile_}
    if dry_run:
        rehearse(resolved, registry, folder, machine, quiet)
        return

    from ..storage.runs import default_name, refuse_taken

    path = out or Path("runs") / default_name(resolved)
    refuse_taken(path, resume=resume, overwrite=overwrite)
    say(configs.summary(resolved), quiet=quiet)

    from ..workflows.devices import has_accelerator
    from ..workflows.events import TrainingDone, TrainingStopped
    from ..workflows.train import train as run
    from .progress import follow, resumable

    advise(preset is None and config is None and not has_accelerator(device), resolved, quiet)
    saving: dict[str, Any] = {"save_minutes": save_minutes, "loggers": loggers, "resume": resume, "overwrite": overwrite}
    events = run(resolved, path, registry, data_dir=folder, **machine, **saving)
    with resumable(quiet):
        for done in follow(events, TrainingDone, TrainingStopped, quiet=quiet):
            match done:
                case TrainingDone():
                    conclude(done, resolved, quiet)
                case TrainingStopped():
                    say(f"saved after step {done.step} of epoch {done.epoch}", quiet=quiet)
                    raise KeyboardInterrupt if done.signal == signal.SIGINT else Terminated(128 + signal.SIGTERM)


def settled(config: "TrainConfig", registry: "Registry") -> "TrainConfig":
    """The configuration with every component's name and parameters checked, and the kernel's own alpha where none was asked."""
    import msgspec

    from .. import config as configs
    from ..spec import Spec

    for kind in configs.SPECS:
        registry.check(kind, getattr(config, kind))
    config = msgspec.structs.replace(config, **{kind: registry.settled(kind, getattr(config, kind)) for kind in configs.SPECS})
    if config.alpha is None:
        alpha = registry.default("kernel", Spec.parse(config.kernel).name, "alpha")
        config = msgspec.structs.replace(config, alpha=alpha)
    return config


def rehearse(config: "TrainConfig", registry: "Registry", data_dir: Path, machine: dict[str, Any], quiet: bool) -> None:
    """Print what would be run, and how long it would take."""
    from ..workflows.estimate import estimate
    from .progress import waiting

    with waiting(quiet):
        expected = estimate(config, registry, data_dir, **machine)
    if is_first():
        write(config.to_json())
        look = f", {duration(expected.look)} per look at held-out images" if expected.look else ""
        say(f"about {duration(expected.run)}: {duration(expected.epoch)} per epoch{look}", quiet=quiet)


def advise(wanted: bool, config: "TrainConfig", quiet: bool) -> None:
    """Name the preset for machines without accelerator, where one would be missed."""
    from .. import presets
    from ..spec import Spec

    smaller = f"cpu/{Spec.parse(config.dataset).name}"
    if wanted and smaller in presets.names():
        say(f"without an accelerator this takes long; --preset {smaller} is made for that", quiet=quiet)


def conclude(done: "TrainingDone", config: "TrainConfig", quiet: bool) -> None:
    """The checkpoint, what held-out images say of it, and the next command."""
    from ..reporting.held_out import held_out_sheet

    sheet, console = held_out_sheet(done.entries, done.best, config.select), messages(quiet)
    if sheet is not None:
        console.print(sheet.table(console.width))
    write(str(done.checkpoint))
    say(f"trained in {duration(done.seconds)}; next: wmr evaluate {done.folder}", quiet=quiet)


def duration(seconds: float) -> str:
    """`42 s`, `3.5 min` or `12.3 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
