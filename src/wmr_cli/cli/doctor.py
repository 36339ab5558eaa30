"""wmr doctor"""

import os
import platform
import sys
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from .. import __version__
from .console import as_line, say_error, show
from .options import DataDir, default_data_dir

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


def doctor(data_dir: DataDir = None) -> None:
    """Check this installation: versions, devices, torchvision, plugins, folders. Exit 1 if something needs mending."""
    from importlib.metadata import PackageNotFoundError, version

    import torch

    from ..core import torchvision_compat
    from ..plugins import check_targets, installed

    problems = []
    facts = {
        "wmr": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
    }
    for name in PACKAGES:
        try:
            facts[name] = version(name)
        except PackageNotFoundError:
            facts[name] = "missing"
            problems.append(f"{name} is not installed")
    facts["devices"] = ", ".join(_devices(torch))
    facts["threads"] = f"{torch.get_num_threads()} of {os.cpu_count()} cores"
    facts["torchvision operators"] = (
        "compiled, loaded"
        if torchvision_compat.compiled_operators_load()
        else "not for this torch; data sets, transforms and timm work without them"
    )
    try:
        facts["timm models"] = str(len(torchvision_compat.timm.list_models()))
    except (ImportError, RuntimeError) as error:
        problems.append(f"timm and torchvision cannot be imported: {error}")
    folder = data_dir or default_data_dir()
    facts["data"] = f"{folder} ({'there' if folder.is_dir() else 'made when first needed'})"
    if not _nearest(folder).is_dir():
        problems.append(f"{_nearest(folder)} is not a folder, so that {folder} cannot hold data")
    elif not os.access(_nearest(folder), os.W_OK):
        problems.append(f"{folder} is not writable")
    found = installed()
    facts["plugins"] = (
        f"{len(found.plugins) - len(found.broken)} in use, {len(found.broken)} set aside"
    )
    problems += [
        f"plugin {plugin.name}: {plugin.problem}" for plugin in found.broken
    ] + check_targets(found.registry)
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, fact in facts.items():
        table.add_row(f"[bold]{as_line(name)}[/]", as_line(fact))
    for problem in problems:
        table.add_row("[bold red]problem[/]", as_line(problem))
    show(table)
    if problems:
        say_error(
            f"{len(problems)} problem{'s' * (len(problems) != 1)} found: {'; '.join(problems)}",
            "repair or reinstall what is named; `wmr plugins --check` tells more about plugins",
        )
        raise typer.Exit(1)


def _devices(torch: Any) -> list[str]:
    cuda = [
        f"cuda:{number} {torch.cuda.get_device_name(number)}"
        for number in range(torch.cuda.device_count())
    ]
    return ["cpu", *cuda, *(["mps"] if torch.backends.mps.is_available() else [])]


def _nearest(folder: Path) -> Path:
    """The folder itself, or the first parent that exists; a link that leads nowhere counts as a file."""
    return next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
