"""wmr plugins, wmr plugins new and wmr doctor: what is installed, and whether it works."""

import os
import platform
import shlex
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from .. import __version__
from ..config import DoctorConfig, NewPluginConfig, PluginsConfig
from ..errors import BadInput
from ..registry import OWN_DISTRIBUTION
from .console import as_line, make_fact_table, say, say_error, show, write, write_json
from .flags import Command, Group, with_flags
from .setup import find_data_dir

if TYPE_CHECKING:
    from ..numerics.checks import Finding

NUMERICS_HINT = (
    "update the driver and torch, and unset variables that allow TF32 or fast mathematics; "
    "`--format json` has all values for a report"
)
PACKAGES = (
    "torch",
    "torchvision",
    "timm",
    "lightning-fabric",
    "safetensors",
    "numpy",
    "typer",
    "rich",
    "pluggy",
    "msgspec",
)
"""Dependencies whose versions `wmr doctor` shows."""
EXTRA_PURPOSES = {
    "mlflow": "log to MLflow: --logger mlflow",
    "notebook": "run the notebooks of the documentation",
    "pandas": "results as data frames: Result.to_pandas, read_rows",
    "slurm": "submit the runs of a study as Slurm jobs: wmr sweep --slurm",
    "tensorboard": "log to TensorBoard: --logger tensorboard",
    "torchmetrics": "RunningAccuracyMetric, a metric of torchmetrics",
    "trackio": "log to Trackio: --logger trackio",
    "wandb": "log to Weights & Biases: --logger wandb",
}
"""What users get from an extra of this package, if the installed version has it.

Tools of developers are dependency groups, not extras.
"""


@dataclass(frozen=True)
class Extra:
    """An optional extra of this package."""

    name: str
    purpose: str
    missing: tuple[str, ...]
    """requirements that no installed package meets"""

    @property
    def install_command(self) -> str:
        return f"pip install '{OWN_DISTRIBUTION}[{self.name}]'"

    @property
    def state(self) -> str:
        return f"missing: {', '.join(self.missing)}" if self.missing else "installed"


plugins_app = typer.Typer(cls=Group, invoke_without_command=True)


@plugins_app.callback()
@with_flags
def plugins(context: typer.Context, config: PluginsConfig) -> None:
    """Show the plugins, their components, and why any cannot be used; or start a new plugin."""
    # Typer runs the callback of a group also before its subcommands
    if context.invoked_subcommand is not None:
        if config.check:
            raise BadInput(
                "`check` does not belong to this command",
                hint="use `wmr plugins --check` alone",
            )
        return
    from ..plugins import check_targets, load_plugins

    found = load_plugins()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("plugin", "version", "offers"):
        table.add_column(heading, overflow="fold")
    for plugin in found.plugins:
        offers = "\n".join(f"{kind}s {', '.join(names)}" for kind, names in plugin.offers.items())
        content = escape(offers)
        if plugin.problem:
            content = f"[red]not loaded:[/] {escape(plugin.problem)}"
        table.add_row(escape(plugin.name), escape(plugin.version), content)
    show(table)
    if not config.check:
        return
    # a plugin can be loaded and still name a class that cannot be imported
    problems = [f"{plugin.name}: {plugin.problem}" for plugin in found.broken]
    problems += check_targets(found.registry)
    if not problems:
        say("all plugins and their components can be loaded", quiet=config.quiet)
        return
    # an error is one line, so several problems are listed as warnings before it
    if len(problems) == 1:
        summary = problems[0]
    else:
        summary = f"{len(problems)} plugins or components cannot be loaded"
        for problem in problems:
            say(problem, quiet=config.quiet, is_warning=True)
    say_error(summary, "reinstall or uninstall the plugin, or contact its author")
    raise typer.Exit(1)


@plugins_app.command(
    cls=Command,
    epilog="Example: wmr plugins new mine --kind attack, then pip install -e ./wmr-mine",
)
@with_flags
def new(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Name of the component; the package is wmr-NAME."),
    ],
    config: NewPluginConfig,
) -> None:
    """Write a new plugin that works and passes its tests; the places to change are marked."""
    from ..plugins import load_plugins
    from ..scaffold import scaffold

    folder = scaffold(name, list(config.kinds), config.out, load_plugins().registry)
    write(str(folder))
    # the extra `test` installs pytest, which the README needs next
    package = shlex.quote(f"{folder}[test]")
    readme = folder / "README.md"
    next_step = f"next: pip install -e {package}, then follow {readme}"
    say(f"{next_step}; CHANGE marks what to change", quiet=config.quiet)


@with_flags
def doctor(config: DoctorConfig) -> None:
    """Check this installation: versions, extras, devices, plugins, folders, arithmetic.

    Exits with status 1 if there is a problem.
    """
    if config.device != DoctorConfig().device and not config.numerics:
        raise BadInput("`device` does not belong to the other checks", hint="add `numerics=True`")
    from ..plugins import check_targets, load_plugins

    facts = {
        "wmr": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
    }
    problems: list[str] = []
    _check_packages(facts, problems)
    _check_devices(facts)
    _check_vision(facts, problems)
    _check_data_dir(find_data_dir(config.data_dir), facts, problems)
    found = load_plugins()
    usable = len(found.plugins) - len(found.broken)
    facts["plugins"] = f"{usable} in use, {len(found.broken)} not loaded"
    problems += [f"plugin {plugin.name}: {plugin.problem}" for plugin in found.broken]
    problems += check_targets(found.registry)
    extras = list_extras()
    findings = _check_numerics(config, facts, problems)
    if config.format == "json":
        numerics = [finding.to_builtins() for finding in findings]
        optional = [
            {
                "name": extra.name,
                "purpose": extra.purpose,
                "missing": extra.missing,
                "install": extra.install_command,
            }
            for extra in extras
        ]
        write_json({"facts": facts, "problems": problems, "extras": optional, "numerics": numerics})
    else:
        table = make_fact_table(facts)
        for problem in problems:
            table.add_row("[bold red]problem[/]", as_line(problem))
        show(table)
        if extras:
            write("")
            show(make_extra_table(extras))
        if findings:
            write("")
            show(make_numerics_table(findings))
    if problems:
        count = f"{len(problems)} problem{'s' * (len(problems) != 1)} found"
        hint = "repair or reinstall these parts; `wmr plugins --check` gives details about plugins"
        # wrong arithmetic is not a missing part
        if not all(finding.passed for finding in findings):
            hint = NUMERICS_HINT
        say_error(f"{count}: {'; '.join(problems)}", hint)
        raise typer.Exit(1)


