"""Write a new plugin: a package that installs and passes its own tests at once, to be changed into one's own.

`templates/` holds its files with `$name` and the like to fill in: those of every package, and four for each kind: the
module, its hook, its test and its section of the README.
"""

import importlib.util
import re
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from string import Template

from .. import __version__
from ..errors import BadInput
from ..registry import Registry
from ..storage.atomic import write_folder

KINDS = {
    "attack": "attack",
    "model": "model",
    "dataset": "dataset",
    "loss": "defense",
    "kernel": "kernel",
}
"""What an author calls each kind, by its hook, and what it is called everywhere else."""
PREFIX = "wmr-"
ARTICLES = {
    "attack": "an attack",
    "model": "a model",
    "dataset": "a data set",
    "loss": "a loss",
    "kernel": "a kernel",
}


def scaffold(name: str, kinds: Sequence[str], out: Path | None, registry: Registry) -> Path:
    """Write the package of components called `name`, one of each kind, and give its folder: `out`, or `wmr-NAME` here."""
    own = name.removeprefix(PREFIX)
    _check_name(name, own)
    _check_free(own, kinds, registry)
    folder = out or Path(PREFIX + own)
    write_folder(folder, dict(_files(own, kinds)))
    return folder


def _check_name(name: str, own: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", own):
        near = re.sub(r"[^a-z0-9]+", "-", own.lower()).strip("-") or "mine"
        near = f"my-{near}" if near[0].isdigit() else near
        raise BadInput(
            f"{name!r} cannot name a plugin",
            hint=f"lower case, words joined by '-', a letter first: try {near!r}",
        )


def _check_free(own: str, kinds: Sequence[str], registry: Registry) -> None:
    hint = f"choose another name, such as 'my-{own}'"
    for kind in kinds:
        if own in registry.names(KINDS[kind]):
            owner = registry.find(KINDS[kind], own).owner
            raise BadInput(f"{KINDS[kind]} {own!r} is already offered by {owner}", hint=hint)
    if importlib.util.find_spec(_module(own)) is not None:
        raise BadInput(f"a package {PREFIX}{own} is installed already", hint=hint)


def _files(own: str, kinds: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Every file of the package by its path in it."""
    chosen = [kind for kind in KINDS if kind in kinds]
    *others, last = [ARTICLES[kind] for kind in chosen]
    offers = f"{', '.join(others)} and {last}" if others else last
    words = {
        "name": own,
        "package": PREFIX + own,
        "module": _module(own),
        "Class": own.title().replace("-", ""),
        "offers": offers,
        "Offers": offers[0].upper() + offers[1:],
        "needs": ".".join(__version__.split(".")[:2]),
    }

    def filled(template: str) -> str:
        return Template(_read(template)).substitute(words)

    yield "pyproject.toml", filled("pyproject.toml")
    yield (
        "README.md",
        "\n".join([filled("README.md"), *(filled(f"{kind}/README.md") for kind in chosen)]),
    )
    hooks = "\n\n".join([filled("hooks.py"), *(filled(f"{kind}/hook.py") for kind in chosen)])
    yield f"src/{_module(own)}/__init__.py", hooks
    for kind in chosen:
        yield f"src/{_module(own)}/{kind}.py", filled(f"{kind}/module.py")
        yield f"tests/test_{kind}.py", filled(f"{kind}/test.py")


def _module(own: str) -> str:
    return (PREFIX + own).replace("-", "_")


def _read(template: str) -> str:
    return (
        resources.files(__name__)
        .joinpath("templates", f"{template}.txt")
        .read_text(encoding="utf-8")
    )
