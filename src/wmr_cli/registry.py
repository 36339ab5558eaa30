"""Names and what stands behind them. Listing imports nothing; building imports the one target that is asked for."""

import contextlib
import hashlib
import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import local_code
from .errors import BadInput, PluginError, UnknownName, WmrError, did_you_mean
from .spec import Spec, read_value

KINDS = ("model", "dataset", "defense", "kernel", "attack")
GIVEN = {"model": ("num_classes", "input_shape"), "dataset": ("root", "split_seed")}
"""Parameters that the program itself fills in."""
COMMON: Mapping[str, Mapping[str, Any]] = {"model": {"mean": tuple[float, ...], "std": tuple[float, ...]}}
"""Parameters that every component of a kind takes; the program itself sees to them where the target does not."""


@dataclass(frozen=True)
class Entry:
    """A name that a plugin offers."""

    name: str
    """lower case, words joined by '-'"""
    target: str
    """"package.module:attribute", imported only when it is built"""
    summary: str
    """shown by `wmr list`"""
    params: Mapping[str, Any] = field(default_factory=dict)
    """the defaults that this name fixes"""
    files: tuple[str, ...] = ()
    """of a data set: the files under --data-dir that it reads, so that `wmr list` can tell whether they are there"""

    def problem(self) -> str | None:
        """Why this entry cannot be registered, if it cannot."""
        if not all(isinstance(text, str) for text in (self.name, self.target, self.summary)):
            return f"name, target and summary of {self.name!r} must be text"
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", self.name):
            return f"{self.name!r} is not a name: lower case, words joined by '-'"
        if not re.fullmatch(r"[\w.]+:[\w.]+", self.target):
            return f"target {self.target!r} of {self.name!r} does not read 'package.module:attribute'"
        if not isinstance(self.files, tuple) or not all(isinstance(file, str) for file in self.files):
            return f"files of {self.name!r} must be a tuple of text"
        return None if isinstance(self.params, Mapping) else f"params of {self.name!r} must be a mapping"


@dataclass(frozen=True)
class Owned:
    """An entry and the plugin it came from."""

    entry: Entry
    owner: str
    version: str