def list_extras() -> list[Extra]:
    """Return the extras for users that the metadata of the installed package names."""
    try:
        own = distribution(OWN_DISTRIBUTION)
    except PackageNotFoundError:
        return []
    provided = own.metadata.get_all("Provides-Extra") or ()
    return [
        Extra(name, purpose, tuple(_find_missing(own.requires or (), name)))
        for name, purpose in EXTRA_PURPOSES.items()
        if name in provided
    ]


def _find_missing(requirements: Iterable[str], extra: str) -> Iterator[str]:
    """Yield the requirements of an extra that no installed package meets."""
    from packaging.requirements import Requirement

    for requirement in map(Requirement, requirements):
        marker = requirement.marker
        # requirements without the extra are dependencies of the package itself
        if marker is None or marker.evaluate() or not marker.evaluate({"extra": extra}):
            continue
        try:
            is_met = requirement.specifier.contains(version(requirement.name), prereleases=True)
        except PackageNotFoundError:
            is_met = False
        if not is_met:
            yield f"{requirement.name}{requirement.specifier}"


def make_extra_table(extras: Iterable[Extra]) -> Table:
    """Return a row per extra: what it adds, whether it is installed, how to install it."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("extra", "adds", "state", "command"):
        table.add_column(heading, overflow="fold")
    for extra in extras:
        cells = (extra.name, extra.purpose, extra.state, extra.install_command)
        table.add_row(*map(as_line, cells))
    return table


def _check_numerics(
    config: DoctorConfig, facts: dict[str, str], problems: list[str]
) -> "list[Finding]":
    """Return the findings about arithmetic if they are requested; add failed ones as problems."""
    if not config.numerics:
        return []
    from ..numerics.checks import check_numerics
    from ..runtime.fabric import single_process

    device = single_process(config.device).device
    facts["numerics"] = str(device)
    findings = list(check_numerics(device))
    problems += [
        f"arithmetic on {device}: {finding.quantity}: {format_value(finding.here)}"
        for finding in findings
        if not finding.passed
    ]
    return findings


def make_numerics_table(findings: "Iterable[Finding]") -> Table:
    """Return a row per quantity: here, expected, deviation, whether it is within tolerance."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("quantity", overflow="fold")
    for heading in ("here", "expected", "deviation", "tolerance"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for finding in findings:
        values = (finding.here, finding.expected, finding.deviation, finding.tolerance)
        verdict = "[green]ok[/]" if finding.passed else "[bold red]failed[/]"
        table.add_row(as_line(finding.quantity), *map(format_value, values), verdict)
    return table


def format_value(value: float) -> str:
    """Return a number with the digits that matter beside its tolerance."""
    return f"{value:.3g}" if 0 < abs(value) < 0.01 else f"{value:.5g}"


def _check_packages(facts: dict[str, str], problems: list[str]) -> None:
    for name in PACKAGES:
        try:
            facts[name] = version(name)
        except PackageNotFoundError:
            facts[name] = "missing"
            problems.append(f"{name} is not installed")


def _check_devices(facts: dict[str, str]) -> None:
    import torch

    names = map(torch.cuda.get_device_name, range(torch.cuda.device_count()))
    devices = ["cpu", *(f"cuda:{number} {name}" for number, name in enumerate(names))]
    if torch.backends.mps.is_available():
        devices.append("mps")
    facts["devices"] = ", ".join(devices)
    facts["threads"] = f"{torch.get_num_threads()} of {os.cpu_count()} cores"


def _check_vision(facts: dict[str, str], problems: list[str]) -> None:
    from ..core import torchvision_compat

    # torchvision's C++ operators are built for one version of torch; wmr needs none of them
    operators = "not for this torch; datasets, transforms and timm work without them"
    if torchvision_compat.compiled_operators_load():
        operators = "compiled, loaded"
    facts["torchvision operators"] = operators
    # versions that do not match raise RuntimeError while operators are registered
    try:
        facts["timm models"] = str(len(torchvision_compat.timm.list_models()))
    except (ImportError, RuntimeError) as error:
        problems.append(f"timm and torchvision cannot be imported: {error}")


def _check_data_dir(data_dir: Path, facts: dict[str, str], problems: list[str]) -> None:
    state = "exists" if data_dir.is_dir() else "created on first use"
    facts["data"] = f"{data_dir} ({state})"
    # the folder is created on first use, so an existing parent decides
    parent = _find_existing_parent(data_dir)
    if not parent.is_dir():
        problems.append(f"{parent} is not a folder, so {data_dir} cannot be created")
    elif not os.access(parent, os.W_OK):
        problems.append(f"{data_dir} is not writable")


def _find_existing_parent(folder: Path) -> Path:
    """Return the folder or its nearest existing parent; a dangling link counts as a file."""
    return next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
