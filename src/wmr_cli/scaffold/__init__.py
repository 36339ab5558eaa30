"""Write a new plugin: a package that installs and passes its own tests.

`templates/` has the files of every package, and for each kind the module, its hook, its test and
its section of the README. `$name` and other placeholders are filled in.
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

PACKAGE_PREFIX = "wmr-"
KIND_WITH_ARTICLE = {
    "attack": "an attack",
    "model": "a model",
    "dataset": "a dataset",
    "defense": "a defense",
    "kernel": "a kernel",
    "verifier": "a verifier",
    "logger": "a logger",
}
KIND_ALIASES = {"loss": "defense"}
"""Names of kinds in 0.1."""


def scaffold(name: str, kinds: Sequence[str], out: Path | None, registry: Registry) -> Path:
    """Write a package with one component of each kind, all called `name`.

    Return its folder: `out`, or `wmr-NAME` in the current folder.
    """
    component = name.removeprefix(PACKAGE_PREFIX)
    _check_name(name, component)
    kinds = [KIND_ALIASES.get(kind, kind) for kind in kinds]
    _check_free(component, kinds, registry)
    folder = out or Path(PACKAGE_PREFIX + component)
    write_folder(folder, dict(_make_files(component, kinds)))
    return folder


def _check_name(name: str, component: str) -> None:
    if re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", component):
        return
    suggestion = re.sub(r"[^a-z0-9]+", "-", component.lower()).strip("-") or "mine"
    if suggestion[0].isdigit():
        suggestion = f"my-{suggestion}"
    raise BadInput(
        f"{name!r} is not a valid name of a plugin",
        hint=f"use lower case, words joined by '-', a letter first: try {suggestion!r}",
    )


def _check_free(component: str, kinds: Sequence[str], registry: Registry) -> None:
    hint = f"choose another name, such as 'my-{component}'"
    for kind in kinds:
        if component in registry.names(kind):
            owner = registry.find(kind, component).owner
            raise BadInput(f"{owner} already has a {kind} {component!r}", hint=hint)
    if importlib.util.find_spec(_module_name(component)) is not None:
        raise BadInput(f"a package {PACKAGE_PREFIX}{component} is already installed", hint=hint)


def _make_files(component: str, kinds: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield path and text of every file."""
    # the order of KIND_WITH_ARTICLE, whatever the order of the flags
    chosen = [kind for kind in KIND_WITH_ARTICLE if kind in kinds]
    module = _module_name(component)
    offers = _join_words([KIND_WITH_ARTICLE[kind] for kind in chosen])
    values = {
        "name": component,
        "package": PACKAGE_PREFIX + component,
        "module": module,
        "Class": component.title().replace("-", ""),
        "offers": offers,
        "Offers": offers[0].upper() + offers[1:],
        "needs": ".".join(__version__.split(".")[:2]),
    }

    def fill(template: str) -> str:
        return Template(_read_template(template)).substitute(values)

    yield "pyproject.toml", fill("pyproject.toml")
    sections = [fill(f"{kind}/README.md") for kind in chosen]
    yield "README.md", "\n".join([fill("README.md"), *sections])
    hooks = [fill(f"{kind}/hook.py") for kind in chosen]
    yield f"src/{module}/__init__.py", "\n\n".join([fill("hooks.py"), *hooks])
    for kind in chosen:
        yield f"src/{module}/{kind}.py", fill(f"{kind}/module.py")
        yield f"tests/test_{kind}.py", fill(f"{kind}/test.py")


def _join_words(words: list[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def _module_name(component: str) -> str:
    return (PACKAGE_PREFIX + component).replace("-", "_")


def _read_template(name: str) -> str:
    file = resources.files(__name__).joinpath("templates", f"{name}.txt")
    return file.read_text(encoding="utf-8")