class Registry:
    """Every registered name of the five kinds, and one door to build by name."""

    def __init__(self) -> None:
        self._owned: dict[str, dict[str, Owned]] = {kind: {} for kind in KINDS}

    def add(self, offered: Iterable[tuple[str, Entry]], owner: str, version: str) -> None:
        """Register all that a plugin offers, or nothing: a name that is taken is refused, naming both owners."""
        added: dict[tuple[str, str], Owned] = {}
        for kind, entry in offered:
            taken = self._owned[kind].get(entry.name) or added.get((kind, entry.name))
            if taken:
                raise PluginError(
                    f"{kind} {entry.name!r} is offered by both {taken.owner} and {owner}", hint="uninstall one of the two"
                )
            added[kind, entry.name] = Owned(entry, owner, version)
        for (kind, name), owned in added.items():
            self._owned[kind][name] = owned

    def names(self, kind: str) -> list[str]:
        """All names of a kind, sorted."""
        return sorted(self._owned[kind])

    def __iter__(self) -> Iterator[tuple[str, Owned]]:
        return ((kind, self._owned[kind][name]) for kind in KINDS for name in self.names(kind))

    def find(self, kind: str, name: str) -> Owned:
        """The entry of a name, or an error with the nearest one."""
        if name not in self._owned[kind]:
            raise UnknownName(f"no {kind} is called {name!r}", hint=did_you_mean(name, self._owned[kind]))
        return self._owned[kind][name]

    def check(self, kind: str, spec: str) -> None:
        """Refuse a spec with a misspelt name or key, without building anything."""
        parsed = Spec.parse(spec)
        local_code.check(parsed, kind)
        signature = _Signature.of(self.target(kind, parsed.name))
        for key in parsed.params:
            if key not in COMMON.get(kind, {}):
                signature.check(key, kind, parsed)

    def target(self, kind: str, name: str) -> Callable[..., Any]:
        """Import what stands behind a name: a registered one, or a class in a file of the user's."""
        if Spec(name).is_local:
            return local_code.load_class(name, kind)
        owned = self.find(kind, name)
        module, _, attribute = owned.entry.target.partition(":")
        try:
            with contextlib.redirect_stdout(sys.stderr):  # stdout belongs to results
                found: Any = importlib.import_module(module)
            for part in attribute.split("."):
                found = getattr(found, part)
        except Exception as error:
            raise PluginError(
                f"{kind} {name!r} of {owned.owner} cannot be loaded: {type(error).__name__}: {error}",
                hint="`wmr plugins --check` tries every name; ask the author of the plugin",
            ) from error
        if not callable(found):
            raise PluginError(
                f"{kind} {name!r} of {owned.owner}: {owned.entry.target} is not callable", hint="ask the author of the plugin"
            )
        return found  # type: ignore[no-any-return]

    def accepts(self, kind: str, name: str, parameter: str) -> bool:
        """Whether a user may set this parameter of a component."""
        return _Signature.of(self.target(kind, name)).accepts(parameter)

    def declares(self, kind: str, name: str, parameter: str) -> bool:
        """Whether a component has a parameter of this very name, rather than taking any."""
        return parameter in _Signature.of(self.target(kind, name)).names()

    def create(self, kind: str, spec: Spec | str, **given: Any) -> Any:
        """Build a component: what its name fixes, then what the caller gives, then what the user wrote."""
        spec = Spec.parse(spec) if isinstance(spec, str) else spec
        local_code.check(spec, kind)  # nested specs, too: a component may build them at any later time
        target = self.target(kind, spec.name)
        fixed = {} if spec.is_local else dict(self.find(kind, spec.name).entry.params)
        signature = _Signature.of(target)
        written = dict(spec.params)
        if spec.value is not None:
            written = {signature.first_free({*fixed, *given, *written}, spec): spec.value, **written}
        params = {**fixed, **given}
        for key, value in written.items():
            if key in given:
                raise BadInput(f"{key} of {kind} {spec.name!r} is settled elsewhere", hint=f"leave out {key}=…")
            signature.check(key, kind, spec)
            params[key] = _read(kind, spec.with_params(**{key: value}), key, signature.kind_of(key))
        missing = signature.missing(params)
        if missing:
            mark = "," if spec.is_local else ":"
            raise BadInput(f"{kind} {spec.name!r} needs {missing}", hint=f"write {spec.name}{mark}{missing}=…")
        return _built_from_file(target, params, spec) if spec.is_local else target(**params)

    def common(self, kind: str, spec: Spec) -> tuple[Spec, dict[str, Any]]:
        """The spec that is left for the target, and what the user set of the parameters common to its kind."""
        shared = {key: of for key, of in COMMON.get(kind, {}).items() if not self.accepts(kind, spec.name, key)}
        written = {key: _read(kind, spec, key, of) for key, of in shared.items() if key in spec.params}
        return spec.without(*shared), written

    def settled(self, kind: str, spec: str) -> str:
        """A spec that means the same from any folder: paths are absolute, and a bare value has its name."""
        parsed = Spec.parse(spec).absolute()
        local_code.check(parsed, kind)
        signature = _Signature.of(self.target(kind, parsed.name))
        params = dict(parsed.params)
        if parsed.value is not None:
            fixed = {} if parsed.is_local else self.find(kind, parsed.name).entry.params
            params = {signature.first_free({*fixed, *GIVEN.get(kind, ()), *params}, parsed): parsed.value, **params}
        full = Spec(parsed.name, None, params)
        read = {key: _read(kind, full, key, of) for key in params if (of := signature.kind_of(key)) in (Path, Path | None)}
        absolute = {key: str(path.absolute()) for key, path in read.items() if path is not None}
        return str(Spec(parsed.name, None, {**params, **absolute})) if absolute else str(parsed)

    def default(self, kind: str, name: str, parameter: str) -> Any:
        """What a parameter is unless the user sets it; None where there is no such parameter."""
        found = _Signature.of(self.target(kind, name)).parameters.get(parameter)
        return None if found is None or found.default is inspect.Parameter.empty else found.default

    def used(self, specs: Mapping[str, str]) -> dict[str, str]:
        """What stands behind these specs (kind to text) and is not ours: plugins by version, local files by hash."""
        found = {}
        for kind, text in specs.items():
            spec = Spec.parse(text)
            signature = _Signature.of(self.target(kind, spec.name))
            files = [str(value) for key, value in spec.params.items() if signature.kind_of(key) is Path]
            for path in [*files, *([spec.name.rpartition(":")[0]] if spec.is_local else [])]:
                if Path(path).is_file() and kind != "dataset":  # a data set has a hash of its own
                    found[path] = "sha256:" + hashlib.sha256(Path(path).read_bytes()).hexdigest()
            if not spec.is_local and (owned := self.find(kind, spec.name)).owner != "wmr-cli":
                found[owned.owner] = owned.version
        return found


