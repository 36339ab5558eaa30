"""wmr train"""

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..spec import MAX_DEVICES, MAX_MINUTES, MAX_NODES
from .console import Terminated, is_first, messages, say, write
from .options import (
    allow_code,
    choice,
    components,
    default_data_dir,
    read,
    whole_numbers,
)

if TYPE_CHECKING:
    from ..config import TrainConfig
    from ..events import TrainingDone
    from ..registry import Registry

WHAT, ATTACK, WEIGHTS, OPTIMISATION = (
    "What to train",
    "The training attack",
    "The weights of images",
    "Optimisation",
)
SELECTION, MACHINE, FILES = "Held-out images", "Where it runs", "Files"
COMMAND = "This command"


def flag(panel: str | None, metavar: str | None, meaning: str, *names: str, **more: Any) -> Any:
    """A flag of one panel of the help."""
    return typer.Option(*names, metavar=metavar, help=meaning, rich_help_panel=panel, **more)


def train(
    preset: Annotated[
        str | None, flag(WHAT, "P", "Settings to start from: `wmr list presets`.")
    ] = None,
    config: Annotated[Path | None, flag(WHAT, "F", "A TOML or JSON file of settings.")] = None,
    dataset: Annotated[
        str | None, flag(WHAT, "S", "What to train on: `wmr list datasets`.")
    ] = None,
    model: Annotated[str | None, flag(WHAT, "S", "The network: `wmr list models`.")] = None,
    defense: Annotated[
        str | None, flag(WHAT, "S", "What a step pays: `wmr list defenses`.")
    ] = None,
    augment: Annotated[
        str | None,
        flag(
            WHAT, "LIST", "Random changes of training images, such as crop:4,flip; none for none."
        ),
    ] = None,
    seed: Annotated[
        int | None, flag(WHAT, "N", "Fixes everything random.", show_default="0")
    ] = None,
    attack: Annotated[
        str | None, flag(ATTACK, "S", "The training attack: `wmr list attacks`.")
    ] = None,
    eps: Annotated[
        str | None, flag(ATTACK, "E", "Radius of the ball, such as 0.3 or 8/255.")
    ] = None,
    steps: Annotated[int | None, flag(ATTACK, "K", "Steps of the training attack.")] = None,
    step_size: Annotated[
        str | None, flag(ATTACK, "E", "Length of a step; follows eps unless given.")
    ] = None,
    eps_ramp: Annotated[
        str | None,
        flag(
            ATTACK,
            "SHARE",
            "Share of the run over which eps and the step grow to their full size, such as 0.4.",
        ),
    ] = None,
    attack_mode: Annotated[
        str | None, flag(ATTACK, "eval|train", "Mode of the network during the attack.")
    ] = None,
    alpha: Annotated[
        str | None,
        flag(WEIGHTS, "A", "How strongly small margins count; 0 is the unweighted baseline."),
    ] = None,
    kernel: Annotated[
        str | None, flag(WEIGHTS, "S", "How images are weighed: `wmr list kernels`.")
    ] = None,
    alpha_ramp: Annotated[
        str | None,
        flag(WEIGHTS, "SHARE", "Share of the run over which alpha grows to its full size."),
    ] = None,
    weight_grad: Annotated[
        str | None,
        flag(WEIGHTS, "both|outer|attack|none", "Where gradient flows through the weights."),
    ] = None,
    normalize: Annotated[
        str | None,
        flag(WEIGHTS, "none|batch", "Divide weights by their mean over the batch of all devices."),
    ] = None,
    max_weight: Annotated[
        str | None, flag(WEIGHTS, "W", "No image counts more than this in the loss.")
    ] = None,
    epochs: Annotated[
        int | None, flag(OPTIMISATION, "N", "Passes over the training images.")
    ] = None,
    batch_size: Annotated[
        int | None, flag(OPTIMISATION, "N", "Images per step, over all devices.")
    ] = None,
    optimizer: Annotated[
        str | None, flag(OPTIMISATION, "sgd|adam|adamw", "What follows the gradient.")
    ] = None,
    lr: Annotated[str | None, flag(OPTIMISATION, "X", "Learning rate, at its peak.")] = None,
    schedule: Annotated[
        str | None,
        flag(OPTIMISATION, "constant|multistep|cosine|one-cycle", "How the learning rate changes."),
    ] = None,
    milestones: Annotated[
        str | None,
        flag(OPTIMISATION, "LIST", "Epochs at which multistep lowers it, such as 55,75,90."),
    ] = None,
    warmup: Annotated[
        str | None,
        flag(
            OPTIMISATION,
            "SHARE",
            "Share of the run over which the learning rate grows from 0, such as 0.05.",
        ),
    ] = None,
    weight_decay: Annotated[
        str | None, flag(OPTIMISATION, "X", "How strongly weights are pulled to 0.")
    ] = None,
    decay: Annotated[
        str | None,
        flag(
            OPTIMISATION, "all|weights", "What decays: all parameters, or all but biases and norms."
        ),
    ] = None,
    clip_grad: Annotated[str | None, flag(OPTIMISATION, "X", "Longest gradient, in L2.")] = None,
    label_smoothing: Annotated[
        str | None,
        flag(OPTIMISATION, "SHARE", "Share of every label that is spread over all classes."),
    ] = None,
    ema: Annotated[
        str | None,
        flag(
            OPTIMISATION,
            "DECAY",
            "Also keep a moving average of the weights, such as 0.999, in ema.safetensors.",
        ),
    ] = None,
    validate_every: Annotated[
        int | None, flag(SELECTION, "N", "Epochs between looks at held-out images; 0 for none.")
    ] = None,
    select: Annotated[
        str | None, flag(SELECTION, "rob|sa|tr|nat|none", "What best.safetensors is chosen by.")
    ] = None,
    split_seed: Annotated[
        int | None,
        flag(SELECTION, "N", "Chooses the held-out images, where the data set leaves that open."),
    ] = None,
    device: Annotated[str, flag(MACHINE, "D", "auto, cpu, cuda, cuda:N or mps.")] = "auto",
    devices: Annotated[
        int | None,
        flag(
            MACHINE,
            "N",
            "How many of them share each batch; torchrun and Slurm say it by themselves.",
            min=1,
            max=MAX_DEVICES,
            show_default="1",
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        flag(MACHINE, "N", "On how many machines.", min=1, max=MAX_NODES, show_default="1"),
    ] = None,
    precision: Annotated[str | None, flag(MACHINE, "32|bf16|16", "Precision of training.")] = None,
    layout: Annotated[
        str | None,
        flag(
            MACHINE,
            "auto|channels-last|contiguous",
            "How images and weights lie in memory.",
            show_default="auto",
        ),
    ] = None,
    fold: Annotated[
        bool | None,
        flag(
            MACHINE,
            None,
            "Attack a lean twin of the network, batch-norm folded into convolutions.",
            "--fold/--no-fold",
            show_default="fold",
        ),
    ] = None,
    compile_: Annotated[
        bool,
        flag(MACHINE, None, "Compile the network first: slow to start, then faster.", "--compile"),
    ] = False,
    save_minutes: Annotated[
        float,
        flag(
            FILES,
            "M",
            "Save the state so often within an epoch; 0 for after epochs only.",
            min=0,
            max=MAX_MINUTES,
        ),
    ] = 10.0,
    logger: Annotated[
        list[str] | None, flag(FILES, "tensorboard|csv", "Also log there; may be given twice.")
    ] = None,
    data_dir: Annotated[
        Path | None,
        flag(
            FILES,
            "DIR",
            "Where datasets are.",
            envvar="WMR_DATA_DIR",
            show_default="~/.cache/wmr/data",
        ),
    ] = None,
    out: Annotated[
        Path | None, flag(FILES, "DIR", "The run folder.", show_default="runs/NAME")
    ] = None,
    resume: Annotated[
        bool, flag(FILES, None, "Go on with the run in that folder.", "--resume")
    ] = False,
    overwrite: Annotated[
        bool, flag(FILES, None, "Start anew in a folder that holds a run.", "--overwrite")
    ] = False,
    trust_code: Annotated[
        list[str] | None,
        flag(
            FILES,
            "SHA256",
            "Allow code that only --config names, by the SHA-256 of the Python file; may be given several times.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        flag(
            COMMAND,
            None,
            "Print the resolved configuration, take a few steps, tell how long the run would take, and stop.",
            "--dry-run",
        ),
    ] = False,
    quiet: Annotated[
        bool,
        flag(COMMAND, None, "Silence everything on stderr but errors.", "--quiet", "-q"),
    ] = False,
) -> None:
    """Train a robust classifier.

    Without any flag: TRADES with alpha 2 on the embedded digits, in about a minute.
    """
    from .. import config as configs

    asked = {
        name: value
        for name, value in locals().items()
        if name in configs.TrainConfig.__struct_fields__
    }
    asked["milestones"] = read("--milestones", milestones, whole_numbers)
    loggers = tuple(
        dict.fromkeys(
            read("--logger", name, choice("tensorboard", "csv")) or "" for name in logger or ()
        )
    )
    allow_code((asked[kind] for kind in configs.SPECS), trust_code, quiet=quiet)
    registry = components(quiet)
    resolved = settled(configs.resolve(asked, config), registry)
    folder = data_dir or default_data_dir()
    machine: dict[str, Any] = {"device": device, "devices": devices, "nodes": nodes}
    if dry_run:
        rehearse(resolved, registry, folder, machine, compile_, quiet)
        return

    from ..storage.runs import check_available, default_run_name

    path = out or Path("runs") / default_run_name(resolved)
    check_available(path, resume=resume, overwrite=overwrite)
    say(configs.summary(resolved), quiet=quiet)

    from ..events import TrainingDone, TrainingStopped
    from ..runtime.fabric import Hardware, has_accelerator
    from ..training.loop import TrainOptions
    from ..training.loop import train as run
    from .progress import follow, resumable

    advise(preset is None and config is None and not has_accelerator(device), resolved, quiet)
    options = TrainOptions(
        data_dir=folder,
        hardware=Hardware(**machine),
        compiles=compile_,
        save_minutes=save_minutes,
        loggers=loggers,
        resume=resume,
        overwrite=overwrite,
    )
    events = run(resolved, path, registry, options)
    with resumable(quiet):
        for done in follow(events, TrainingDone, TrainingStopped, quiet=quiet):
            match done:
                case TrainingDone():
                    conclude(done, resolved, quiet)
                case TrainingStopped():
                    say(f"saved after step {done.step} of epoch {done.epoch}", quiet=quiet)
                    raise (
                        KeyboardInterrupt
                        if done.signal == signal.SIGINT
                        else Terminated(128 + signal.SIGTERM)
                    )


def settled(config: "TrainConfig", registry: "Registry") -> "TrainConfig":
    """The configuration with every component's name and parameters checked, and the kernel's own alpha where none was asked."""
    import msgspec

    from .. import config as configs
    from ..spec import Spec

    for kind in configs.SPECS:
        registry.check(kind, getattr(config, kind))
    config = msgspec.structs.replace(
        config,
        **{kind: registry.canonical_spec(kind, getattr(config, kind)) for kind in configs.SPECS},
    )
    if config.alpha is None:
        alpha = registry.default("kernel", Spec.parse(config.kernel).name, "alpha")
        config = msgspec.structs.replace(config, alpha=alpha)
    return config


def rehearse(
    config: "TrainConfig",
    registry: "Registry",
    data_dir: Path,
    machine: dict[str, Any],
    compiles: bool,
    quiet: bool,
) -> None:
    """Print what would be run, and how long it would take."""
    from ..runtime.fabric import Hardware, launch
    from ..training.estimate import estimate
    from ..training.setup import set_up_training
    from .progress import waiting

    if is_first():  # before all that may fail: the data set may not be there yet
        write(config.to_json())
    with waiting(quiet):
        runtime = launch(Hardware(**machine), config.precision)
        run = set_up_training(config, registry, data_dir, runtime, compiles=compiles)
        expected = estimate(run)
    if is_first():
        for fact in run.describe():
            say(fact, quiet=quiet)
        look = f", {duration(expected.validation)} per validation" if expected.validation else ""
        say(
            f"about {duration(expected.run)}: {duration(expected.epoch)} per epoch{look}",
            quiet=quiet,
        )


def advise(wanted: bool, config: "TrainConfig", quiet: bool) -> None:
    """Name the preset for machines without accelerator, where one would be missed."""
    from .. import presets
    from ..spec import Spec

    smaller = f"cpu/{Spec.parse(config.dataset).name}"
    if wanted and smaller in presets.names():
        say(
            f"without an accelerator this takes long; --preset {smaller} is made for that",
            quiet=quiet,
        )


def conclude(done: "TrainingDone", config: "TrainConfig", quiet: bool) -> None:
    """The checkpoint, what held-out images say of it, and the next command."""
    from ..reporting.tables.details import make_validation_table

    sheet, console = make_validation_table(done.entries, done.best, config.select), messages(quiet)
    if sheet is not None:
        console.print(sheet.to_rich_table(console.width))
    write(str(done.checkpoint))
    say(f"trained in {duration(done.seconds)}; next: wmr evaluate {done.folder}", quiet=quiet)


def duration(seconds: float) -> str:
    """`42 s`, `3.5 min` or `12.3 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
