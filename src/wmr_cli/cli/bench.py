"""wmr bench"""

from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table

from ..config import SPECS, BenchConfig, TrainConfig, resolve
from ..errors import BadInput
from ..spec import format_number
from .console import as_line, make_fact_table, say, show, write, write_json
from .flags import Given, with_flags
from .setup import canonical_config, find_data_dir, load_components, trust_code

if TYPE_CHECKING:
    from ..benchmarking.results import Bench, Rate

TRAIN_SETTINGS = (
    "preset", "dataset", "model", "defense", "attack", "steps", "batch_size", "precision",
)  # fmt: skip
"""Settings of `wmr train` that the speed depends on."""


@with_flags
def bench(
    given: Annotated[dict[str, Any], Given(TrainConfig, TRAIN_SETTINGS)], options: BenchConfig
) -> None:
    """Measure the speed of attack and training, relative to the hardware limit, and advise.

    Settings are those of `wmr train`. No checkpoint or other file is written.
    """
    # ranks cannot be restarted with other settings inside one program
    if options.devices is not None and options.devices > 1 and not options.only:
        raise BadInput(
            "settings are compared in one process", hint="leave out `devices`, or add `only=True`"
        )
    if given.get("steps") == 0:
        raise BadInput("`steps` is 0, so the attack does nothing", hint="write 1 or more")
    trust_code((given.get(kind) for kind in SPECS), quiet=options.quiet)
    registry = load_components(options.quiet)
    config = canonical_config(resolve(given), registry)

    from ..benchmarking.bench import BenchOptions
    from ..benchmarking.bench import bench as run_bench
    from ..benchmarking.results import BenchDone
    from .progress import follow

    bench_options = BenchOptions(
        device=options.device,
        devices=options.devices,
        compile_model=options.compile,
        seconds=options.seconds,
        only_given=options.only,
        flags=list_flags(given, options),
    )
    data_dir = find_data_dir(options.data_dir)
    events = run_bench(config, registry, data_dir, bench_options)
    for done in follow(events, BenchDone, quiet=options.quiet):
        print_bench(done.found, options)


def list_flags(given: dict[str, Any], options: BenchConfig) -> dict[str, str]:
    """Return the flags of this command that recommended commands repeat."""
    flags = {f"--{name.replace('_', '-')}": str(value) for name, value in given.items()}
    # defaults are left out, so that a recommended command stays short
    defaults = BenchConfig()
    if options.device != defaults.device:
        flags["--device"] = options.device
    if options.data_dir is not None:
        flags["--data-dir"] = str(options.data_dir)
    if options.seconds != defaults.seconds:
        flags["--seconds"] = format_number(options.seconds)
    if options.compile:
        flags["--compile"] = ""
    return flags


def print_bench(found: "Bench", options: BenchConfig) -> None:
    """Print the rates, the settings that were tried and the recommended commands."""
    if options.format == "json":
        import msgspec

        write_json(msgspec.to_builtins(found))
        return
    show(make_rate_table(found))
    if found.tried:
        write("")
        show(make_trial_table(found))
    if found.recommended:
        write("\nrecommended, with the same results up to rounding:")
        for command in found.recommended:
            write(f"  {command}")
    if found.other_trainings:
        write("\nfaster, but change the training:")
        for trial in found.other_trainings:
            write(f"  {trial.setting}  ({_format_factor(trial.training)})")
    if any(trial.name == "--batch-size" for trial in found.other_trainings):
        advice = "settings were tried one at a time; another batch size may need another --lr"
        say(advice, quiet=options.quiet)


def make_rate_table(found: "Bench") -> Table:
    """Return one fact per line: settings, machine, rates."""
    machine = f"{found.devices} x {found.device}" if found.devices > 1 else found.device
    threads = f"{found.threads} thread{'s' * (found.threads != 1)}"
    attack_rate = _format_rate(found.attack)
    if found.share_of_limit is not None:
        attack_rate += f", {100 * found.share_of_limit:.0f} % of the limit"
    settings = f"{found.model} on {found.dataset}, {found.defense}"
    facts = {
        "setting": f"{settings}, batch {found.batch_size}, {found.steps} steps",
        "machine": f"{machine}, {threads}, precision {found.precision}",
        "attack": attack_rate,
        "training": _format_rate(found.training),
    }
    peak = found.peak_gflops
    if found.limit is not None and found.share_of_peak is not None and peak is not None:
        limit = _format_rate(found.limit)
        facts["limit"] = f"{limit}: forward and backward passes alone, {found.layout}"
        reached = f"the passes reach {100 * found.share_of_peak:.0f} %"
        facts["peak"] = f"{peak:,.0f} GFLOP/s in a matrix product; {reached}"
    if found.share_of_roofline is not None:
        facts["roofline"] = f"the attack reaches {100 * found.share_of_roofline:.0f} %"
    if found.launches_per_step is not None:
        facts["launches"] = _format_calls(found.launches_per_attack_step, found.launches_per_step)
        facts["host waits"] = _format_calls(found.waits_per_attack_step, found.waits_per_step)
    return make_fact_table(facts)


def _format_calls(in_attack_step: int | None, in_step: int | None) -> str:
    of_step = f"{in_step:,} per training step"
    return of_step if in_attack_step is None else f"{in_attack_step:,} per attack step, {of_step}"


def make_trial_table(found: "Bench") -> Table:
    """Return a row per setting that was tried."""
    table = Table("with", box=None, pad_edge=False)
    for column in ("attack", "training"):
        table.add_column(column, justify="right")
    for trial in found.tried:
        factors = (_format_factor(trial.attack), _format_factor(trial.training))
        table.add_row(as_line(trial.setting), *factors)
    return table


def _format_rate(rate: "Rate") -> str:
    return f"{rate.images_per_second:,.0f} images/s [{rate.low:,.0f}, {rate.high:,.0f}]"


def _format_factor(value: float | None) -> str:
    return "does not run" if value is None else f"{value:.2f} ×"