@dataclass(frozen=True)
class _Signature:
    """What a target can be called with."""

    parameters: Mapping[str, inspect.Parameter]

    @classmethod
    def of(cls, target: Callable[..., Any]) -> "_Signature":
        try:
            return cls(inspect.signature(target, eval_str=True).parameters)
        except NameError:  # annotations that exist for the type checker only
            return cls(inspect.signature(target).parameters)
        except (TypeError, ValueError) as error:
            raise PluginError(f"{target!r} cannot be built by name: {error}", hint="name a class or a function") from None

    def names(self) -> list[str]:
        named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return [name for name, parameter in self.parameters.items() if parameter.kind in named]

    def accepts(self, name: str) -> bool:
        takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in self.parameters.values())
        return takes_any or name in self.names()

    def check(self, name: str, kind: str, spec: Spec) -> None:
        if not self.accepts(name):
            free = [*(own for own in self.names() if own not in GIVEN.get(kind, ())), *COMMON.get(kind, ())]
            raise UnknownName(f"{kind} {spec.name!r} has no {name!r}", hint=did_you_mean(name, free))

    def kind_of(self, name: str) -> Any:
        annotation = self.parameters[name].annotation if name in self.parameters else inspect.Parameter.empty
        return Any if annotation is inspect.Parameter.empty or isinstance(annotation, str) else annotation

    def first_free(self, taken: set[str], spec: Spec) -> str:
        free = [name for name in self.names() if name not in taken]
        if not free:
            raise BadInput(f"{spec.name!r} takes no value", hint=f"write {spec.name} alone, or key=value")
        return free[0]

    def missing(self, params: Mapping[str, Any]) -> str | None:
        needed = [name for name in self.names() if self.parameters[name].default is inspect.Parameter.empty]
        return next((name for name in needed if name not in params), None)


def _read(kind: str, spec: Spec, key: str, of: Any) -> Any:
    """A parameter's value; an error names the parameter."""
    try:
        return read_value(spec.params[key], of)
    except BadInput as problem:
        hint = problem.hint or f"`wmr list {kind}s` names them; the documentation has their keys"
        raise BadInput(f"{key} of {kind} {spec.name!r}: {problem}", hint=hint) from None


def _built_from_file(target: Callable[..., Any], params: Mapping[str, Any], spec: Spec) -> Any:
    """What a class of the user's makes; its own mistakes are told with their line."""
    try:
        return target(**params)
    except WmrError:
        raise
    except (Exception, SystemExit) as error:
        line = traceback.extract_tb(error.__traceback__)[-1]
        problem = f"{spec.name} cannot be built: {type(error).__name__}: {error}"
        raise BadInput(problem, hint=f"see line {line.lineno} of {line.filename}") from error
