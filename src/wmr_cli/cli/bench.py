"""wmr bench"""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from ..errors import BadInput
from ..spec import MAX_DEVICES
from .console import as_line, say, show, write, write_json
from .options import DataDir, Device, Quiet, allow_code, choice, components, default_data_dir, read

if TYPE_CHECKING:
    from ..benchmarking.results import Bench, Rate

SECONDS, MAX_SECONDS = 5.0, 86_400
SETTINGS = ("preset", "dataset", "model", "defense", "attack", "steps", "batch_size", "precision")


def bench(
    preset: Annotated[
        str | None, typer.Option(metavar="P", help="Settings to start from: `wmr list presets`.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(metavar="S", help="What would be trained on: `wmr list datasets`.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="S", help="The network: `wmr list models`.")
    ] = None,
    defense: Annotated[
        str | None, typer.Option(metavar="S", help="What a step pays: `wmr list defenses`.")
    ] = None,
    attack: Annotated[
        str | None, typer.Option(metavar="S", help="The training attack: `wmr list attacks`.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(metavar="K", min=1, help="Steps of the attack.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Images per step, over all devices.")
    ] = None,
    device: Device = "auto",
    devices: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=MAX_DEVICES,
            help="How many of them share each batch.",
            show_default="1",
        ),
    ] = None,
    precision: Annotated[
        str | None, typer.Option(metavar="32|bf16|16", help="Precision of training.")
    ] = None,
    compile_: Annotated[bool, typer.Option("--compile", help="Compile the network first.")] = False,
    seconds: Annotated[
        float,
        typer.Option(
            metavar="S", min=0, max=MAX_SECONDS, help="About how long to measure each thing."
        ),
    ] = SECONDS,
    only: Annotated[
        bool, typer.Option("--only", help="Measure these settings only, without limit or advice.")
    ] = False,
    data_dir: DataDir = None,
    output: Annotated[
        str, typer.Option("--format", metavar="table|json", help="How to print what was found.")
    ] = "table",
    quiet: Quiet = False,
) -> None:
    """Measure how fast a network is attacked and trained here, how near that is to the limit, and what would be faster.

    Settings are those of `wmr train`. Nothing is trained for good, and nothing is written.
    """
    from .. import config as configs

    given = {
        name: value for name, value in locals().items() if name in SETTINGS and value is not None
    }
    read("--format", output, choice("table", "json"))
    if devices is not None and devices > 1 and not only:
        raise BadInput(
            "settings are compared from one process", hint="leave out --devices, or add --only"
        )
    from .train import settled

    allow_code((given.get(kind) for kind in configs.SPECS), None, quiet=quiet)
    registry = components(quiet)
    config = settled(configs.resolve(given), registry)
    flags = {f"--{name.replace('_', '-')}": str(value) for name, value in given.items()}
    flags |= {"--device": device} if device != "auto" else {}
    flags |= {"--data-dir": str(data_dir)} if data_dir is not None else {}
    flags |= {"--seconds": f"{seconds:g}"} if seconds != SECONDS else {}
    flags |= {"--compile": ""} if compile_ else {}

    from ..benchmarking.bench import BenchOptions
    from ..benchmarking.bench import bench as run
    from ..benchmarking.results import BenchDone
    from .progress import follow

    options = BenchOptions(
        device=device,
        devices=devices,
        compiles=compile_,
        seconds=seconds,
        only_given=only,
        flags=flags,
    )
    events = run(config, registry, data_dir or default_data_dir(), options)
    for done in follow(events, BenchDone, quiet=quiet):
        draw(done.found, output, quiet)


def draw(found: "Bench", output: str, quiet: bool) -> None:
    """What was found: the rates, the settings that were tried, the commands to copy."""
    if output == "json":
        import msgspec

        write_json(msgspec.to_builtins(found))
        return
    show(rates(found))
    if found.tried:
        write("")
        show(trials(found))
    if found.recommended:
        write("\nrecommended:")
        for command in found.recommended:
            write(f"  {command}")
    if any("--batch-size" in command for command in found.recommended[:1]):
        say(
            "settings were tried one at a time; another batch size is another training, whose learning rate may have to follow",
            quiet=quiet,
        )


def rates(found: "Bench") -> Table:
    """A fact per line."""
    share = (
        "" if found.share_of_limit is None else f", {100 * found.share_of_limit:.0f} % of the limit"
    )
    on = f"{found.devices} x {found.device}" if found.devices > 1 else found.device
    facts = {
        "setting": f"{found.model} on {found.dataset}, {found.defense}, batch {found.batch_size}, {found.steps} steps",
        "machine": f"{on}, {found.threads} thread{'s' * (found.threads != 1)}, precision {found.precision}",
        "attack": f"{_rate(found.attack)}{share}",
        "training": _rate(found.training),
    }
    if (
        found.limit is not None
        and found.share_of_peak is not None
        and found.peak_gflops is not None
    ):
        facts["limit"] = f"{_rate(found.limit)}: the bare passes of the attack, {found.layout}"
        facts["peak"] = (
            f"{found.peak_gflops:,.0f} GFLOP/s in a matrix product; the bare passes reach {100 * found.share_of_peak:.0f} %"
        )
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, fact in facts.items():
        table.add_row(f"[bold]{name}[/]", as_line(fact))
    return table


def trials(found: "Bench") -> Table:
    """A row per setting."""
    table = Table("with", box=None, pad_edge=False)
    for column in ("attack", "training"):
        table.add_column(column, justify="right")
    for trial in found.tried:
        table.add_row(
            as_line(trial.setting), *(_times(value) for value in (trial.attack, trial.training))
        )
    return table


def _rate(rate: "Rate") -> str:
    return f"{rate.images_per_second:,.0f} images/s [{rate.low:,.0f}, {rate.high:,.0f}]"


def _times(value: float | None) -> str:
    return "does not run" if value is None else f"{value:.2f} ×"
